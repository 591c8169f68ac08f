package beneath

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Caller is whose rights an operation runs with: identity "caller".
type Caller struct {
	UID, GID uint32
	Groups   []uint32
}

// Do runs f on a thread that for as long has the caller's file system user and
// group id and supplementary groups. With a user id other than 0 the thread
// has none of the file system capabilities meanwhile: setfsuid(2),
// capabilities(7). Credentials are a thread's own in Linux; the calls here are
// the raw ones, which change this thread alone.
func (c Caller) Do(f func() error) error {
	runtime.LockOSThread()
	// Deferred, so that a panic that somebody recovers from does not leave a
	// thread with the caller's rights behind.
	defer c.drop()
	if err := setGroups(c.Groups); err != nil {
		return fmt.Errorf("take the caller's groups: %w", err)
	}
	setfs(unix.SYS_SETFSGID, c.GID)
	setfs(unix.SYS_SETFSUID, c.UID)
	if !isfs(unix.SYS_SETFSUID, c.UID) || !isfs(unix.SYS_SETFSGID, c.GID) {
		return fmt.Errorf("take the caller's ids: %w", unix.EPERM)
	}
	return f()
}

// Unprivileged runs f on a thread that for as long has no file system capability,
// whoever the operation is for. What f hands to the kernel with its credentials,
// such as a backing file of FUSE passthrough, never has CAP_FSETID.
func Unprivileged(f func() error) error {
	const nobody = 65534
	runtime.LockOSThread()
	uid, gid := setfs(unix.SYS_SETFSUID, nobody), setfs(unix.SYS_SETFSGID, nobody)
	defer func() {
		setfs(unix.SYS_SETFSGID, gid)
		setfs(unix.SYS_SETFSUID, uid)
		if isfs(unix.SYS_SETFSUID, uid) && isfs(unix.SYS_SETFSGID, gid) {
			runtime.UnlockOSThread() // else the thread ends with its goroutine
		}
	}()
	if !isfs(unix.SYS_SETFSUID, nobody) || !isfs(unix.SYS_SETFSGID, nobody) {
		return fmt.Errorf("drop file system capabilities: %w", unix.EPERM)
	}
	return f()
}

// drop gives the thread its own rights back. One that cannot have them back is
// not fit for anyone else: it stays locked and ends with its goroutine.
func (c Caller) drop() {
	setfs(unix.SYS_SETFSUID, 0)
	setfs(unix.SYS_SETFSGID, 0)
	if setGroups(nil) == nil && isfs(unix.SYS_SETFSUID, 0) && isfs(unix.SYS_SETFSGID, 0) {
		runtime.UnlockOSThread()
	}
}

// setfs is setfsuid(2) or setfsgid(2), which report no error. It returns the
// previous id.
func setfs(call uintptr, id uint32) uint32 {
	old, _, _ := unix.RawSyscall(call, uintptr(id), 0, 0)
	return uint32(old)
}

// isfs reports whether the thread has the id: setting -1 changes nothing and
// returns the current one.
func isfs(call uintptr, id uint32) bool {
	now, _, _ := unix.RawSyscall(call, ^uintptr(0), 0, 0)
	return uint32(now) == id
}

func setGroups(groups []uint32) error {
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
