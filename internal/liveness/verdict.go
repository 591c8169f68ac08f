package liveness

import (
	"fmt"
	"time"
)

// condition is what a look at the threads of a process finds: the first of these
// that holds for one of them.
type condition int

const (
	killed   condition = iota // SIGKILL is pending, or it exits (its main thread)
	stopped                   // T: by a signal
	runnable                  // R, or the process has run during the look
	diskWait                  // D: uninterruptible, mostly for a disk
	asleep                    // every thread waits for another or for a message
)

// Evidence is what is known of a process since its heart's beat that has no response yet. All
// of it is about the view: a late look is one look, whatever the daemon has waited for.
type Evidence struct {
	Answered bool          // the response is in the socket
	dying    bool          // the last look found it killed
	asleep   int           // looks that found it asleep or stopped, ProbeTime or more apart
	disk     int           // looks that found it waiting for a disk, likewise
	spent    time.Duration // processor time of the process since the beat
}

const (
	// ProbeTime is the time between two looks at a process.
	ProbeTime = 400 * time.Millisecond

	missedBeats = 2                             // looks
	diskLooks   = int(diskPatience / ProbeTime) // looks
	// diskPatience is longer than a page fault takes beside many programs that sync files. A
	// disk that takes longer keeps clients waiting in any case.
	diskPatience = 30 * time.Second
	// spinTime is more than a process uses until its heart has had a turn: each of its
	// threads that can run may have a time slice before.
	spinTime = 10 * time.Second
)

// Add adds a look. began is the processor time of the process at the beat.
func (e *Evidence) Add(p Process, began time.Duration) {
	e.add(p.condition(), p.Spent()-began)
}

func (e *Evidence) add(c condition, spent time.Duration) {
	e.spent = spent
	switch c {
	case killed:
		e.dying = true
	case stopped, asleep:
		e.asleep++
	case diskWait:
		e.disk++
	}
}

// Verdict returns why a process is to be replaced, or "".
//
//	answered  threads                        verdict
//	yes       any                            it serves
//	no        killed                         replace at once
//	no        stopped, in 2 looks            replace: only a signal continues it
//	no        one is runnable                wait: it is starved, or works. Replace after 10 s of its
//	                                         own processor time: it spins
//	no        none runnable, one in state D  wait: for a disk, or for memory. Replace after 75 looks (30 s)
//	no        all asleep, in 2 looks         replace: it is deadlocked
//
// All asleep is proof. A beat makes a thread of the process runnable. From then on, until the
// response is written, one thread at least is runnable or in state D: each one that
// sleeps does so after it has woken the one that goes on. The exception is the runtime's
// monitor thread, which sleeps up to 10 ms before it takes the processor of a thread
// that waits in a system call. Therefore two looks are needed, and they are much further apart.
func (e Evidence) Verdict() string {
	switch {
	case e.Answered:
		return ""
	case e.dying:
		return "process was killed"
	case e.asleep >= missedBeats:
		return fmt.Sprintf("process does not answer: it slept or was stopped for %d heartbeats", e.asleep)
	case e.disk >= diskLooks:
		return fmt.Sprintf("process does not answer: it has waited %v for a disk", diskPatience)
	case e.spent >= spinTime:
		return fmt.Sprintf("process does not answer: it ran for %v", e.spent.Round(time.Second))
	}
	return ""
}
