package beneath

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is an open directory of a scope. Its methods act on one name in it:
// never on a path, never through a link. It must be closed.
type Dir struct {
	fd int
}

// Close closes the directory.
func (d Dir) Close() { unix.Close(d.fd) }

// Self returns the directory itself as an object; it shares the descriptor.
func (d Dir) Self() File { return File{fd: d.fd, path: true} }

// CheckName refuses what is not a name: the empty string, ".", "..", and
// anything with a slash or NUL. A name over 255 bytes is ENAMETOOLONG. Any
// other byte string is a name.
func CheckName(name string) error {
	if len(name) > 255 {
		return unix.ENAMETOOLONG
	}
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return &Violation{Rel: name, Rule: RuleName}
	}
	return nil
}

// Stat asks for the object at name without opening it.
func (d Dir) Stat(name string) (Stat, error) {
	var s Stat
	err := statx(d.fd, name, &s)
	return s, err
}

// Create makes the regular file name and opens it with flags of open(2). The
// file is new: when the name is taken it fails with EEXIST.
func (d Dir) Create(name string, flags int, mode uint32) (File, error) {
	fd, err := openat2(d.fd, name, flags|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, mode&07777, resolve)
	if err != nil {
		return File{fd: -1}, violation(name, err)
	}
	return File{fd: fd}, nil
}

// CreateTemp makes a regular file that has no name (O_TMPFILE). It fails with
// EOPNOTSUPP where the file system has none.
func (d Dir) CreateTemp(flags int, mode uint32) (File, error) {
	fd, err := openat2(d.fd, ".", flags&^unix.O_CREAT|unix.O_TMPFILE, mode&07777, resolve)
	if err == unix.EISDIR { // a file system without O_TMPFILE, open(2)
		err = unix.EOPNOTSUPP
	}
	if err != nil {
		return File{fd: -1}, violation(".", err)
	}
	return File{fd: fd}, nil
}

// Mkdir makes the directory name.
func (d Dir) Mkdir(name string, mode uint32) error {
	return retry(func() error { return unix.Mkdirat(d.fd, name, mode&07777) })
}

// Mknod makes a regular file, FIFO or socket; a device node is refused.
func (d Dir) Mknod(name string, mode uint32) error {
	switch mode & unix.S_IFMT {
	case 0, unix.S_IFREG, unix.S_IFIFO, unix.S_IFSOCK:
		return retry(func() error { return unix.Mknodat(d.fd, name, mode, 0) })
	}
	return &Violation{Rel: name, Rule: RuleDevice}
}

// Symlink makes name a link with the given text. Whether the text leads
// outside is for the caller to have asked (Root.Follow).
func (d Dir) Symlink(text, name string) error {
	return retry(func() error { return unix.Symlinkat(text, d.fd, name) })
}

// Link makes newName in to a second name of name; a link is not followed.
func (d Dir) Link(name string, to Dir, newName string) error {
	return violation(name, retry(func() error { return unix.Linkat(d.fd, name, to.fd, newName, 0) }))
}

// Unlink removes the name of something that is not a directory.
func (d Dir) Unlink(name string) error {
	return retry(func() error { return unix.Unlinkat(d.fd, name, 0) })
}

// Rmdir removes an empty directory.
func (d Dir) Rmdir(name string) error {
	return retry(func() error { return unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR) })
}

// RenameFlags are the flags of renameat2(2) that a scope has.
const RenameFlags = unix.RENAME_NOREPLACE | RenameExchange

// RenameExchange swaps the two names.
const RenameExchange = unix.RENAME_EXCHANGE

// Rename moves name to newName in to. Flags are those of renameat2(2).
func (d Dir) Rename(name string, to Dir, newName string, flags uint) error {
	return violation(name, retry(func() error { return unix.Renameat2(d.fd, name, to.fd, newName, flags) }))
}

// HasDefaultACL reports whether what is made in the directory takes its
// permissions from an ACL instead of the umask. A directory that may be
// searched but not read cannot be asked before Linux 6.13; it counts as no.
func (d Dir) HasDefaultACL() bool {
	n, err := Name{d, "."}.Getxattr(DefaultACL, nil)
	if err == unix.ENOSYS {
		fd, openErr := openat2(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0, resolve)
		if openErr != nil {
			return false
		}
		defer unix.Close(fd)
		n, err = File{fd: fd}.Getxattr(DefaultACL, nil)
	}
	return err == nil && n > 0
}
