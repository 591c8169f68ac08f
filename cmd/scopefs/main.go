// Command scopefs gives every agent its own view of its own files.
//
// The program has four roles: the command line and daemon, the process that serves a view, the process that serves
// /context, and the one that takes a head of the log elsewhere. Only the daemon starts the last three. What else it starts are programs of their own: see package beside.
package main

import (
	"context"
	"os"

	"github.com/scopefs/scopefs/internal/anchor"
	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/cli"
	"github.com/scopefs/scopefs/internal/contextfs"
	"github.com/scopefs/scopefs/internal/view"
)

func main() {
	child.Play(map[string]func() int{
		view.Name:      view.Main,
		contextfs.Name: contextfs.Main,
		anchor.Name:    func() int { return anchor.Main(anchor.Take) },
	})
	os.Exit(cli.Main(context.Background(), os.Args[1:]))
}
