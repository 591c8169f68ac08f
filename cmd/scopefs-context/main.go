// Scopefs-context is the process that serves the /context of one sandbox. The daemon starts it.
package main

import (
	"os"

	"github.com/scopefs/scopefs/internal/contextfs/serve"
)

func main() { os.Exit(serve.Main()) }
