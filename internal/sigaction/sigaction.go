// Package sigaction sets what the kernel does at a signal, without the Go runtime: rt_sigaction(2). os/signal restores no default
// action of a signal that it has delivered.
package sigaction

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Action is the kernel's struct sigaction of our architectures. The zero value is the default action.
type Action struct{ Handler, Flags, Restorer, Mask uintptr }

// Ignore is the handler SIG_IGN.
const Ignore = 1

// Set sets the action of a signal, unless it is nil, and returns the one before in old, unless that is nil.
func Set(sig unix.Signal, action, old *Action) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig),
		uintptr(unsafe.Pointer(action)), uintptr(unsafe.Pointer(old)), unsafe.Sizeof(action.Mask), 0, 0)
	if errno != 0 {
		return fmt.Errorf("action of signal %d: %w", sig, errno)
	}
	return nil
}
