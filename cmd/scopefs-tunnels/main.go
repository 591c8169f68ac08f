// Command scopefs-tunnels passes the bytes of agents' tunnels: see package relay. Package tunnels starts it.
package main

import (
	"os"

	"github.com/scopefs/scopefs/internal/thread"
	"github.com/scopefs/scopefs/internal/tunnels/relay"
)

func main() {
	thread.NameProcess("scopefs-tunnels")
	os.Exit(relay.Main())
}
