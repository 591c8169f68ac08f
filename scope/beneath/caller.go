package beneath

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Caller holds the credentials of the process that made a request. Identity
// "caller" runs file operations with them.
type Caller struct {
	UID, GID uint32
	Groups   []uint32
}

// Do runs f on a thread that has the caller's file system user id, file system
// group id and supplementary groups. If the user id is not 0, the thread has no
// file system capabilities while f runs: setfsuid(2), capabilities(7). Linux
// credentials belong to a thread. Do uses raw system calls, which change only
// the calling thread. It returns EPERM if the thread cannot take the ids.
func (c Caller) Do(f func() error) error {
	runtime.LockOSThread()
	// Deferred: a recovered panic in f must not leave a thread with the
	// caller's credentials.
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

// Unprivileged runs f on a thread that has no file system capabilities,
// whatever the identity of the request. The kernel keeps the credentials of
// some calls, such as the registration of a FUSE passthrough backing file.
// Those credentials must not include CAP_FSETID.
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

// drop restores the thread's own credentials. If that fails, the thread stays
// locked to its goroutine and exits with it.
func (c Caller) drop() {
	setfs(unix.SYS_SETFSUID, 0)
	setfs(unix.SYS_SETFSGID, 0)
	if setGroups(nil) == nil && isfs(unix.SYS_SETFSUID, 0) && isfs(unix.SYS_SETFSGID, 0) {
		runtime.UnlockOSThread()
	}
}

// threadCaller returns the credentials that Do has given to the calling thread. Where a seccomp filter denies the calls,
// because the process serves no callers, it returns the same value on each thread.
func threadCaller() Caller {
	var groups []uint32
	if n, _, errno := unix.RawSyscall(unix.SYS_GETGROUPS, 0, 0, 0); errno == 0 && n > 0 {
		groups = make([]uint32, n)
		_, _, _ = unix.RawSyscall(unix.SYS_GETGROUPS, n, uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0)
	}
	return Caller{UID: setfs(unix.SYS_SETFSUID, ^uint32(0)), GID: setfs(unix.SYS_SETFSGID, ^uint32(0)), Groups: groups}
}

// setfs calls setfsuid(2) or setfsgid(2), which report no error, and returns
// the previous id.
func setfs(call uintptr, id uint32) uint32 {
	old, _, _ := unix.RawSyscall(call, uintptr(id), 0, 0)
	return uint32(old)
}

// isfs reports whether the thread has the id. Setting -1 changes nothing and
// returns the current id.
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
