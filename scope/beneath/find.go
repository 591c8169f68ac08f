package beneath

import (
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// FindFlags are the flags with which Find calls unshare(2), for who filters system
// calls.
const FindFlags = unix.CLONE_FS

// Find returns the path of an open directory relative to the root, wherever it was
// moved since it was opened. The path is a hint: what stands there must be asked
// for its identity. ErrStale when the directory is removed or outside of the root.
//
// The kernel tells a thread the path of its working directory (getcwd(2)), from its
// own cache and without a walk. The thread has that directory for itself
// (unshare(2)) and ends; the process stays where it is.
func (r *Root) Find(dir File) (rel string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
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

// pathOf makes a directory the thread's working directory and returns its path.
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
