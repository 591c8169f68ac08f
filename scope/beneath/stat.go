package beneath

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// overlayDev is the device of the overlay that this process has a scope on; 0: none.
var overlayDev atomic.Uint64

// FileID identifies an object by device, inode number and birth time: statx(2).
// The birth time distinguishes a new file from an older one with the same inode
// number. It is 0 if the file system does not record it, and on an overlay, which
// reports that of the layer: a file that is written first would become another one.
type FileID struct {
	Dev   uint64
	Ino   uint64
	Birth int64 // nanoseconds since the epoch
}

// Stat holds the attributes of an object: statx(2).
type Stat struct {
	unix.Statx_t
}

// ID returns the identity of the object.
func (s *Stat) ID() FileID {
	id := FileID{Dev: unix.Mkdev(s.Dev_major, s.Dev_minor), Ino: s.Ino}
	if s.Mask&unix.STATX_BTIME != 0 && id.Dev != overlayDev.Load() {
		id.Birth = s.Btime.Sec*1e9 + int64(s.Btime.Nsec)
	}
	return id
}

// Type returns the type bits of the mode (S_IFMT).
func (s *Stat) Type() uint32 { return uint32(s.Mode) & unix.S_IFMT }

// IsRegular reports whether the object is a regular file.
func (s *Stat) IsRegular() bool { return s.Type() == unix.S_IFREG }

// IsDir reports whether the object is a directory.
func (s *Stat) IsDir() bool { return s.Type() == unix.S_IFDIR }

// IsLink reports whether the object is a symbolic link.
func (s *Stat) IsLink() bool { return s.Type() == unix.S_IFLNK }

// Identify gives the attributes the identity of another object: a directory of two layers is the lower one's.
func (s *Stat) Identify(as *Stat) {
	s.Ino, s.Btime, s.Dev_major, s.Dev_minor = as.Ino, as.Btime, as.Dev_major, as.Dev_minor
	s.Mask = s.Mask&^unix.STATX_BTIME | as.Mask&unix.STATX_BTIME
}

// statx reads the attributes of one object. It follows no symbolic link and
// triggers no automount. It returns a *Violation if a name is the root of a
// mount, because mounts are outside the scope.
func statx(fd int, name string, s *Stat) error {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	err := retry(func() error {
		return callStatx(fd, name, flags, unix.STATX_BASIC_STATS|unix.STATX_BTIME|unix.STATX_MNT_ID, &s.Statx_t)
	})
	if err == nil && name != "" && s.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return &Violation{Rel: name, Rule: RuleMount}
	}
	return err
}
