package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusedev"
	"github.com/scopefs/scopefs/scope"
)

// fsType is what /proc/mounts shows; the source is "scopefs:<id>".
const fsType = "fuse.scopefs"

func source(id scope.ID) string { return "scopefs:" + string(id) }

// openDevice creates the mount of a view, which is attached nowhere yet: a view is
// seen only once it is served.
func openDevice(id scope.ID, owner user, shared bool) (*fusedev.Device, error) {
	return fusedev.Open(fusedev.MountOptions{Source: source(id), UID: owner.uid, GID: owner.gid, AllowOther: shared})
}

// attach mounts a view at a directory. Where a dead view of the agent still is, the
// new one replaces it, so that nobody sees what both hide. Before Linux 6.5 the
// directory is empty for a moment.
func attach(dev *fusedev.Device, id scope.ID, at string) error {
	stale, err := unmountStale(id, at, 1)
	if err != nil {
		return err
	}
	if stale {
		if err := dev.Replace(at); err == nil {
			return nil
		}
		if _, err := unmountStale(id, at, 0); err != nil {
			return err
		}
	}
	return dev.Attach(at)
}

// mountPoint makes sure that at is a directory on which nothing is mounted but,
// perhaps, a view that an earlier daemon left, and that nobody writes to it while
// no view is there. It returns how many entries the view will hide.
func (d *Daemon) mountPoint(id scope.ID, at string) (hidden int, err error) {
	mounted, err := mountsAt(at)
	if err != nil {
		return 0, err
	}
	if len(mounted) > 0 {
		top := mounted[len(mounted)-1]
		// ENOTCONN: dead, and attach replaces it. One that lives is another daemon's.
		// The kernel may have the answer of either in its cache: FORCE_SYNC.
		// EACCES: the mount admits its user alone, dead or alive. In a place of ours it
		// is dead: the run directory is locked, and the agent has no view.
		err := unix.Statx(unix.AT_FDCWD, at, unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &unix.Statx_t{})
		dead := errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.EACCES) && (filepath.Dir(at) == d.paths.Views() || d.placeOf(id) == at)
		if dead && top.FSType == fsType && top.Source == source(id) {
			return 0, nil
		}
		return 0, fmt.Errorf("mount point %q has %s mounted on it: choose another with --at", at, top.FSType)
	}
	if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return 0, fmt.Errorf("mount point: %w", err)
	}
	entries, err := os.ReadDir(at)
	if err != nil {
		return 0, fmt.Errorf("mount point: %w", err)
	}
	if d.only == "" { // else the mount is in a namespace of its own
		if err := immutable(at, true); err != nil {
			d.logger.Debug("mount point can be written to while no view is there", "at", at, "err", err)
		}
	}
	return len(entries), nil
}

// release lets others write to a mount point again, and removes one of our own.
// It does nothing while a mount is there.
func (d *Daemon) release(at string) {
	if mounted, err := mountsAt(at); err != nil || len(mounted) > 0 {
		return
	}
	_ = immutable(at, false)
	if filepath.Dir(at) == d.paths.Views() {
		_ = unix.Rmdir(at)
	}
}

const immutableFlag = 0x10 // FS_IMMUTABLE_FL, linux/fs.h

// immutable sets or clears the flag by which not even root makes, renames or
// removes what is in a directory; ioctl_iflags(2). Not every file system has it.
func immutable(dir string, on bool) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	want := flags &^ immutableFlag
	if on {
		want |= immutableFlag
	}
	if want == flags {
		return nil
	}
	return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(want))
}

// unmountStale takes down views of this agent that no process serves any more,
// but for so many, and tells whether one is left.
func unmountStale(id scope.ID, at string, leave int) (left bool, err error) {
	for {
		mounts, err := mountsAt(at)
		if err != nil {
			return false, err
		}
		n := 0
		for i := len(mounts) - 1; i >= 0 && mounts[i].FSType == fsType && mounts[i].Source == source(id); i-- {
			n++
		}
		if n <= leave {
			return n > 0, nil
		}
		if err := fusedev.Detach(at); err != nil {
			return false, err
		}
	}
}

// nothingElse fails when the host has mounted something over a view or within
// it: a sandbox would take it along, for bubblewrap binds what is below as well.
func nothingElse(all []*mountinfo.Info, id scope.ID, at string) error {
	for _, m := range all {
		ours := m.FSType == fsType && m.Source == source(id)
		if m.Mountpoint == at && !ours || strings.HasPrefix(m.Mountpoint, at+"/") {
			return fmt.Errorf("%s is mounted in the view, at %q: unmount it first", m.FSType, m.Mountpoint)
		}
	}
	return nil
}

// mountsAt returns what is mounted on a directory, the top one last.
func mountsAt(at string) ([]*mountinfo.Info, error) {
	if dir, err := filepath.EvalSymlinks(filepath.Dir(at)); err == nil {
		at = filepath.Join(dir, filepath.Base(at))
	}
	// There may be thousands of other mounts, and here is mostly none.
	if root, err := isMountRoot(at); err == nil && !root {
		return nil, nil
	}
	return mountinfo.GetMounts(mountinfo.SingleEntryFilter(at))
}
