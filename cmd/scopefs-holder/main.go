// Command scopefs-holder keeps the views and sandboxes of a daemon that has ended for the next one: see package serve.
package main

import (
	"os"

	"github.com/scopefs/scopefs/internal/holder/serve"
	"github.com/scopefs/scopefs/internal/thread"
)

func main() {
	thread.NameProcess("scopefs-holder")
	os.Exit(serve.Main())
}
