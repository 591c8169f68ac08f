package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// aside is where bwrap finds mounts that have no path on the host, or none that the
// agent's user reaches. Only bwrap is in the mount namespace that has them there: every
// host has the directory, and no sandbox shows it.
const (
	aside        = "/sys"
	asideContext = aside + "/context"
	asideHome    = aside + "/home"
)

// asides are mounts that are attached nowhere, by their place below aside.
type asides map[string]*os.File

// asides returns the mounts of Spec.Context and Spec.Home. The caller closes them.
func (s *Spec) asides() (asides, error) {
	all := asides{}
	var err error
	if s.Context != nil {
		if all[asideContext], err = dup(s.Context); err != nil {
			return nil, err
		}
	}
	if s.Home != nil {
		// In our mount namespace: open_tree(2) clones no mount of another.
		if all[asideHome], err = detached(s.Home); err != nil {
			all.close()
			return nil, fmt.Errorf("mount %s: %w", Home, err)
		}
	}
	return all, nil
}

func (a asides) close() {
	for _, f := range a {
		if f != nil {
			f.Close()
		}
	}
}

// attach mounts them in the mount namespace of the calling thread.
func (a asides) attach() error {
	if len(a) == 0 {
		return nil
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("scopefs", aside, "tmpfs", flags, "mode=0755,size=64k"); err != nil {
		return fmt.Errorf("mount a directory for the mounts of a sandbox: %w", err)
	}
	for at, mount := range a {
		err := unix.Mkdir(at, 0o755)
		if err == nil {
			err = unix.MoveMount(int(mount.Fd()), "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
		}
		if err != nil {
			return fmt.Errorf("mount /%s: %w", filepath.Base(at), err)
		}
	}
	return nil
}

// detached returns a mount of a directory that is attached nowhere: open_tree(2). What is
// mounted below the directory is not in it, and set-id bits and devices have no effect.
func detached(dir *os.File) (*os.File, error) {
	fd, err := unix.OpenTree(int(dir.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.EPERM) {
		return nil, &MissingError{"no right to mount it (" + err.Error() + ")", "run the daemon with CAP_SYS_ADMIN"}
	}
	if err != nil {
		return nil, fmt.Errorf("open_tree: %w", err)
	}
	f := os.NewFile(uintptr(fd), dir.Name())
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		f.Close()
		return nil, fmt.Errorf("mount_setattr: %w", err)
	}
	return f, nil
}
