// Package thread names threads and processes.
package thread

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Name names the calling thread, in at most 15 bytes: PR_SET_NAME(2const). The goroutine must be locked to the thread.
func Name(name string) {
	var text [16]byte
	copy(text[:15], name)
	_, _, _ = unix.Syscall(unix.SYS_PRCTL, unix.PR_SET_NAME, uintptr(unsafe.Pointer(&text)), 0) // cannot fail
}

// NameProcess names the main thread, whichever thread calls: ps(1) shows that name. A program that was executed by a descriptor has the
// number of the descriptor in place of a name: proc_pid_comm(5). An error costs only the name.
func NameProcess(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }
