package fusemount

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Control is fusectl, the file system in which the kernel lists FUSE connections:
// Documentation/filesystems/fuse.rst. The zero Control lists none.
type Control struct {
	dir *os.File
}

// OpenControl returns fusectl: for root a mount that is attached nowhere, for
// others the one at /sys/fs/fuse/connections. Without fusectl it returns the zero
// Control, and a Connection is aborted by its mount point.
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

// Close closes fusectl. Connections of it stay usable for Abort.
func (c Control) Close() {
	if c.dir != nil {
		c.dir.Close()
	}
}

// Connection aborts a FUSE connection and counts its queued requests. The zero
// Connection aborts nothing. A process may pass Dir and File to another, which
// then builds the same Connection of them.
type Connection struct {
	Dir  string   // the mount point; the last resort of Abort
	File *os.File // the connection's abort file in fusectl; nil: none

	minor   uint32 // of the mount's device number, its name in fusectl
	control Control
}

// Connection returns the connection with a minor device number, whose mount is or
// will be attached at dir.
func (c Control) Connection(minor uint32, dir string) Connection {
	conn := Connection{Dir: dir, minor: minor, control: c}
	if c.dir != nil {
		name := strconv.FormatUint(uint64(minor), 10) + "/abort"
		if fd, err := unix.Openat(int(c.dir.Fd()), name, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0); err == nil {
			conn.File = os.NewFile(uintptr(fd), "abort")
		}
	}
	return conn
}

// Abort ends every request of the connection, now and for good: clients get
// ECONNABORTED or ENOTCONN. It does not wait for the server. The mount stays, and
// answers ENOTCONN, until it is unmounted; without fusectl, Abort unmounts it unless
// a process uses it.
func (c Connection) Abort() error {
	if c.File != nil {
		_, err := c.File.Write([]byte("1"))
		return err
	}
	if c.Dir == "" {
		return nil
	}
	// EBUSY: it aborts a mount that is in use as well, umount(2).
	err := unix.Unmount(c.Dir, unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// Waiting returns the number of requests without a reply: those queued and those in
// flight. It fails with ENOTSUP without fusectl. It takes 3 µs and does not block. A descriptor that is kept can be read
// once: the file has no position that can be set (nonseekable_open, linux fs/fuse/control.c).
func (c Connection) Waiting() (int, error) {
	if c.control.dir == nil {
		return 0, unix.ENOTSUP
	}
	name := strconv.FormatUint(uint64(c.minor), 10) + "/waiting"
	fd, err := unix.Openat(int(c.control.dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
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

// Close closes File.
func (c Connection) Close() {
	if c.File != nil {
		c.File.Close()
	}
}
