package guard

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Control is the file system in which the kernel shows FUSE connections:
// fusectl, Documentation/filesystems/fuse.rst.
type Control struct {
	dir *os.File // nil: there is none
}

// OpenControl returns the control file system. Root mounts one for itself that
// is attached nowhere; others use the one that the host has. Where there is
// none, connections are aborted by their mount point.
func OpenControl() Control {
	if fd, err := mountControl(); err == nil {
		return Control{os.NewFile(uintptr(fd), "fusectl")}
	}
	const path, magic = "/sys/fs/fuse/connections", 0x65735543 // FUSE_CTL_SUPER_MAGIC
	dir, err := os.Open(path)
	if err != nil {
		return Control{}
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil || int64(st.Type) != magic {
		dir.Close()
		return Control{}
	}
	return Control{dir}
}

func mountControl() (int, error) {
	fs, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
}

// Close closes the control file system; connections taken from it stay usable.
func (c Control) Close() {
	if c.dir != nil {
		c.dir.Close()
	}
}

// Connection is one FUSE connection, as those hold it who may have to abort it.
// The zero Connection aborts nothing.
type Connection struct {
	at    string // its mount point
	minor uint32 // of its device number: its name in the control file system
	ctl   Control
	file  *os.File // its abort file; nil: by the mount point
}

// Connection returns that of a mount, which is or will be attached at a path.
func (c Control) Connection(mount int, at string) (Connection, error) {
	// Without a request mask the kernel answers by itself: fuse_getattr, fs/fuse/dir.c.
	var st unix.Statx_t
	if err := unix.Statx(mount, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &st); err != nil {
		return Connection{}, fmt.Errorf("fuse connection: %w", err)
	}
	return c.ByDevice(st.Dev_minor, at), nil
}

// ByDevice returns the connection with a minor device number.
func (c Control) ByDevice(minor uint32, at string) Connection {
	conn := Connection{at: at, minor: minor, ctl: c}
	if c.dir != nil {
		name := strconv.FormatUint(uint64(minor), 10) + "/abort"
		if fd, err := unix.Openat(int(c.dir.Fd()), name, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0); err == nil {
			conn.file = os.NewFile(uintptr(fd), "abort")
		}
	}
	return conn
}

// Abort ends every request of the connection, now and for good: clients get
// ECONNABORTED or ENOTCONN. It does not wait for the process that serves it.
func (c Connection) Abort() error {
	if c.file != nil {
		_, err := c.file.Write([]byte("1"))
		return err
	}
	if c.at == "" {
		return nil
	}
	// It aborts though the mount is in use, and says EBUSY: umount(2).
	err := unix.Unmount(c.at, unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// Waiting returns the number of requests that no answer was read for yet.
func (c Connection) Waiting() (int, error) {
	if c.ctl.dir == nil {
		return 0, unix.ENOTSUP
	}
	name := strconv.FormatUint(uint64(c.minor), 10) + "/waiting"
	fd, err := unix.Openat(int(c.ctl.dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var buf [24]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(buf[:n])))
}

// Close closes what Abort uses.
func (c Connection) Close() {
	if c.file != nil {
		c.file.Close()
	}
}
