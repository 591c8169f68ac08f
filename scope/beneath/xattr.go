package beneath

import (
	"bytes"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DefaultACL is the extended attribute that holds a directory's default ACL,
// acl(5). Where a directory has one, the umask does not apply: umask(2).
const DefaultACL = ACLs + "default"

// ACLs begins the names of the extended attributes that hold ACLs, and AccessACL is that of an object: acl(5).
const (
	ACLs      = "system.posix_acl_"
	AccessACL = ACLs + "access"
)

// Getxattr reads attribute attr into p and returns its size in bytes. With an
// empty p it returns only the size. It returns ERANGE if p is too small.
func (f File) Getxattr(attr string, p []byte) (int, error) {
	return again(func() (int, error) { return unix.Fgetxattr(f.fd, attr, p) })
}

// Listxattr reads the attribute names into p, each terminated by a NUL, and
// returns their size in bytes. Sizes and errors are those of Getxattr.
func (f File) Listxattr(p []byte) (int, error) {
	return again(func() (int, error) { return unix.Flistxattr(f.fd, p) })
}

// Setxattr sets attribute attr to p. flags are XATTR_CREATE and XATTR_REPLACE.
func (f File) Setxattr(attr string, p []byte, flags int) error {
	return retry(func() error { return unix.Fsetxattr(f.fd, attr, p, flags) })
}

// Removexattr removes attribute attr.
func (f File) Removexattr(attr string) error {
	return retry(func() error { return unix.Fremovexattr(f.fd, attr) })
}

// ReplaceXattrs gives the file the extended attributes want in place of now.
func (f File) ReplaceXattrs(now, want map[string][]byte) error {
	for name := range now {
		if _, ok := want[name]; !ok {
			if err := f.Removexattr(name); err != nil {
				return err
			}
		}
	}
	for name, value := range want {
		if old, ok := now[name]; ok && bytes.Equal(old, value) {
			continue
		}
		if err := f.Setxattr(name, value, 0); err != nil {
			return err
		}
	}
	return nil
}

// UserXattrs returns the attributes that users may set: those of "user." but for "user.overlay.", and the ACLs. It returns nil if they cannot be
// read, or are larger than limit bytes.
func (f File) UserXattrs(limit int) map[string][]byte {
	list := make([]byte, 64<<10) // XATTR_LIST_MAX
	n, err := f.Listxattr(list)
	if err != nil {
		return nil
	}
	all, total := map[string][]byte{}, 0
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		if strings.HasPrefix(name, "user.overlay.") { // they would mean something to an overlay above
			continue
		}
		if !strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "system.posix_acl_") {
			continue
		}
		size, err := f.Getxattr(name, nil)
		if err != nil {
			continue
		}
		if total += len(name) + size; total > limit {
			return nil
		}
		value := make([]byte, size)
		if size, err = f.Getxattr(name, value); err == nil {
			all[name] = value[:size]
		}
	}
	return all
}

// Name is a name in a directory. Its methods access the extended attributes of
// objects that cannot be opened, because an O_PATH descriptor does not give
// access to attributes. They call getxattrat(2) and its relatives, and follow no
// symbolic link. Before Linux 6.13, which has none of these calls, each method
// takes a thread: see inside.
type Name struct {
	Dir  Dir
	Base string // "." for the directory itself
}

// xattrArgs is struct xattr_args of linux/xattr.h.
type xattrArgs struct {
	value uint64
	size  uint32
	flags uint32
}

// Getxattr is like File.Getxattr.
func (n Name) Getxattr(attr string, p []byte) (int, error) {
	size, err := n.call(unix.SYS_GETXATTRAT, attr, p, 0)
	if err == unix.ENOSYS {
		return n.inside(func() (int, error) { return unix.Lgetxattr(n.Base, attr, p) })
	}
	return size, err
}

// Setxattr is like File.Setxattr.
func (n Name) Setxattr(attr string, p []byte, flags int) error {
	_, err := n.call(unix.SYS_SETXATTRAT, attr, p, flags)
	if err == unix.ENOSYS {
		_, err = n.inside(func() (int, error) { return 0, unix.Lsetxattr(n.Base, attr, p, flags) })
	}
	return err
}

