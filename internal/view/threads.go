package view

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/proc"
)

// dying reports whether the process was killed or exits. It may take long: a thread that
// waits in the kernel for a client of the view ends only when the connection is aborted.
func (p *served) dying() bool {
	main, err := proc.ReadStat(p.cmd.Process.Pid)
	return err == nil && main.Dying() && !p.gone() // gone: the pid may be another's
}

// condition looks at the threads of the process.
func (p *served) condition() condition {
	if p.dying() {
		return killed
	}
	found, before := asleep, p.spent()
	threads := proc.Threads(p.cmd.Process.Pid)
	for _, tid := range threads {
		switch t, _ := proc.ReadThread(p.cmd.Process.Pid, tid); t.State {
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
	if len(threads) == 0 || p.spent() != before {
		found = min(found, runnable)
	}
	return found
}

// spent returns the processor time of the process, to the nanosecond:
// clock_getcpuclockid(3).
func (p *served) spent() time.Duration {
	const scheduled = 2 // CPUCLOCK_SCHED, linux/posix-timers_types.h
	var ts unix.Timespec
	if unix.ClockGettime(int32(^p.cmd.Process.Pid)<<3|scheduled, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
