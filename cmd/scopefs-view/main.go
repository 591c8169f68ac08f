// Scopefs-view is the process that serves the view of one agent. The daemon starts it.
package main

import (
	"os"

	"github.com/scopefs/scopefs/internal/view/serve"
)

func main() { os.Exit(serve.Main()) }