// Listxattr is like File.Listxattr.
func (n Name) Listxattr(p []byte) (int, error) {
	base, err := unix.BytePtrFromString(n.Base)
	if err != nil {
		return 0, err
	}
	size, err := again(func() (int, error) {
		size, _, errno := unix.Syscall6(unix.SYS_LISTXATTRAT, uintptr(n.Dir.fd), uintptr(unsafe.Pointer(base)), unix.AT_SYMLINK_NOFOLLOW,
			uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), 0)
		return result(size, errno)
	})
	if err == unix.ENOSYS {
		return n.inside(func() (int, error) { return unix.Llistxattr(n.Base, p) })
	}
	return size, err
}

// Removexattr is like File.Removexattr.
func (n Name) Removexattr(attr string) error {
	base, err := unix.BytePtrFromString(n.Base)
	if err != nil {
		return err
	}
	name, err := unix.BytePtrFromString(attr)
	if err != nil {
		return err
	}
	_, err = again(func() (int, error) {
		r, _, errno := unix.Syscall6(unix.SYS_REMOVEXATTRAT, uintptr(n.Dir.fd), uintptr(unsafe.Pointer(base)), unix.AT_SYMLINK_NOFOLLOW,
			uintptr(unsafe.Pointer(name)), 0, 0)
		return result(r, errno)
	})
	if err == unix.ENOSYS {
		_, err = n.inside(func() (int, error) { return 0, unix.Lremovexattr(n.Base, attr) })
	}
	return err
}

// XattrsAt reports whether the kernel has getxattrat(2) and its relatives. Without them the methods of Name need
// unshare(2) with CLONE_FS, fchdir(2), lgetxattr(2) and its relatives, and for a [Caller] getgroups(2).
func XattrsAt() bool {
	_, err := Name{Dir{fd: -1}, "."}.call(unix.SYS_GETXATTRAT, AccessACL, nil, 0)
	return err != unix.ENOSYS
}

// inside calls f on a thread that has the directory as its working directory, and the credentials of the calling thread.
// The thread ends with the call: no other code sees that working directory.
func (n Name) inside(f func() (int, error)) (size int, err error) {
	who, done := threadCaller(), make(chan struct{})
	enter := func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil { // threads share a working directory: clone(2)
			return err
		}
		if err := unix.Fchdir(n.Dir.fd); err != nil {
			return err
		}
		size, err = again(f)
		return err
	}
	go func() {
		defer close(done)
		runtime.LockOSThread() // a goroutine that never unlocks ends its thread
		if now := threadCaller(); now.UID == who.UID && now.GID == who.GID && slices.Equal(now.Groups, who.Groups) {
			err = enter()
		} else {
			err = who.Do(enter)
		}
	}()
	<-done
	return size, err
}

// call calls getxattrat(2) or setxattrat(2).
func (n Name) call(number uintptr, attr string, value []byte, flags int) (int, error) {
	base, err := unix.BytePtrFromString(n.Base)
	if err != nil {
		return 0, err
	}
	name, err := unix.BytePtrFromString(attr)
	if err != nil {
		return 0, err
	}
	// args holds the address as a number, which the garbage collector does not
	// track.
	var pin runtime.Pinner
	defer pin.Unpin()
	if len(value) > 0 {
		pin.Pin(unsafe.SliceData(value))
	}
	args := xattrArgs{value: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(value)))), size: uint32(len(value)), flags: uint32(flags)}
	return again(func() (int, error) {
		size, _, errno := unix.Syscall6(number, uintptr(n.Dir.fd), uintptr(unsafe.Pointer(base)), unix.AT_SYMLINK_NOFOLLOW,
			uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args))
		return result(size, errno)
	})
}

func result(n uintptr, errno unix.Errno) (int, error) {
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// again is retry for a function that also returns a number.
func again(f func() (int, error)) (n int, err error) {
	err = retry(func() (err error) {
		n, err = f()
		return err
	})
	return n, err
}
