// Scopefs-view is the process that serves the view of one agent. The daemon starts it.
package main

import (
	"os"

	"github.com/scopefs/scopefs/internal/thread"
	"github.com/scopefs/scopefs/internal/view/serve"
)

func main() {
	thread.NameProcess("scopefs-view")
	os.Exit(serve.Main())
}
