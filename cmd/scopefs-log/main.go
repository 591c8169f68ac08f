// Command scopefs-log writes the audit log for the daemon: see package logger, which starts it.
package main

import (
	"os"

	"github.com/scopefs/scopefs/internal/logger"
)

func main() { os.Exit(logger.Main()) }
