package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

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

// asides are the mounts below aside.
type asides struct {
	mounts map[string]*os.File // mounts that are attached nowhere, by their place
	apart  []*os.File          // see plan.apart
	as     *syscall.Credential // the agent's user; nil: this process's
}

// asides returns the mounts of Spec.Context and Spec.Home, and what the plan wants of
// Spec.Expose. The caller closes them.
func (s *Spec) asides(p *plan, as *syscall.Credential) (asides, error) {
	all := asides{mounts: map[string]*os.File{}, apart: p.apart, as: as}
	var err error
	if s.Context != nil {
		if all.mounts[asideContext], err = dup(s.Context); err != nil {
			return asides{}, err
		}
	}
	if s.Home != nil {
		// In our mount namespace: open_tree(2) clones no mount of another.
		if all.mounts[asideHome], err = detached(s.Home, 0); err != nil {
			all.close()
			return asides{}, fmt.Errorf("mount %s: %w", Home, err)
		}
	}
	return all, nil
}

func (a asides) none() bool { return len(a.mounts)+len(a.apart) == 0 }

func (a asides) close() {
	for _, f := range a.mounts {
		if f != nil {
			f.Close()
		}
	}
}

// attach mounts them in the mount namespace of the calling thread, but for what is apart.
func (a asides) attach() error {
	if a.none() {
		return nil
	}
	// bwrap reads the table of mounts for each file that it binds. In a user namespace the kernel keeps mounts of the host.
	_ = unix.Unmount(aside, unix.MNT_DETACH)
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("scopefs", aside, "tmpfs", flags, "mode=0755,size=64k"); err != nil {
		return fmt.Errorf("mount a directory for the mounts of a sandbox: %w", err)
	}
	for at, mount := range a.mounts {
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

// detached returns a mount of a file that is attached nowhere, with more attributes: open_tree(2). What is
// mounted below a directory is not in it, and set-id bits and devices have no effect.
func detached(file *os.File, more uint64) (*os.File, error) {
	fd, err := unix.OpenTree(int(file.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.EPERM) {
		return nil, &MissingError{"no right to mount it (" + err.Error() + ")", "run the daemon with CAP_SYS_ADMIN"}
	}
	if err != nil {
		return nil, fmt.Errorf("open_tree: %w", err)
	}
	f := os.NewFile(uintptr(fd), file.Name())
	attr := unix.MountAttr{Attr_set: more | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		f.Close()
		return nil, fmt.Errorf("mount_setattr: %w", err)
	}
	return f, nil
}
