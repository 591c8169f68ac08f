package tree

import (
	"context"
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/interrupted"
	"github.com/scopefs/scopefs/tools/file/message"
)

// tree is the view inside the worker. The kernel enforces its boundary, not this code.
type tree struct {
	dirs  message.Dirs
	quick bool      // changes do not wait for the disk
	temp  string    // the token of the call's temporary file
	made  []touched // directories of one call

	approved map[string]message.Object // by path in the call's arguments
	held     map[string]place          // approved objects that were found
	holding  []int                     // descriptors of their directories
}

// place is a path that is lexically inside a view.
type place struct {
	asked string // as the agent wrote it
	rel   string // relative to the view; "." is its root. In a further directory: absolute
	full  string // for system calls
	dir   string // the directory of tree.dirs that it is in
	held  bool   // full starts at a descriptor: see hold
}

// top reports whether a place is the root of a view.
func (p place) top() bool { return p.rel == "." || p.rel == p.dir }

// at returns the place of a path. "" is the root.
func (t *tree) at(asked string, why message.Intent) (place, error) {
	if strings.ContainsRune(asked, 0) {
		return place{}, message.Problem(message.Invalid, asked, "a path has no NUL in it", "")
	}
	rel, ok := t.dirs.Resolve(asked)
	if !ok {
		return place{}, message.Outside(asked, why)
	}
	if o, ok := t.approved[rel]; ok && o.Path != "" {
		return t.hold(asked, rel, o)
	}
	full, dir := t.dirs.Full(rel)
	return place{asked: asked, rel: rel, full: full, dir: dir}, nil
}

// child returns the place of a name in a directory.
func (p place) child(name string) place {
	return place{path.Join(p.asked, name), path.Join(p.rel, name), p.full + "/" + name, p.dir, p.held}
}

// fail returns err in the form for the agent. It examines each name of the path to
// distinguish a refused link from a refused file; only the text depends on that.
func (t *tree) fail(p place, err error, why message.Intent) error {
	if _, ok := errors.AsType[*message.Error](err); ok {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return message.Problem(message.Internal, p.rel, "cancelled", "")
	}
	errno, _ := errors.AsType[unix.Errno](err)
	if (errno == unix.EACCES || errno == unix.ENOENT) && t.leads(p) {
		return message.Outside(p.asked, why)
	}
	for _, m := range meanings {
		if m.errno == errno {
			return message.Problem(m.code, p.rel, m.message, m.hint).Because(errno)
		}
	}
	if errno == 0 {
		return message.Problem(message.Internal, p.rel, err.Error(), "")
	}
	return message.Problem(message.Internal, p.rel, errno.Error(), "")
}

// leads reports whether a name of the path is a link that the view does not resolve.
func (t *tree) leads(p place) bool {
	full := p.dir
	for name := range strings.SplitSeq(strings.TrimPrefix(p.rel, p.dir+"/"), "/") {
		full += "/" + name
		if _, err := os.Readlink(full); errors.Is(err, unix.EACCES) {
			if info, err := os.Lstat(full); err == nil && info.Mode().Type() == os.ModeSymlink {
				return true
			}
		}
	}
	return false
}

