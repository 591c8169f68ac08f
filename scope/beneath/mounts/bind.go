package mounts

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// Bind mounts a directory on the directory name of dir, above what is mounted there. The mount has MOUNT_ATTR_NODEV and
// NOSUID, and RDONLY with readOnly. It has nothing that is mounted below the directory, and mounts made there later do not
// propagate to it. No path is resolved again between the check of name and the mount: a name that becomes a symbolic
// link returns ELOOP or ENOTDIR. Bind needs CAP_SYS_ADMIN in the mount namespace: open_tree(2), move_mount(2).
func Bind(dir *beneath.Root, name string, of *beneath.Root, readOnly bool) error {
	if err := beneath.CheckName(name); err != nil {
		return err
	}
	fd, err := unix.OpenTree(of.FD(), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("clone the mount: %w", err)
	}
	defer unix.Close(fd)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID, Propagation: unix.MS_PRIVATE}
	if readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("confine the mount: %w", err)
	}
	on, err := dir.Mounted(name)
	if err != nil {
		return err
	}
	defer on.Close()
	return unix.MoveMount(fd, "", on.FD(), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// device returns the device number of a directory, if that is the root of a mount; 0: it is not. The kernel asks no process
// that serves the mount.
func device(dir *beneath.Root) (uint64, error) {
	var st unix.Statx_t
	err := unix.Statx(dir.FD(), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &st)
	if err != nil || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return 0, err
	}
	return unix.Mkdev(st.Dev_major, st.Dev_minor), nil
}

// UnmountTop unmounts the topmost mount on a directory, and reports whether there was one. Processes that use it keep it.
func UnmountTop(dir *beneath.Root, name string) (bool, error) {
	at, err := dir.Mounted(name)
	if err != nil {
		return false, err
	}
	defer at.Close()
	if number, err := device(at); err != nil || number == 0 {
		return false, err
	}
	return true, unix.Unmount(fmt.Sprintf("/proc/self/fd/%d", at.FD()), unix.MNT_DETACH)
}

// Unmount is UnmountTop again and again: a process that was killed may have left several mounts.
func Unmount(dir *beneath.Root, name string) error {
	const most = 128
	for range most {
		if more, err := UnmountTop(dir, name); err != nil || !more {
			return err
		}
	}
	return unix.EBUSY
}
