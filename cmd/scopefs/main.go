// Command scopefs gives every agent its own view of its own files.
//
// One program has three roles: the command line and daemon, the process that
// serves a view, and process 1 of a sandbox. The two latter are started by the
// daemon alone.
package main

import (
	"context"
	"os"

	"github.com/scopefs/scopefs/cmd/scopefs/internal/cli"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/viewer"
	"github.com/scopefs/scopefs/tools/sandbox"
)

func main() {
	switch {
	case os.Args[0] == viewer.Name:
		os.Exit(viewer.Main())
	case len(os.Args) > 1 && os.Args[1] == sandbox.InitArg:
		os.Exit(sandbox.Init())
	}
	os.Exit(cli.Main(context.Background(), os.Args[1:]))
}