// meanings maps errors of the kernel to errors for the agent.
var meanings = []struct {
	errno         unix.Errno
	code          message.Code
	message, hint string
}{
	{unix.ENOENT, message.NotFound, "no such file or directory", ""},
	{unix.EACCES, message.Denied, "permission denied", ""},
	{unix.EPERM, message.Denied, "operation not permitted", ""},
	{unix.EROFS, message.Denied, "read-only file system", ""},
	{unix.EEXIST, message.Conflict, "exists already", ""},
	{unix.ENOTEMPTY, message.Conflict, "directory not empty", ""},
	{unix.ETXTBSY, message.Conflict, "in use as a program", ""},
	{unix.EBUSY, message.Conflict, "in use", ""},
	{unix.EISDIR, message.Invalid, "is a directory", "use list_dir"},
	{unix.ENOTDIR, message.Invalid, "not a directory", "a name on the way is that of a file"},
	{unix.ENXIO, message.Invalid, "not a regular file", ""},
	{unix.ENAMETOOLONG, message.Invalid, "name too long", "a name has at most 255 bytes"},
	{unix.ELOOP, message.Invalid, "too many symbolic links", ""},
	{unix.EINVAL, message.Invalid, "invalid argument", ""},
	{unix.EXDEV, message.Invalid, "on another file system", "copy it, then delete it"},
	{unix.EFBIG, message.TooLarge, "file too large", ""},
	{unix.ENOSPC, message.Internal, "no space left on the device", "remove what is not needed"},
	{unix.EDQUOT, message.Internal, "disk quota exceeded", "remove what is not needed"},
	{unix.ESTALE, message.Conflict, "was replaced meanwhile", "try again"},
	{unix.ENOTSUP, message.Invalid, "not supported here", ""},
	{unix.ENOTCONN, message.Unavailable, "the view has ended", "call again: it is started again"}, // fuse(4)
	{unix.ECONNABORTED, message.Unavailable, "the view has ended",
		"call again: it is started again; of a change, look first whether it was made"},
}

// open opens a regular file. It checks the type by the descriptor. With O_NONBLOCK neither
// a FIFO nor a device blocks it.
func (t *tree) open(p place, flags int, why message.Intent) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := openFD(p.full, flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, st, t.fail(p, err, why)
	}
	if st, err = statAt(fd, "", unix.AT_EMPTY_PATH); err == nil {
		err = regular(p, st.Mode)
	}
	if err == nil { // else the runtime would poll it, which is a request to the view
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags&unix.O_APPEND)
	}
	if err != nil {
		unix.Close(fd)
		return nil, st, t.fail(p, err, why)
	}
	return os.NewFile(uintptr(fd), p.rel), st, nil
}

// newFile creates a file, for flags such as O_WRONLY. The name must not exist. As in open,
// the runtime does not poll the file.
func newFile(path string, flags int, mode os.FileMode) (*os.File, error) {
	return openBlocking(path, flags|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, mode)
}

// openDir opens a directory for reading. The open of a FIFO fails and does not block.
func openDir(path string) (*os.File, error) {
	return openBlocking(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

func openBlocking(path string, flags int, mode os.FileMode) (*os.File, error) {
	fd, err := openFD(path, flags, mode)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func regular(p place, mode uint32) error {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return unix.EISDIR
	}
	return message.Problem(message.Invalid, p.rel, "not a regular file: "+typeName(mode), "")
}

// typeName returns the name of the file type in a mode (inode(7)).
func typeName(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		return "link"
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFSOCK:
		return "socket"
	}
	return "device"
}

// openFD calls open(2). A signal can interrupt the open of a FUSE file.
func openFD(path string, flags int, mode os.FileMode) (fd int, err error) {
	err = interrupted.Retry(func() error {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC, uint32(mode))
		return err
	})
	return fd, err
}

func (t *tree) lstat(p place, why message.Intent) (unix.Stat_t, error) {
	st, err := statAt(unix.AT_FDCWD, p.full, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return st, t.fail(p, err, why)
	}
	return st, nil
}

// statAt requests all attributes but the access time: after a read the kernel would need
// a request to the view for it (fuse(4)).
func statAt(fd int, path string, flags int) (st unix.Stat_t, err error) {
	const mask = unix.STATX_BASIC_STATS &^ unix.STATX_ATIME
	var x unix.Statx_t
	err = interrupted.Retry(func() error { return unix.Statx(fd, path, flags, mask, &x) })
	st.Dev, st.Ino = unix.Mkdev(x.Dev_major, x.Dev_minor), x.Ino
	st.Mode, st.Size, st.Uid = uint32(x.Mode), int64(x.Size), x.Uid
	if st.Nlink = 1; x.Nlink != 1 { // several, or none any more
		st.Nlink = 2
	}
	st.Mtim = unix.Timespec{Sec: x.Mtime.Sec, Nsec: int64(x.Mtime.Nsec)}
	return st, err
}
