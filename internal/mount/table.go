package mount

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// IsRoot reports whether something is mounted on a directory. The kernel answers
// without a request to the server of a FUSE mount: statx(2), STATX_ATTR_MOUNT_ROOT,
// since Linux 5.8.
func IsRoot(at string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, at, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, 0, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("mount point %q: %w", at, err)
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// Table caches /proc/self/mountinfo. It parses the file again only after a
// mount has changed, which poll(2) reports: proc_pid_mountinfo(5).
type Table struct {
	mu   sync.Mutex
	file *os.File
	all  []*mountinfo.Info
	last found // by FileSystem
}

// Read returns all mounts. The caller must not change them.
func (t *Table) Read() ([]*mountinfo.Info, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == nil {
		// Not by os.Open: the runtime's poller would consume the kernel's answer.
		fd, err := unix.Open("/proc/thread-self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("read the mounts: %w: mount /proc", err)
		}
		t.file = os.NewFile(uintptr(fd), "mountinfo")
	}
	changed := []unix.PollFd{{Fd: int32(t.file.Fd()), Events: unix.POLLPRI}}
	if n, err := unix.Poll(changed, 0); err == nil && n == 0 && t.all != nil {
		return t.all, nil
	}
	t.all = nil // what a failure leaves is read again
	if _, err := t.file.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the mounts: %w", err)
	}
	all, err := mountinfo.GetMountsFromReader(t.file, nil)
	if err == nil {
		t.all = all
	}
	return all, err
}

// At returns the mounts on a directory, the top one last.
func (t *Table) At(at string) ([]*mountinfo.Info, error) {
	if dir, err := filepath.EvalSymlinks(filepath.Dir(at)); err == nil {
		at = filepath.Join(dir, filepath.Base(at))
	}
	// The table may have thousands of mounts, and mostly none is here.
	if root, err := IsRoot(at); err == nil && !root {
		return nil, nil
	}
	all, err := t.Read()
	return slices.DeleteFunc(slices.Clone(all), func(m *mountinfo.Info) bool { return m.Mountpoint != at }), err
}

// fewMounts is the number of mounts below which a sandbox starts as fast among all of them.
const fewMounts = 16

// WithoutViews returns the mount points of all mounts but the views that are at
// other directories; nil when there are few mounts. Parents come before children.
func WithoutViews(all []*mountinfo.Info, at ...string) (kept []string) {
	if len(all) < fewMounts {
		return nil
	}
	for _, m := range all {
		if m.FSType != Type || slices.Contains(at, m.Mountpoint) {
			kept = append(kept, m.Mountpoint)
		}
	}
	slices.Sort(kept) // "/a" is before "/a/b"
	return slices.Compact(kept)
}
