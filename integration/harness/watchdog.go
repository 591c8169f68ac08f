package harness

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/scopefs/scopefs/fs/fusemount"
)

// dogTime is how long before go test's timeout the watchdog of a folder barks. A process that waits in the kernel for a view does not
// end by go test's signal; it does once the connection is aborted.
const dogTime = 20 * time.Second

// watchdog ends a folder's tests that hang: shortly before go test's timeout it prints all goroutines and the processes that wait in the
// kernel, aborts the FUSE connections of this run, and exits. stop ends it.
func watchdog() (stop func()) {
	limit, err := time.ParseDuration(flag.Lookup("test.timeout").Value.String())
	if err != nil || limit <= 2*dogTime {
		return func() {}
	}
	dog := time.AfterFunc(limit-dogTime, func() {
		fmt.Fprintf(os.Stderr, "watchdog: the tests of this folder hang for %v; goroutines:\n", limit)
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
		uninterruptible(os.Stderr)
		abortAll(os.Stderr)
		os.Exit(2)
	})
	return func() { dog.Stop() }
}

// uninterruptible prints the processes in state D, with the kernel function in which each sleeps: proc_pid_stat(5), proc_pid_wchan(5).
func uninterruptible(w io.Writer) {
	stats, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/stat")
	for _, name := range stats {
		text, _ := os.ReadFile(name)
		_, rest, _ := strings.Cut(string(text), ") ")
		if strings.HasPrefix(rest, "D") {
			wait, _ := os.ReadFile(filepath.Dir(name) + "/wchan")
			line, _ := os.ReadFile(filepath.Dir(name) + "/cmdline")
			fmt.Fprintf(w, "watchdog: state D: %s waits in %s: %q\n", filepath.Dir(name), wait, line)
		}
	}
}

// abortAll aborts the FUSE connections whose mounts have a name of this run, in whichever mount namespace: fuse(4).
func abortAll(w io.Writer) {
	control := fusemount.OpenControl()
	defer control.Close()
	tables, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	done := map[string]bool{}
	for _, table := range tables {
		text, _ := os.ReadFile(table)
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line) // proc_pid_mountinfo(5): id, parent, major:minor, root, mount point
			if len(f) < 5 || done[f[2]] || !strings.Contains(f[4], TempPrefix) || !strings.Contains(line, " fuse.") {
				continue
			}
			done[f[2]] = true
			_, number, _ := strings.Cut(f[2], ":")
			minor, err := strconv.ParseUint(number, 10, 32)
			if err == nil {
				conn := control.Connection(uint32(minor), f[4])
				err = conn.Abort()
				conn.Close()
			}
			fmt.Fprintf(w, "watchdog: abort %s: %v\n", f[4], err)
		}
	}
}
