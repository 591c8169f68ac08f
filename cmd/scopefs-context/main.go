// Scopefs-context is the process that serves the /context of one sandbox. The daemon starts it.
package main

import (
	"os"

	"github.com/scopefs/scopefs/internal/contextfs/serve"
	"github.com/scopefs/scopefs/internal/thread"
)

func main() {
	thread.NameProcess("scopefs-context")
	os.Exit(serve.Main())
}
