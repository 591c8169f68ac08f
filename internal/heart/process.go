package heart

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// thread is what the kernel says of a thread: proc_pid_stat(5).
type thread struct {
	state byte
	dying bool // it exits, or SIGKILL is pending: complete_signal gives it to each thread
}

// readThread reads a stat file. ok is false when the thread is gone.
func readThread(name string) (t thread, ok bool) {
	text, err := os.ReadFile(name)
	if err != nil {
		return thread{}, false
	}
	// The name in parentheses may have any character. The manual page numbers the fields after it from 3.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	const state, flags, pending = 0, 6, 28 // its fields 3, 9 and 31
	if len(fields) <= pending {
		return thread{}, false
	}
	const exiting = 0x4 // PF_EXITING, linux/sched.h
	flagged, _ := strconv.ParseUint(string(fields[flags]), 10, 64)
	signals, _ := strconv.ParseUint(string(fields[pending]), 10, 64)
	t.state = fields[state][0]
	t.dying = t.state == 'Z' || t.state == 'X' || flagged&exiting != 0 || signals&(1<<(unix.SIGKILL-1)) != 0
	return t, true
}

// Process is a process of ours that is looked at.
type Process struct {
	PID  int
	Gone func() bool // whether it was waited for: the pid may be another's
}

// Dying reports whether the process was killed or exits. It may take long: a thread that
// waits in the kernel for a client of the view ends only when the connection is aborted.
func (p Process) Dying() bool {
	main, ok := readThread(fmt.Sprintf("/proc/%d/stat", p.PID))
	return ok && main.dying && !p.Gone()
}

// condition looks at the threads of the process.
func (p Process) condition() condition {
	if p.Dying() {
		return killed
	}
	found, before := asleep, p.Spent()
	dir := fmt.Sprintf("/proc/%d/task", p.PID)
	tasks, err := os.ReadDir(dir)
	for _, task := range tasks {
		switch t, _ := readThread(dir + "/" + task.Name() + "/stat"); t.state {
		case 'T':
			found = min(found, stopped)
		case 'R':
			found = min(found, runnable)
		case 'D':
			found = min(found, diskWait)
		}
	}
	// What the look found at different times may never have been so at one time. If the
	// process has not run meanwhile, nothing has changed but what others woke.
	if err != nil || p.Spent() != before {
		found = min(found, runnable)
	}
	return found
}

// Spent returns the processor time of the process, to the nanosecond:
// clock_getcpuclockid(3).
func (p Process) Spent() time.Duration {
	const scheduled = 2 // CPUCLOCK_SCHED, linux/posix-timers_types.h
	var ts unix.Timespec
	if unix.ClockGettime(int32(^p.PID)<<3|scheduled, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
