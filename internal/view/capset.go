package view

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// capset sets the capabilities of every thread: capset(2).
func capset(data *[2]unix.CapUserData) error {
	head := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(head)), uintptr(unsafe.Pointer(data)), 0)
	runtime.KeepAlive(head)
	runtime.KeepAlive(data)
	switch errno {
	case 0:
		return nil
	case syscall.ENOTSUP:
		return errNotStatic
	}
	return errno
}
