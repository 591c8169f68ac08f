// Command scopefs-files does the work of the file tools, in the sandbox of their agent: see package tree. Package worker starts it.
// With an argument it makes sockets there: see package ports.
package main

import (
	"os"

	"github.com/scopefs/scopefs/internal/thread"
	"github.com/scopefs/scopefs/tools/file/tree"
	"github.com/scopefs/scopefs/tools/sandbox/ports"
)

func main() {
	thread.NameProcess("scopefs-files")
	role := tree.Main
	if len(os.Args) > 1 && os.Args[1] == ports.Arg {
		role = ports.Main
	}
	os.Exit(role())
}
