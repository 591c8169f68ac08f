// Command scopefs-yaml parses the YAML of a repository for the daemon: see package foreign.
package main

import (
	"os"

	"github.com/scopefs/scopefs/internal/foreign"
	"github.com/scopefs/scopefs/internal/thread"
)

func main() {
	thread.NameProcess("scopefs-yaml")
	os.Exit(foreign.Main())
}
