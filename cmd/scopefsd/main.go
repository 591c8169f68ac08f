// Command scopefsd is the daemon of scopefs, and every command that scopefs leaves to it.
//
// The program has two roles: the daemon and the command line, and the process that takes a head of the log elsewhere, which only the
// daemon starts. What else it starts are programs of their own: see package beside.
package main

import (
	"context"
	"os"

	"github.com/scopefs/scopefs/internal/anchor"
	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/cli"
	"github.com/scopefs/scopefs/internal/thread"
)

func main() {
	thread.NameProcess("scopefsd") // also of one that was executed as /proc/self/exe
	child.Play(map[string]func() int{
		anchor.Name: func() int { return anchor.Main(anchor.Take) },
	})
	os.Exit(cli.Main(context.Background(), os.Args[1:]))
}
