// Package pidfd waits for processes and kills them by descriptors that no other process can get the number of: pidfd_open(2).
package pidfd

import (
	"os"

	"golang.org/x/sys/unix"
)

// Ended returns a channel that is closed when the process of a pidfd is gone.
func Ended(pidfd *os.File) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		if Await(pidfd) == nil {
			close(ended)
		}
	}()
	return ended
}

// Await returns nil when the process of a pidfd is gone, and an error when the file is closed before. It keeps no thread: the
// runtime polls the file, which must not block.
func Await(pidfd *os.File) error {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
}

// Kill kills the process of a pidfd.
func Kill(pidfd *os.File) {
	if raw, err := pidfd.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	}
}
