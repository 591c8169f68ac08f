// Command scopefs-log writes the audit log for the daemon: see audit.Serve. Package daemon starts it. It ignores signals for all
// processes of a service or a terminal: it must exit after the daemon, so that the daemon can still record.
package main

import (
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/thread"
)

func main() {
	thread.NameProcess("scopefs-log")
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
	err := confine()
	if err == nil {
		err = unix.SetNonblock(4, true) // so that its end can be closed while a goroutine reads
	}
	if err == nil {
		err = audit.Serve(os.NewFile(3, "daemon"), os.NewFile(4, "channels"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
