package fusemount

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// MountOptions describes a file system to mount. The zero value is usable.
type MountOptions struct {
	Source string // as /proc/mounts shows it; default "scopefs"
	Type   string // shown as "fuse.<type>"; default "scopefs"

	// UID and GID own the mount, in the caller's user namespace. Unless AllowOther
	// is set, the kernel answers EACCES to every other user, root included.
	UID, GID uint32

	// AllowOther admits all users and makes the kernel check modes and ACLs:
	// allow_other and default_permissions in fuse(4).
	AllowOther bool

	// Modes makes the kernel check modes: default_permissions alone.
	Modes bool

	NoExec bool // no program is executed from the mount
}

// Device is an open /dev/fuse and the mount that it serves. It has no finalizer:
// the descriptors stay open until Close.
type Device struct {
	fuse, mount int    // -1: closed, or handed over
	minor       uint32 // of the mount's device number
	dir         string // where it is attached
}

// Mount mounts a file system on dir. The process must serve it with fusedev.NewConn, and
// must not use dir itself: it would wait for its own reply. It needs CAP_SYS_ADMIN
// in its user namespace and Linux 5.2.
func Mount(dir string, opt MountOptions) (*Device, error) {
	d, err := Open(opt)
	if err != nil {
		return nil, err
	}
	if err := d.Attach(dir); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// Open opens /dev/fuse and creates a mount that is attached nowhere yet. A caller
// that attaches it after the server is ready lets no client wait for the server.
func Open(opt MountOptions) (*Device, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse: %w", err)
	}
	d := &Device{fuse: fd, mount: -1}
	if d.mount, err = create(fd, opt); err == nil {
		d.minor, err = minorOf(d.mount)
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("mount fuse: %w", err)
	}
	return d, nil
}

// minorOf returns the minor device number of a mount. The kernel does not ask the
// server for it, since the request mask is empty: fuse_getattr, linux fs/fuse/dir.c.
func minorOf(mount int) (uint32, error) {
	var st unix.Statx_t
	err := unix.Statx(mount, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &st)
	return st.Dev_minor, err
}

// create makes a mount with fsopen(2) and the options of fuse(4).
func create(fuse int, opt MountOptions) (int, error) {
	fs, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	set := func(key, value string) {
		if err == nil {
			if err = unix.FsconfigSetString(fs, key, value); err != nil {
				err = fmt.Errorf("option %s=%s: %w", key, value, err)
			}
		}
	}
	set("source", nonEmpty(opt.Source))
	set("subtype", nonEmpty(opt.Type))
	set("fd", strconv.Itoa(fuse))
	set("rootmode", "40000") // S_IFDIR
	set("user_id", strconv.FormatUint(uint64(opt.UID), 10))
	set("group_id", strconv.FormatUint(uint64(opt.GID), 10))
	if err != nil {
		return -1, err
	}
	for flag, set := range map[string]bool{"default_permissions": opt.AllowOther || opt.Modes, "allow_other": opt.AllowOther} {
		if !set {
			continue
		}
		if err := unix.FsconfigSetFlag(fs, flag); err != nil {
			return -1, fmt.Errorf("option %s: %w", flag, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	attrs := unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID
	if opt.NoExec {
		attrs |= unix.MOUNT_ATTR_NOEXEC
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attrs)
}

func nonEmpty(s string) string {
	if s == "" {
		return "scopefs"
	}
	return s
}

// FD returns the descriptor of /dev/fuse, for fusedev.NewConn. It is valid until Close.
func (d *Device) FD() int { return d.fuse }

// File hands over /dev/fuse, for a process that passes it to another: the caller
// closes the file, and Close does not. The kernel aborts the connection once every
// process has closed it.
func (d *Device) File() *os.File {
	f := os.NewFile(uintptr(d.fuse), "/dev/fuse")
	d.fuse = -1
	return f
}

// Mount hands over the descriptor of a mount that is not attached, for move_mount(2):
// the caller closes it, and Close does not.
func (d *Device) Mount() *os.File {
	f := os.NewFile(uintptr(d.mount), "mount")
	d.mount = -1
	return f
}

// Minor returns the minor device number of the mount, for Control.Connection.
func (d *Device) Minor() uint32 { return d.minor }

// Attach mounts on dir, above what is mounted there.
func (d *Device) Attach(dir string) error { return d.attach(dir, 0) }

// Replace mounts on dir in place of the topmost mount there. Since Linux 6.5 no
// process sees what both mounts hide: the new mount goes beneath the old one, which
// is then detached. Older kernels answer an error, and nothing changes.
func (d *Device) Replace(dir string) error {
	const beneath = 0x200 // MOVE_MOUNT_BENEATH, linux/mount.h
	if err := d.attach(dir, beneath); err != nil {
		return err
	}
	return Detach(dir)
}

func (d *Device) attach(dir string, flags int) error {
	if err := unix.MoveMount(d.mount, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH|flags); err != nil {
		return fmt.Errorf("mount on %q: %w", dir, err)
	}
	unix.Close(d.mount) // the mount point holds the mount
	d.mount, d.dir = -1, dir
	return nil
}

// Close closes the descriptors. It unmounts a file system that is not attached,
// and aborts the connection if no other process has /dev/fuse open. Serve must have
// returned.
func (d *Device) Close() {
	for _, fd := range []*int{&d.fuse, &d.mount} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// Unmount unmounts the topmost mount on dir. It fails with EBUSY while a process
// uses it, and returns nil when nothing is mounted there.
func Unmount(dir string) error {
	err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// Detach unmounts the topmost mount on dir at once. Processes that use it keep it
// until they close their files: MNT_DETACH in umount(2).
func Detach(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %q: %w", dir, err)
	}
	return nil
}
