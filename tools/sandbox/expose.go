package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// A sandbox sees an exposed directory through an overlay, whose other layer is empty, and so
// without the host's sockets. An inode of an overlay is not the inode below it: connect(2)
// finds no listener (unix(7)), and a FIFO is another pipe. A read-only bind mount stops
// neither. The overlay has the modes and owners of the files below it, and the kernel
// checks them for the process that opens a file, and then for the process that has mounted
// the overlay: Documentation/filesystems/overlayfs.rst, "Permission model".

const (
	asideExposed = aside + "/exposed"
	asideEmpty   = aside + "/empty" // the second layer: the kernel wants two, or one to write to
)

func apartAt(i int) string { return fmt.Sprintf("%s/%d", asideExposed, i) }

// exposeApart mounts the directories of apart below asideExposed, after attach. It mounts
// as the agent's user, so that an overlay opens no file that this user could not open.
func (a asides) exposeApart() error {
	if len(a.apart) == 0 {
		return nil
	}
	for _, dir := range []string{asideEmpty, asideExposed} {
		if err := errors.Join(unix.Mkdir(dir, 0o755), unix.Chmod(dir, 0o755)); err != nil { // whatever the umask
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	for i, dir := range a.apart {
		at := apartAt(i)
		err := unix.Mkdir(at, 0o755)
		switch {
		case err != nil:
		case a.as == nil:
			err = overlay(dir, at)
		default:
			err = beneath.Caller{UID: a.as.Uid, GID: a.as.Gid}.Do(func() error { return overlay(dir, at) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// overlay mounts an overlay of one directory. The directory is opened again in the calling
// thread's mount namespace, without which the kernel takes it for no layer. It must be the same:
// the plan was made for it.
func overlay(meant *os.File, at string) error {
	name := meant.Name()
	f, dir, err := openExposed(name, false)
	if err != nil {
		return err
	}
	defer f.Close()
	fail := func(why error) error {
		return fmt.Errorf("%w: expose %q: %w: %s", ErrInvalid, name, why, withSockets(name))
	}
	if same, err := sameFile(meant, f); err != nil || !same || !dir {
		return fail(errors.Join(errors.New("the host has replaced it meanwhile"), err))
	}
	// A layer has no mounts: what they cover would be seen.
	real, err := os.Readlink(procPath(f))
	if err != nil {
		return fmt.Errorf("expose %q: %w", name, err)
	}
	below, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return !strings.HasPrefix(m.Mountpoint, real+"/"), false })
	if err != nil {
		return fmt.Errorf("expose %q: %w", name, err)
	}
	if len(below) > 0 {
		return fail(fmt.Errorf("%s is mounted below it, and then sockets cannot be kept out", below[0].Mountpoint))
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("expose %q: %w", name, err)
	}
	flags := uintptr(unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV)
	if st.Flags&unix.ST_NOEXEC != 0 {
		flags |= unix.MS_NOEXEC
	}
	err = unix.Mount("scopefs", at, "overlay", flags, "lowerdir="+procPath(f)+":"+asideEmpty)
	if errors.Is(err, unix.ENODEV) {
		return &MissingError{"the kernel has no overlayfs, which keeps sockets out of " + name, "modprobe overlay, or " + withSockets(name)}
	}
	if err != nil {
		return fail(fmt.Errorf("an overlay keeps sockets out, and this file system is no layer for one (%w)", err))
	}
	return nil
}

// sameFile reports whether two descriptors have one file.
func sameFile(a, b *os.File) (bool, error) {
	x, err := a.Stat()
	y, err2 := b.Stat()
	if err := errors.Join(err, err2); err != nil {
		return false, err
	}
	return os.SameFile(x, y), nil
}
