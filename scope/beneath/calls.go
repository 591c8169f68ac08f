package beneath

import (
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// shortPath is a buffer for a path on the stack. With it, openat2 and statx do
// not allocate on the heap.
type shortPath [512]byte

// set copies s and its NUL into p. It returns false if s is too long or
// contains a NUL.
func (p *shortPath) set(s string) (ok bool) {
	if len(s) >= len(p) || strings.IndexByte(s, 0) >= 0 {
		return false
	}
	copy(p[:], s) // the rest is zero
	return true
}

// callOpenat2 calls openat2(2).
func callOpenat2(at int, path string, how *unix.OpenHow) (int, error) {
	var p shortPath
	if !p.set(path) {
		return unix.Openat2(at, path, how)
	}
	fd, _, errno := unix.Syscall6(unix.SYS_OPENAT2, uintptr(at), uintptr(unsafe.Pointer(&p)), uintptr(unsafe.Pointer(how)), unsafe.Sizeof(*how), 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// callStatx calls statx(2).
func callStatx(at int, path string, flags, mask int, st *unix.Statx_t) error {
	var p shortPath
	if !p.set(path) {
		return unix.Statx(at, path, flags, mask, st)
	}
	_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(at), uintptr(unsafe.Pointer(&p)), uintptr(flags), uintptr(mask), uintptr(unsafe.Pointer(st)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
