// Package privileges takes capabilities from every thread of this process, and says what Landlock can take.
package privileges

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Drop drops the capabilities of every thread but those of the mask keep, and closes the process to ptrace(2) and /proc of
// others of its user.
func Drop(keep uint32) error {
	if err := allThreads(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	head, data := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &[2]unix.CapUserData{{Effective: keep, Permitted: keep}}
	err := allThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(head)), uintptr(unsafe.Pointer(data)), 0)
	runtime.KeepAlive(head)
	runtime.KeepAlive(data)
	if err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("undumpable: %w", err)
	}
	return nil
}

// NoNewPrivs makes execve(2) give no thread of this process privileges: prctl(2).
func NoNewPrivs() error { return allThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0) }

// RenameABI is the first ABI of Landlock that can allow renames between directories. Linux 5.15 to 5.18 have ABI 1.
const RenameABI = 2

// Landlocked returns all that this kernel's Landlock can deny, and its ABI.
func Landlocked() (landlock.Config, int, error) {
	abi, err := ll.LandlockGetABIVersion()
	if err != nil {
		return landlock.Config{}, 0, fmt.Errorf("landlock: %w: enable it at boot (lsm=landlock,...)", err)
	}
	configs := []landlock.Config{
		landlock.V1, landlock.V2, landlock.V3, landlock.V4, landlock.V5, landlock.V6, landlock.V7, landlock.V8, landlock.V9,
	}
	used := min(abi, len(configs))
	return configs[used-1], used, nil
}

// allThreads makes a system call on every thread; the kernel keeps credentials by thread.
func allThreads(call, a, b, c uintptr) error {
	_, _, errno := syscall.AllThreadsSyscall6(call, a, b, c, 0, 0, 0)
	switch errno {
	case 0:
		return nil
	case unix.ENOTSUP: // the answer of the package syscall in a program with cgo
		return errNotStatic
	}
	return errno
}

var errNotStatic = errors.New("needs a static binary: build with CGO_ENABLED=0")
