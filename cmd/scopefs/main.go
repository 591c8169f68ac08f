// Command scopefs gives every agent its own view of its own files.
//
// One program has four roles: the command line and daemon, the process that
// serves a view, process 1 of a sandbox, and the file tools in it. The latter
// three are started by the daemon alone.
package main

import (
	"context"
	"os"

	"github.com/scopefs/scopefs/cmd/scopefs/internal/cli"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/viewer"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/sandbox"
)

func main() {
	switch {
	case os.Args[0] == viewer.Name:
		os.Exit(viewer.Main())
	case len(os.Args) > 1 && os.Args[1] == sandbox.InitArg:
		os.Exit(sandbox.Init())
	case len(os.Args) > 1 && os.Args[1] == file.WorkerArg:
		os.Exit(file.Work())
	}
	os.Exit(cli.Main(context.Background(), os.Args[1:]))
}
