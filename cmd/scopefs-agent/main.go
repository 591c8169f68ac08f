// Command scopefs-agent is an agent's process, with the network of its sandboxes: see package serve. Package agentproc starts it.
package main

import (
	"os"

	"github.com/scopefs/scopefs/internal/agentproc/serve"
	"github.com/scopefs/scopefs/internal/thread"
)

func main() {
	thread.NameProcess("scopefs-agent")
	os.Exit(serve.Main())
}
