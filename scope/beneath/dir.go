package beneath

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is an open directory of a scope. Its methods act on one name in the
// directory. They take no path and follow no symbolic link. The caller must
// close it.
type Dir struct {
	fd int
}

// Close closes the directory.
func (d Dir) Close() { unix.Close(d.fd) }

// Sync writes the names of the directory to the disk: fsync(2).
func (d Dir) Sync() error {
	fd, err := openat2(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0, resolve)
	if err != nil {
		return err
	}
	f := File{fd: fd}
	defer f.Close()
	return f.Sync(false)
}

// Self returns the directory as a File. The File shares the descriptor.
func (d Dir) Self() File { return File{fd: d.fd, path: true} }

// CheckName reports whether name can be one path component. It returns a
// *Violation for the empty string, ".", "..", and any string with a slash or a
// NUL, and ENAMETOOLONG for more than 255 bytes. Any other byte string is
// valid.
func CheckName(name string) error {
	if len(name) > 255 {
		return unix.ENAMETOOLONG
	}
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return &Violation{Rel: name, Rule: RuleName}
	}
	return nil
}

// Stat returns the attributes of the object at name without opening it:
// statx(2). It returns a *Violation if the object is the root of a mount.
func (d Dir) Stat(name string) (Stat, error) {
	var s Stat
	err := statx(d.fd, name, &s)
	return s, err
}

// Create creates the regular file name and opens it with the open(2) flags. It
// returns EEXIST if the name exists.
func (d Dir) Create(name string, flags int, mode uint32) (File, error) {
	fd, err := openat2(d.fd, name, flags|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, mode&07777, resolve)
	if err != nil {
		return File{fd: -1}, violation(name, err)
	}
	return File{fd: fd}, nil
}

// CreateTemp creates a regular file without a name: O_TMPFILE, open(2). It
// returns EOPNOTSUPP if the file system does not support O_TMPFILE.
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

// Mkdir creates the directory name: mkdirat(2).
func (d Dir) Mkdir(name string, mode uint32) error {
	return retry(func() error { return unix.Mkdirat(d.fd, name, mode&07777) })
}

// Mknod creates a regular file, FIFO or socket: mknodat(2). For a device node
// it returns a *Violation with RuleDevice.
func (d Dir) Mknod(name string, mode uint32) error {
	switch mode & unix.S_IFMT {
	case 0, unix.S_IFREG, unix.S_IFIFO, unix.S_IFSOCK:
		return retry(func() error { return unix.Mknodat(d.fd, name, mode, 0) })
	}
	return &Violation{Rel: name, Rule: RuleDevice}
}

// Symlink creates the symbolic link name with the given text. The caller must
// have checked with Root.Follow where the text leads.
func (d Dir) Symlink(text, name string) error {
	return retry(func() error { return unix.Symlinkat(text, d.fd, name) })
}

// Link creates newName in the directory to as a hard link to name: linkat(2).
// It does not follow a symbolic link at name.
func (d Dir) Link(name string, to Dir, newName string) error {
	return violation(name, retry(func() error { return unix.Linkat(d.fd, name, to.fd, newName, 0) }))
}

// Unlink removes the name of an object that is not a directory: unlinkat(2).
func (d Dir) Unlink(name string) error {
	return retry(func() error { return unix.Unlinkat(d.fd, name, 0) })
}

// Rmdir removes an empty directory: unlinkat(2), AT_REMOVEDIR.
func (d Dir) Rmdir(name string) error {
	return retry(func() error { return unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR) })
}

// Remove removes the name of an object, and a directory if it is empty.
func (d Dir) Remove(name string) error {
	if err := d.Unlink(name); err != unix.EISDIR {
		return err
	}
	return d.Rmdir(name)
}

// RenameFlags are the renameat2(2) flags that callers of Dir.Rename may use.
const RenameFlags = unix.RENAME_NOREPLACE | RenameExchange

// RenameExchange exchanges the two names: renameat2(2).
const RenameExchange = unix.RENAME_EXCHANGE

// Rename moves name to newName in the directory to. flags are those of
// renameat2(2). The error is EXDEV for a directory that an overlay cannot rename.
func (d Dir) Rename(name string, to Dir, newName string, flags uint) error {
	err := retry(func() error { return unix.Renameat2(d.fd, name, to.fd, newName, flags) })
	var from, into Stat
	if err == unix.EXDEV && overlayDev.Load() != 0 && statx(d.fd, "", &from) == nil && statx(to.fd, "", &into) == nil && from.Mnt_id == into.Mnt_id {
		return err // no mount is crossed
	}
	return violation(name, err)
}

// HasDefaultACL reports whether the directory has a default ACL. New objects in
// it then take their permissions from the ACL instead of the umask: umask(2).
// It returns false if the attribute cannot be read.
func (d Dir) HasDefaultACL() bool {
	self := Name{d, "."}
	n, err := self.call(unix.SYS_GETXATTRAT, DefaultACL, nil, 0)
	if err == unix.ENOSYS {
		fd, openErr := openat2(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0, resolve)
		if openErr != nil { // it can be searched, but not read
			n, err = self.Getxattr(DefaultACL, nil)
			return err == nil && n > 0
		}
		defer unix.Close(fd)
		n, err = File{fd: fd}.Getxattr(DefaultACL, nil)
	}
	return err == nil && n > 0
}

// Masked applies umask to mode, unless the directory has a default ACL: umask(2).
func (d Dir) Masked(mode, umask uint32) uint32 {
	if umask == 0 || d.HasDefaultACL() {
		return mode
	}
	return mode &^ umask
}
