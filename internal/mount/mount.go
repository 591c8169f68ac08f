// Package mount mounts views, finds what is mounted, and checks whether this host can
// mount a view at all.
package mount

import (
	"fmt"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/scope"
)

// Type is the file system type of views in /proc/mounts; the source is "scopefs:<id>".
const Type = "fuse.scopefs"

const sourcePrefix = "scopefs:"

func source(id scope.ID) string { return sourcePrefix + string(id) }

// Agent returns the agent of a mounted view; ok is false for any other mount.
func Agent(m *mountinfo.Info) (id scope.ID, ok bool) {
	name, ok := strings.CutPrefix(m.Source, sourcePrefix)
	if !ok || m.FSType != Type {
		return "", false
	}
	id, err := scope.ParseID(name)
	return id, err == nil
}

// Other returns another place where the file system that is mounted at a directory is mounted, or "". It is the device that tells:
// another daemon's agent may have the same ID.
func Other(all []*mountinfo.Info, at string) string {
	for _, its := range all {
		if its.Mountpoint != at {
			continue
		}
		for _, m := range all {
			if m.Mountpoint != at && m.Major == its.Major && m.Minor == its.Minor {
				return m.Mountpoint
			}
		}
	}
	return ""
}

// Open creates the mount of a view. With gate the kernel checks modes, as in a shared one: see fs.Options. It is attached nowhere yet: a view is seen only
// once it is served.
func Open(id scope.ID, uid, gid uint32, shared, gate bool) (*fusemount.Device, error) {
	return fusemount.Open(fusemount.MountOptions{Source: source(id), UID: uid, GID: gid, AllowOther: shared, Modes: gate})
}

// Attach mounts a view at a directory. Where a dead view of the agent still is, the
// new one replaces it, so that nobody sees what both hide. Before Linux 6.5 the
// directory is empty for a moment.
func Attach(dev *fusemount.Device, id scope.ID, at string) error {
	stale, err := UnmountStale(id, at, 1)
	if err != nil {
		return err
	}
	if stale {
		if err := dev.Replace(at); err == nil {
			return nil
		}
		if _, err := UnmountStale(id, at, 0); err != nil {
			return err
		}
	}
	return dev.Attach(at)
}

const immutableFlag = 0x10 // FS_IMMUTABLE_FL, linux/fs.h

// Immutable sets or clears the flag that keeps even root from creating, renaming or
// removing entries of a directory; ioctl_iflags(2). Not every file system has it.
func Immutable(dir string, on bool) error {
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

// UnmountStale unmounts the views of an agent at a directory, which no process serves
// any more, until at most leave are left. It reports whether one is left.
func UnmountStale(id scope.ID, at string, leave int) (left bool, err error) {
	for {
		mounts, err := At(at)
		if err != nil {
			return false, err
		}
		n := 0
		for i := len(mounts) - 1; i >= 0 && mounts[i].FSType == Type && mounts[i].Source == source(id); i-- {
			n++
		}
		if n <= leave {
			return n > 0, nil
		}
		if err := fusemount.Detach(at); err != nil {
			return false, err
		}
	}
}

// CheckAlone fails when the host has mounted something over a view or within it: a
// sandbox would show it, because bubblewrap binds the mounts below as well.
func CheckAlone(all []*mountinfo.Info, id scope.ID, at string) error {
	for _, m := range all {
		ours := m.FSType == Type && m.Source == source(id)
		if m.Mountpoint == at && !ours || strings.HasPrefix(m.Mountpoint, at+"/") {
			return fmt.Errorf("%s is mounted in the view, at %q: unmount it first", m.FSType, m.Mountpoint)
		}
	}
	return nil
}

// At returns the mounts on a directory, the top one last.
func At(at string) ([]*mountinfo.Info, error) {
	var t Table
	defer func() { t.file.Close() }() // nil has nothing to close
	return t.At(at)
}

// Release lets others write to a mount point again, and removes the directory if it
// is our own. It does nothing while a mount is there.
func Release(at string, own bool) {
	if mounted, err := At(at); err != nil || len(mounted) > 0 {
		return
	}
	_ = Immutable(at, false)
	if own {
		_ = unix.Rmdir(at)
	}
}
