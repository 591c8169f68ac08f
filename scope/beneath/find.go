package beneath

import (
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// FindFlags are the flags of Find's unshare(2) call. A seccomp filter must
// allow them.
const FindFlags = unix.CLONE_FS

// Find returns the current path of an open directory, relative to the root. The
// path is a hint: the caller must compare the identity of the object there.
// Find returns ErrStale if the directory is removed or outside the root.
//
// The kernel returns the path of a thread's working directory from the dentry
// cache: getcwd(2). Find uses a thread with its own working directory
// (unshare(2)), which then exits. The working directory of the process does not
// change.
func (r *Root) Find(dir File) (rel string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread exits with the goroutine
		var top, at string
		if err = unix.Unshare(FindFlags); err == nil {
			top, err = pathOf(r.fd)
		}
		if err == nil {
			at, err = pathOf(dir.fd)
		}
		if err != nil {
			return
		}
		top = strings.TrimSuffix(top, "/")
		var below bool
		if rel, below = strings.CutPrefix(at, top+"/"); !below && at != top {
			err = ErrStale
		}
	}()
	<-done
	return rel, err
}

// pathOf changes the thread's working directory to fd and returns its path.
func pathOf(fd int) (string, error) {
	if err := retry(func() error { return unix.Fchdir(fd) }); err != nil {
		return "", err
	}
	buf := make([]byte, pathMax+1)
	n, err := unix.Getcwd(buf)
	if err != nil || n < 2 || buf[0] != '/' { // "(unreachable)": outside of this process's root
		return "", fmt.Errorf("%w: no path", ErrStale)
	}
	return string(buf[:n-1]), nil
}
