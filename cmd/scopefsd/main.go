// Command scopefsd is the daemon of scopefs, and every command that scopefs leaves to it.
//
// The program has nine roles: the daemon and the command line, the process that serves a view, the process that serves
// /context, the holder that keeps views for the next daemon, the process that writes the log, the process that passes the bytes
// of tunnels, the one that takes a head of the log elsewhere, process 1 of a sandbox, and the file tools in a sandbox. Only the
// daemon starts the last eight. The drivers of stores are in another program, scopefs-stores.
package main

import (
	"context"
	"os"

	"github.com/scopefs/scopefs/internal/anchor"
	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/cli"
	"github.com/scopefs/scopefs/internal/contextfs"
	"github.com/scopefs/scopefs/internal/holder"
	"github.com/scopefs/scopefs/internal/logger"
	"github.com/scopefs/scopefs/internal/tunnels"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/file/worker"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

func main() {
	child.Play(map[string]func() int{
		view.Name:      view.Main,
		contextfs.Name: contextfs.Main,
		holder.Name:    holder.Main,
		child.Log:      logger.Main,
		tunnels.Name:   tunnels.Main,
		anchor.Name:    func() int { return anchor.Main(anchor.Take) },
	})
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case pid1.Arg:
			os.Exit(pid1.Main())
		case worker.Arg:
			os.Exit(file.Work())
		}
	}
	os.Exit(cli.Main(context.Background(), os.Args[1:]))
}
