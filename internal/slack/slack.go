// Package slack sets the timer slack, which the kernel keeps for each thread.
package slack

import (
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// The timer slack of threads in nanoseconds: how much later than its time a timer may expire (PR_SET_TIMERSLACK(2const)).
const (
	coarse = 1_000_000
	fine   = 50_000 // of the kernel's first process
)

// Coarse gives the process a timer slack of a millisecond. If the process has less, Coarse executes the program again,
// with the same arguments and descriptors. Call it before other work. Processes that this one starts inherit the slack.
//
// The runtime's monitor thread sleeps for 20 µs at a time while any goroutine runs. At the kernel's slack of 50 µs it
// takes up to half of the processor time of a process that wakes for each request. The runtime starts the thread before
// main, and a thread's slack is that of the thread that started it: only the next program has it.
//
// With it a goroutine may wait a millisecond longer for a processor that another one holds in a system call, and any
// timer may be a millisecond late. An error costs only speed and is not returned.
func Coarse() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if ofThread() >= coarse {
		return
	}
	program, err := os.Executable()
	if err == nil && set(coarse) == nil && ofThread() == coarse { // a real-time thread has none
		_ = syscall.Exec(program, os.Args, os.Environ())
	}
}

// Coarsely calls f on a thread with the timer slack of Coarse. A process that f starts has it,
// and its Coarse does not execute the program again.
func Coarsely(f func()) { with(coarse, f) }

// Fine calls f on a thread with the timer slack that the kernel gives to programs, so that a process that f starts has it.
func Fine(f func()) { with(fine, f) }

func with(ns int, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := ofThread()
	_ = set(ns) // an error costs only speed or precision
	defer func() { _ = set(before) }()
	f()
}

// ofThread returns the timer slack of the calling thread in nanoseconds, 0 if it is unknown.
func ofThread() int {
	n, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	return n
}

func set(ns int) error { return unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(ns), 0, 0, 0) }
