// Command scopefs-files does the work of the file tools, in the sandbox of their agent: see package file. Package worker starts it.
package main

import (
	"os"

	"github.com/scopefs/scopefs/tools/file"
)

func main() { os.Exit(file.Work()) }
