// Command scopefs-files does the work of the file tools, in the sandbox of their agent: see package tree. Package worker starts it.
package main

import (
	"os"

	"github.com/scopefs/scopefs/internal/thread"
	"github.com/scopefs/scopefs/tools/file/tree"
)

func main() {
	thread.NameProcess("scopefs-files")
	os.Exit(tree.Main())
}
