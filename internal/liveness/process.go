package liveness

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/proc"
)

// Process is a process of ours that is looked at.
type Process struct {
	PID   int
	Ended <-chan struct{} // closed when it was waited for: the pid may be another's
}

// Dying reports whether the process was killed or exits. It may take long: a thread that
// waits in the kernel for a client of the view ends only when the connection is aborted.
func (p Process) Dying() bool {
	main, err := proc.ReadStat(p.PID)
	select {
	case <-p.Ended:
		return false
	default:
		return err == nil && main.Dying()
	}
}

// condition looks at the threads of the process.
func (p Process) condition() condition {
	if p.Dying() {
		return killed
	}
	found, before := asleep, p.Spent()
	threads := proc.Threads(p.PID)
	for _, tid := range threads {
		switch t, _ := proc.ReadThread(p.PID, tid); t.State {
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
	if len(threads) == 0 || p.Spent() != before {
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
