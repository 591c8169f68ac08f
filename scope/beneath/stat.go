package beneath

import (
	"golang.org/x/sys/unix"
)

// FileID says which object a name led to: device, inode number and birth
// time. The birth time tells a new file from an old one whose inode number it
// took over; a file system that has none leaves it 0. statx(2).
type FileID struct {
	Dev   uint64
	Ino   uint64
	Birth int64 // nanoseconds since the epoch
}

// Stat is what statx(2) said of an object.
type Stat struct {
	unix.Statx_t
}

// ID returns which object this is.
func (s *Stat) ID() FileID {
	id := FileID{Dev: unix.Mkdev(s.Dev_major, s.Dev_minor), Ino: s.Ino}
	if s.Mask&unix.STATX_BTIME != 0 {
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

// statx asks for one object and follows nothing: no link, no automount. An
// object that is the root of a mount is not of this scope, whatever it is.
func statx(fd int, name string, s *Stat) error {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	err := retry(func() error {
		return callStatx(fd, name, flags, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &s.Statx_t)
	})
	if err == nil && name != "" && s.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return &Violation{Rel: name, Rule: RuleMount}
	}
	return err
}
