// Command server is the process that serves /context: a static program, as the tests with the race detector are not.
package main

import (
	"os"

	"github.com/scopefs/scopefs/internal/contextfs"
)

func main() { os.Exit(contextfs.Main()) }
