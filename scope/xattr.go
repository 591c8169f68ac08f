package scope

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// xattrArgs is struct xattr_args of linux/xattr.h.
type xattrArgs struct {
	value uint64
	size  uint32
	flags uint32
}

// DefaultACL is the extended attribute that holds a directory's default ACL,
// acl(5). Where a directory has one, the umask does not apply: umask(2).
const DefaultACL = "system.posix_acl_default"

// The extended attribute calls act by descriptor. An object that is not open
// needs getxattrat(2) and its kind, Linux 6.13; before, EBADF, and the caller
// opens the object.

// Getxattr reads attribute name into p and returns its size in bytes; with an
// empty p, the size alone. ERANGE when p is too small.
func (f File) Getxattr(name string, p []byte) (int, error) {
	if !f.path {
		return again(func() (int, error) { return unix.Fgetxattr(f.fd, name, p) })
	}
	return f.xattrat(unix.SYS_GETXATTRAT, name, p, 0)
}

// Listxattr reads the names, each ended by NUL, into p.
func (f File) Listxattr(p []byte) (int, error) {
	if !f.path {
		return again(func() (int, error) { return unix.Flistxattr(f.fd, p) })
	}
	return again(func() (int, error) {
		var empty byte
		n, _, errno := unix.Syscall6(unix.SYS_LISTXATTRAT, uintptr(f.fd), uintptr(unsafe.Pointer(&empty)), unix.AT_EMPTY_PATH,
			uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), 0)
		return result(n, errno)
	})
}

// Setxattr sets attribute name; flags are XATTR_CREATE and XATTR_REPLACE.
func (f File) Setxattr(name string, p []byte, flags int) error {
	if !f.path {
		return retry(func() error { return unix.Fsetxattr(f.fd, name, p, flags) })
	}
	_, err := f.xattrat(unix.SYS_SETXATTRAT, name, p, flags)
	return err
}

// Removexattr removes attribute name.
func (f File) Removexattr(name string) error {
	if !f.path {
		return retry(func() error { return unix.Fremovexattr(f.fd, name) })
	}
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, err = again(func() (int, error) {
		var empty byte
		n, _, errno := unix.Syscall6(unix.SYS_REMOVEXATTRAT, uintptr(f.fd), uintptr(unsafe.Pointer(&empty)), unix.AT_EMPTY_PATH,
			uintptr(unsafe.Pointer(p)), 0, 0)
		return result(n, errno)
	})
	return err
}

// xattrat is getxattrat(2) or setxattrat(2) on the object itself.
func (f File) xattrat(call uintptr, name string, value []byte, flags int) (int, error) {
	np, err := unix.BytePtrFromString(name)
	if err != nil {
		return 0, err
	}
	// The kernel gets the address as a number, so the memory must not move.
	var pin runtime.Pinner
	defer pin.Unpin()
	if len(value) > 0 {
		pin.Pin(unsafe.SliceData(value))
	}
	args := xattrArgs{value: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(value)))), size: uint32(len(value)), flags: uint32(flags)}
	return again(func() (int, error) {
		var empty byte
		n, _, errno := unix.Syscall6(call, uintptr(f.fd), uintptr(unsafe.Pointer(&empty)), unix.AT_EMPTY_PATH,
			uintptr(unsafe.Pointer(np)), uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args))
		return result(n, errno)
	})
}

// result turns ENOSYS, a kernel without the call, into EBADF: what the calls
// by descriptor have always said of one opened with O_PATH.
func result(n uintptr, errno unix.Errno) (int, error) {
	switch errno {
	case 0:
		return int(n), nil
	case unix.ENOSYS:
		return 0, unix.EBADF
	}
	return 0, errno
}

// again is retry for a call that returns a number.
func again(f func() (int, error)) (n int, err error) {
	err = retry(func() (err error) {
		n, err = f()
		return err
	})
	return n, err
}
