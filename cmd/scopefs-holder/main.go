// Command scopefs-holder keeps the views and sandboxes of a daemon that has ended for the next one: see package holder.
package main

import (
	"os"

	"github.com/scopefs/scopefs/internal/holder"
)

func main() { os.Exit(holder.Main()) }
