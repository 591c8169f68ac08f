// Command scopefs-init is process 1 of a sandbox: see package pid1. Package sandbox starts it.
package main

import (
	"os"

	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

func main() { os.Exit(pid1.Main()) }
