package fs

import (
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// The ioctls of FUSE passthrough; linux/fuse.h.
const (
	backingOpen  = 0x4010e501
	backingClose = 0x4004e502
)

// back tells the kernel of an open file that it may read and write itself. It
// takes CAP_SYS_ADMIN: fs/fuse/backing.c.
func (c *conn) back(fd int) (int32, syscall.Errno) {
	m := fuse.BackingMap{Fd: int32(fd)}
	id, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd), backingOpen, uintptr(unsafe.Pointer(&m)))
	return int32(id), errno
}

// unback takes back what back told.
func (c *conn) unback(id int32) {
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd), backingClose, uintptr(unsafe.Pointer(&id)))
}
