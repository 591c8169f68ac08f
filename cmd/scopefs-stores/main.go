// Command scopefs-stores has the drivers of the shared stores. The daemon starts it when an agent first uses
// a store: one process with the drivers of servers and files, and a process for each agent's SQL database.
package main

import (
	"fmt"
	"os"

	"github.com/scopefs/scopefs/cmd/scopefs-stores/internal/drivers"
	"github.com/scopefs/scopefs/cmd/scopefs-stores/internal/engine"
	"github.com/scopefs/scopefs/internal/thread"
	wire "github.com/scopefs/scopefs/tools/sql/engine"
)

func main() {
	if os.Args[0] == wire.Name {
		thread.NameProcess(wire.Name)
		os.Exit(engine.Main())
	}
	thread.NameProcess("scopefs-stores")
	if err := drivers.Serve(); err != nil {
		fmt.Fprintln(os.Stderr, "scopefs-stores: "+err.Error())
		os.Exit(1)
	}
}
