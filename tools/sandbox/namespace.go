package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// bwrapNeeds are what bwrap opens itself, and the devices that it binds for --dev.
var bwrapNeeds = []string{"/proc", "/usr", "/lib", "/lib64", "/etc/ld.so.cache",
	"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}

// needed returns the mounts at, above and below what a plan shows. It resolves symbolic links in the plan, because a link
// may lead through another mount. nil, that is all mounts, stands for a bwrap outside /usr: what it loads is not known.
func (h *Host) needed(p *plan, mounts []string) []string {
	if len(mounts) == 0 || !below(h.starter.bwrap, "/usr") || h.starter.locked.Load() {
		return nil
	}
	shown := slices.Clone(bwrapNeeds)
	for i, option := range p.args {
		switch option {
		case "--bind", "--ro-bind", "--ro-bind-try":
			source := &p.args[i+1]
			if slices.Contains(shown, *source) {
				continue
			}
			if real, err := filepath.EvalSymlinks(*source); err == nil {
				*source = real
			}
			shown = append(shown, *source)
		}
	}
	for _, f := range slices.Concat(p.files, p.apart) {
		if at, err := os.Readlink(procPath(f)); err == nil {
			shown = append(shown, at)
		}
	}
	return slices.DeleteFunc(slices.Clone(mounts), func(mount string) bool {
		return mount != "/" && !slices.ContainsFunc(shown, func(at string) bool { return below(at, mount) || below(mount, at) })
	})
}

// among calls start in a mount namespace that holds the given mounts alone. The fork thread calls it. bwrap reads the table of all mounts for each file that it
// binds, so that mounts that the sandbox has no use for would soon cost
// more than the sandbox. Where the namespace cannot be had, start runs in ours.
//
// With mounts beside, the namespace holds all mounts where it cannot hold the given ones
// alone; without a namespace start does not run.
func (s *starter) among(mounts []string, beside asides, start func() error) error {
	if len(mounts) == 0 && beside.none() {
		return start()
	}
	started, err := startIn(mounts, beside, start)
	if !started && errors.Is(err, unix.EINVAL) {
		s.locked.Store(true) // in the mount namespace of a user namespace: mount_namespaces(7)
	}
	if !started && !beside.none() && len(mounts) > 0 {
		started, err = startIn(nil, beside, start)
	}
	if !started {
		return startHere(beside, start, err)
	}
	return err
}

// comingBack returns a function that returns the calling thread to the mount namespace that it is in. The error says why the
// thread must not leave it.
func comingBack() (back func(), err error) {
	home, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, err
	}
	// That we may come back must be known before we go: setns(2) wants CAP_SYS_CHROOT.
	try := func() error { return unix.Setns(int(home.Fd()), unix.CLONE_NEWNS) }
	if err := errors.Join(unix.Unshare(unix.CLONE_FS), try()); err != nil {
		home.Close()
		return nil, err
	}
	return func() {
		defer home.Close()
		if lost := try(); lost != nil {
			panic(fmt.Sprintf("return to the mount namespace: %v", lost)) // cannot happen: it was ours a moment ago
		}
	}, nil
}

// startIn calls start in a new mount namespace, and returns to ours. Unless started, the
// error says why there is no such namespace.
func startIn(mounts []string, beside asides, start func() error) (started bool, err error) {
	back, err := comingBack()
	if err != nil {
		return false, err
	}
	defer back()
	if err := enter(mounts); err != nil {
		return false, err
	}
	if err := beside.attach(); err != nil {
		return false, err
	}
	if err := beside.exposeApart(); err != nil {
		return true, err // of the path, not of the namespace
	}
	return true, start()
}

// startHere calls start in our mount namespace, for want of another. There is no place
// for mounts beside in ours.
func startHere(beside asides, start func() error, why error) error {
	if beside.none() {
		return start()
	}
	return &MissingError{fmt.Sprintf("no mount namespace for %s, %s and what is exposed (%v)", Context, Home, why), "run the daemon with CAP_SYS_ADMIN and CAP_SYS_CHROOT"}
}

// enter moves the calling thread to a new mount namespace with these mounts, the
// first of which is "/" and parents come before children; none stands for all. The
// mounts are slaves of ours: what the host unmounts goes there as well, and nothing
// comes back.
func enter(mounts []string) error {
	if len(mounts) > 0 && mounts[0] != "/" {
		return errors.New("the first mount is not the root")
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make mounts slaves: %w", err)
	}
	if len(mounts) == 0 {
		return nil
	}
	clones := make([]int, 0, len(mounts))
	defer func() {
		for _, fd := range clones {
			unix.Close(fd)
		}
	}()
	for _, at := range mounts {
		fd, err := unix.OpenTree(unix.AT_FDCWD, at, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
		if err != nil {
			return fmt.Errorf("clone the mount at %q: %w", at, err)
		}
		clones = append(clones, fd)
	}
	root := clones[0]
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount the root: %w", err)
	}
	if err := unix.Fchdir(root); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	for i, at := range mounts[1:] {
		if err := unix.MoveMount(clones[i+1], "", root, strings.TrimPrefix(at, "/"), unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount %q: %w", at, err)
		}
	}
	if err := unix.PivotRoot(".", "."); err != nil { // pivot_root(2): "." may stand for both
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the old root: %w", err)
	}
	return unix.Chdir("/")
}
