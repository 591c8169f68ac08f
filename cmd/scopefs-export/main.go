// Command scopefs-export gives events of the log to other programs. scopefs audit export starts it with a format, the daemon
// for each stream of scopefs.yaml. For an anchor of the log by syslog it starts one for each head.
package main

import (
	"fmt"
	"os"

	"github.com/scopefs/scopefs/cmd/scopefs-export/internal/export"
	"github.com/scopefs/scopefs/cmd/scopefs-export/internal/streams"
	"github.com/scopefs/scopefs/internal/anchor"
	"github.com/scopefs/scopefs/internal/thread"
)

func main() {
	thread.NameProcess("scopefs-export")
	if os.Args[0] == anchor.Name {
		os.Exit(anchor.Main(streams.Anchor))
	}
	serve := streams.Serve
	if len(os.Args) > 1 {
		serve = func() error { return export.Filter(os.Args[1:], os.Stdin, os.Stdout) }
	}
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "scopefs-export: "+err.Error())
		os.Exit(1)
	}
}
