package serve

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// enterBeside makes root the root directory of this process and history its working directory. Both are directories of
// mount, which the caller has made the only one of this mount namespace besides its covers: every directory of the mount
// above root or history has an empty file system mounted on it. The ".." of both directories leads there, because the kernel
// crosses into what is mounted on a parent: path_resolution(7). enterBeside closes mount.
//
// A directory that a process of the host moves out of both while this process holds a descriptor of it has a ".." in the
// mount. Landlock denies to open what is there.
func enterBeside(root, history, mount int) error {
	if err := coverAbove(root, history); err != nil {
		return fmt.Errorf("cover what is above the scope and the history: %w", err)
	}
	for _, dir := range []int{root, history} {
		if err := checkCovered(dir); err != nil {
			return err
		}
	}
	if err := unix.Close(mount); err != nil {
		return err
	}
	if err := unix.Fchdir(root); err != nil {
		return fmt.Errorf("enter the scope: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("make the scope the root: %w", err)
	}
	if err := unix.Fchdir(history); err != nil {
		return fmt.Errorf("enter the history: %w", err)
	}
	return checkCovered(history)
}

// coverAbove mounts an empty file system on every directory above the given ones, the deepest first. The process's root
// directory is that of their mount.
func coverAbove(dirs ...int) error {
	var above []*parent
	defer func() {
		for _, p := range above {
			unix.Close(p.fd)
		}
	}()
	for _, dir := range dirs {
		part, err := climb(dir, above)
		above = append(part, above...) // what is above both comes last
		if err != nil {
			return err
		}
	}
	cover, err := newCover()
	if err != nil {
		return err
	}
	defer unix.Close(cover)
	for i, p := range above {
		next := cover
		if i > 0 { // the same file system once more
			if next, err = unix.OpenTree(cover, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH); err != nil {
				return err
			}
		}
		err := unix.MoveMount(next, "", p.fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
		if i > 0 {
			unix.Close(next)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// parent is a directory above another one.
type parent struct {
	fd int // O_PATH
	st unix.Statx_t
}

// climb returns the directories above dir, the nearest first, up to the root of the mount or to one that is known.
func climb(dir int, known []*parent) (all []*parent, err error) {
	for {
		p := &parent{}
		if p.fd, err = unix.Openat(dir, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return all, err
		}
		if err = lookAt(p.fd, "", &p.st); err != nil || slices.ContainsFunc(known, p.is) {
			unix.Close(p.fd)
			return all, err
		}
		all = append(all, p)
		if p.st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
			return all, nil
		}
		dir = p.fd
	}
}

func (p *parent) is(other *parent) bool {
	a, b := &p.st, &other.st
	return a.Dev_major == b.Dev_major && a.Dev_minor == b.Dev_minor && a.Ino == b.Ino
}

// newCover returns a detached mount of an empty file system that cannot be written to.
func newCover() (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	for key, value := range map[string]string{"size": "4k", "mode": "0"} {
		if err := unix.FsconfigSetString(fs, key, value); err != nil {
			return -1, fmt.Errorf("%s: %w", key, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	const attributes = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attributes)
}

// checkCovered returns an error if a ".." of dir, or one of that, is in the mount of dir. In a cover the process may have no
// right to go on.
func checkCovered(dir int) error {
	var own, up, top unix.Statx_t
	if err := lookAt(dir, "", &own); err != nil {
		return err
	}
	for path := ".."; ; path += "/.." {
		err := lookAt(dir, path, &up)
		switch {
		case errors.Is(err, unix.EACCES) && path != "..":
			return nil
		case err != nil:
			return err
		case up.Mnt_id == own.Mnt_id:
			return fmt.Errorf("%q of the scope or the history is not covered", path)
		case up.Ino == top.Ino && up.Mnt_id == top.Mnt_id: // the ".." of the topmost cover is itself
			return nil
		}
		top = up
	}
}

// lookAt reads the identity and the mount of a directory: statx(2).
func lookAt(fd int, path string, st *unix.Statx_t) error {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	if err := unix.Statx(fd, path, flags, unix.STATX_INO|unix.STATX_MNT_ID, st); err != nil {
		return err
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return unix.ENOSYS
	}
	return nil
}
