// Package mounts clones the mount of a scope's directory, and mounts one scope's directory on another's. It is for the process that
// starts others: these get what [Detach] returns, and need no such right.
package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// ErrApart reports that no mount holds both directories beside one another:
// see DetachWith.
var ErrApart = errors.New("the two directories are not beside one another in one mount")

// Detach returns a descriptor of a detached private bind mount of the scope's
// directory. The mount has MOUNT_ATTR_NODEV, NOSUID and NOSYMFOLLOW. Mounts
// made later on the host do not propagate to it. Detach needs CAP_SYS_ADMIN in
// the mount namespace: open_tree(2), mount_setattr(2).
func Detach(r *beneath.Root) (int, error) { return detach(r.FD()) }

// Pair is a detached mount with two directories in it. The holder of a Pair must
// close its descriptors.
type Pair struct {
	Mount  int // the root of the mount: the nearest directory that holds both
	Scope  int // O_PATH
	Beside int // O_PATH
}

// DetachWith is Detach of the nearest directory that holds both r and beside, so
// that renameat2(2) and linkat(2) work between the two. A process that has only
// the two directories of a Pair reaches all of the mount by "..".
//
// The error matches ErrApart if no such mount exists: the directories are in
// different mounts, or one of them is in the other. If the host renames one of them
// meanwhile, the error is beneath.ErrStale or wraps ENOENT.
func DetachWith(r, beside *beneath.Root) (Pair, error) {
	names, mounts := [2]string{}, [2]uint64{}
	for i, dir := range []*beneath.Root{r, beside} {
		var err error
		if names[i], mounts[i], err = place(dir); err != nil {
			return Pair{}, err
		}
	}
	common := commonDir(names[0], names[1])
	if mounts[0] != mounts[1] || common == names[0] || common == names[1] {
		return Pair{}, ErrApart
	}
	top, err := beneath.OpenDir(common)
	if err != nil {
		return Pair{}, err
	}
	defer top.Close()
	if _, at, err := place(top); err != nil || at != mounts[0] {
		return Pair{}, beneath.ErrStale
	}
	p := Pair{Mount: -1, Scope: -1, Beside: -1}
	p.Mount, err = detach(top.FD())
	if err == nil {
		p.Scope, err = within(r, p.Mount, names[0][len(common):])
	}
	if err == nil {
		p.Beside, err = within(beside, p.Mount, names[1][len(common):])
	}
	if err != nil {
		p.Close()
		return Pair{}, err
	}
	return p, nil
}

// Close closes the descriptors.
func (p Pair) Close() {
	for _, fd := range []int{p.Mount, p.Scope, p.Beside} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// place returns the absolute path of the directory at this moment, and the id of its
// mount. The path serves to find the directory again and to compare it, never to trust it.
func place(r *beneath.Root) (name string, mount uint64, err error) {
	st, err := beneath.NewFile(r.FD()).Stat()
	if err == nil {
		name, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", r.FD())) // proc_pid_fd(5)
	}
	if err != nil {
		return "", 0, fmt.Errorf("place of the scope: %w", err)
	}
	if !filepath.IsAbs(name) || st.Mask&unix.STATX_MNT_ID == 0 {
		return "", 0, beneath.ErrStale
	}
	return name, st.Mnt_id, nil
}

// commonDir returns the nearest directory that holds both absolute paths.
func commonDir(a, b string) string {
	for a != b && !strings.HasPrefix(b, strings.TrimSuffix(a, "/")+"/") {
		a = filepath.Dir(a)
	}
	return a
}

// within opens the directory of r, at rel beneath the root of a mount.
func within(r *beneath.Root, mount int, rel string) (int, error) {
	dir, err := beneath.NewRoot(mount).Dir(strings.Trim(rel, "/"))
	if err != nil {
		return -1, err
	}
	is, err := dir.Self().Stat()
	meant, wrong := beneath.NewFile(r.FD()).Stat()
	if err = errors.Join(err, wrong); err == nil && is.ID() != meant.ID() {
		err = beneath.ErrStale
	}
	if err != nil {
		dir.Close()
		return -1, err
	}
	return dir.Self().FD(), nil
}

func detach(dir int) (int, error) {
	fd, err := unix.OpenTree(dir, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err == unix.EINVAL {
		// In an unprivileged user's namespace the mounts below the directory
		// are locked, and only a recursive clone is allowed. Path resolution
		// does not cross them.
		fd, err = unix.OpenTree(dir, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	}
	if err != nil {
		return -1, fmt.Errorf("clone the scope's mount: %w", err)
	}
	attr := unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOSYMFOLLOW,
		Propagation: unix.MS_PRIVATE,
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("confine the scope's mount: %w", err)
	}
	return fd, nil
}
