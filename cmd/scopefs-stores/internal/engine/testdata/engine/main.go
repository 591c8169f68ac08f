// Engine is a program with the one role of an engine process.
package main

import (
	"os"

	"github.com/scopefs/scopefs/cmd/scopefs-stores/internal/engine"
)

func main() { os.Exit(engine.Main()) }
