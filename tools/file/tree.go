package file

import (
	"context"
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// tree is the view, as the worker meets it: the boundary is the kernel's, not ours.
type tree struct {
	root  string
	quick bool      // no change waits for the disk
	temp  string    // the token of the call's temporary file
	dirs  []touched // of one call

	approved map[string]tools.Object // by their paths in the call's arguments
	held     map[string]place        // those that were found
	holding  []int                   // directories
}

// place is a path that is inside.
type place struct {
	asked string // as the agent says it
	rel   string // relative to the view; "." is its root
	full  string // for system calls
	held  bool   // full starts at a descriptor: see hold
}

// intent is why a path is used: it decides what an error may tell.
type intent bool

const (
	reading intent = false
	writing intent = true
)

// Within cleans a path lexically and returns it relative to root. It is not ok for a
// path outside of root.
func Within(root, asked string) (rel string, ok bool) {
	rel = path.Clean(asked)
	if path.IsAbs(rel) {
		if rel == root {
			return ".", true
		}
		rel, ok = strings.CutPrefix(rel, root+"/")
		return rel, ok
	}
	return rel, rel != ".." && !strings.HasPrefix(rel, "../")
}

// logged is the path of a call for the log.
func logged(asked string) string {
	if rel, ok := Within(sandbox.Workspace, asked); ok {
		return rel
	}
	return path.Clean(asked)
}

// about returns what a call with one or two paths is about.
func about(why intent, paths ...string) tools.About {
	of := tools.About{Path: logged(paths[0]), Outside: strayed(why, paths...)}
	if len(paths) > 1 {
		of.Target = logged(paths[1])
	}
	return of
}

// strayed returns the error of the first path that leads out of the view, before any
// link is resolved; nil if none does. The view itself records a link that leads outside.
func strayed(why intent, paths ...string) *tools.Error {
	for _, asked := range paths {
		if _, inside := Within(sandbox.Workspace, asked); !inside {
			return outside(tools.Clip(asked, maxPath), why)
		}
	}
	return nil
}

// maxPath bounds the path of an error, in bytes.
const maxPath = 8 << 10

// at finds the place of a path; "" is the root.
func (t *tree) at(asked string, why intent) (place, error) {
	if strings.ContainsRune(asked, 0) {
		return place{}, problem(tools.Invalid, asked, "a path has no NUL in it", "")
	}
	rel, ok := Within(t.root, asked)
	if !ok {
		return place{}, outside(asked, why)
	}
	if o, ok := t.approved[rel]; ok && o.Path != "" {
		return t.hold(asked, rel, o)
	}
	return place{asked: asked, rel: rel, full: path.Join(t.root, rel)}, nil
}

// child is a place in a directory.
func (p place) child(name string) place {
	return place{path.Join(p.asked, name), path.Join(p.rel, name), p.full + "/" + name, p.held}
}

// outside is the error of all that is not in the view.
func outside(asked string, why intent) *tools.Error {
	if why == writing {
		return problem(tools.OutsideScope, asked, "outside of the view", "only what is below the view's root can be changed")
	}
	return problem(tools.NotFound, asked, "no such file or directory", "")
}

func problem(code tools.Code, path, message, hint string) *tools.Error {
	return &tools.Error{Code: code, Message: message, Path: path, Hint: hint}
}

// fail is err as an agent gets it. A refused link is told from a refused file by
// asking each name on the way; nothing is decided by it but the text.
func (t *tree) fail(p place, err error, why intent) error {
	if _, ok := errors.AsType[*tools.Error](err); ok {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return problem(tools.Internal, p.rel, "cancelled", "")
	}
	errno, _ := errors.AsType[unix.Errno](err)
	if (errno == unix.EACCES || errno == unix.ENOENT) && t.leads(p) {
		return outside(p.asked, why)
	}
	for _, m := range meanings {
		if m.errno == errno {
			return problem(m.code, p.rel, m.message, m.hint).Because(errno)
		}
	}
	if errno == 0 {
		return problem(tools.Internal, p.rel, err.Error(), "")
	}
	return problem(tools.Internal, p.rel, errno.Error(), "")
}

// leads reports whether a name on the way is a link that the view does not resolve.
func (t *tree) leads(p place) bool {
	full := t.root
	for name := range strings.SplitSeq(p.rel, "/") {
		full += "/" + name
		if _, err := os.Readlink(full); errors.Is(err, unix.EACCES) {
			if info, err := os.Lstat(full); err == nil && info.Mode().Type() == os.ModeSymlink {
				return true
			}
		}
	}
	return false
}

// meanings are the errors of the kernel as an agent gets them.
var meanings = []struct {
	errno         unix.Errno
	code          tools.Code
	message, hint string
}{
	{unix.ENOENT, tools.NotFound, "no such file or directory", ""},
	{unix.EACCES, tools.Denied, "permission denied", ""},
	{unix.EPERM, tools.Denied, "operation not permitted", ""},
	{unix.EROFS, tools.Denied, "read-only file system", ""},
	{unix.EEXIST, tools.Conflict, "exists already", ""},
	{unix.ENOTEMPTY, tools.Conflict, "directory not empty", ""},
	{unix.ETXTBSY, tools.Conflict, "in use as a program", ""},
	{unix.EBUSY, tools.Conflict, "in use", ""},
	{unix.EISDIR, tools.Invalid, "is a directory", "use list_dir"},
	{unix.ENOTDIR, tools.Invalid, "not a directory", "a name on the way is that of a file"},
	{unix.ENXIO, tools.Invalid, "not a regular file", ""},
	{unix.ENAMETOOLONG, tools.Invalid, "name too long", "a name has at most 255 bytes"},
	{unix.ELOOP, tools.Invalid, "too many symbolic links", ""},
	{unix.EINVAL, tools.Invalid, "invalid argument", ""},
	{unix.EXDEV, tools.Invalid, "on another file system", "copy it, then delete it"},
	{unix.EFBIG, tools.TooLarge, "file too large", ""},
	{unix.ENOSPC, tools.Internal, "no space left on the device", "remove what is not needed"},
	{unix.EDQUOT, tools.Internal, "disk quota exceeded", "remove what is not needed"},
	{unix.ESTALE, tools.Conflict, "was replaced meanwhile", "try again"},
	{unix.ENOTSUP, tools.Invalid, "not supported here", ""},
	{unix.ENOTCONN, tools.Unavailable, "the view has ended", "call again: it is started again"}, // fuse(4)
	{unix.ECONNABORTED, tools.Unavailable, "the view has ended", "call again: it is started again; of a change, look first whether it was made"},
}

// open opens what is there and must be a regular file, told by the descriptor.
// O_NONBLOCK: neither a FIFO nor a device makes it wait.
func (t *tree) open(p place, flags int, why intent) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Open(p.full, flags|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, st, t.fail(p, err, why)
	}
	if st, err = statAt(fd, "", unix.AT_EMPTY_PATH); err == nil {
		err = regular(p, st.Mode)
	}
	if err == nil { // or the runtime would ask the view to poll it
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags&unix.O_APPEND)
	}
	if err != nil {
		unix.Close(fd)
		return nil, st, t.fail(p, err, why)
	}
	return os.NewFile(uintptr(fd), p.rel), st, nil
}

// newFile creates a file that is not there, for flags such as O_WRONLY. As in open, the
// runtime does not poll it.
func newFile(path string, flags int, mode os.FileMode) (*os.File, error) {
	return openBlocking(path, flags|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, mode)
}

// openDir opens a directory for reading. The open of a FIFO fails and does not wait.
func openDir(path string) (*os.File, error) {
	return openBlocking(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

func openBlocking(path string, flags int, mode os.FileMode) (*os.File, error) {
	fd, err := ignoringEINTR(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, uint32(mode)) })
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
	return problem(tools.Invalid, p.rel, "not a regular file: "+typeName(mode), "")
}

// typeName is what a file is, of its mode (inode(7)).
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

// ignoringEINTR is bounded (signal(7): an open of a FUSE file can be interrupted).
func ignoringEINTR(f func() (int, error)) (n int, err error) {
	for range 100 {
		if n, err = f(); err != unix.EINTR {
			break
		}
	}
	return n, err
}

func (t *tree) lstat(p place, why intent) (unix.Stat_t, error) {
	st, err := statAt(unix.AT_FDCWD, p.full, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return st, t.fail(p, err, why)
	}
	return st, nil
}

// statAt asks all but the time of the last access: after a read the kernel would
// have to ask the view for it, which takes a round trip (fuse(4)).
func statAt(fd int, path string, flags int) (st unix.Stat_t, err error) {
	const mask = unix.STATX_BASIC_STATS &^ unix.STATX_ATIME
	var x unix.Statx_t
	_, err = ignoringEINTR(func() (int, error) { return 0, unix.Statx(fd, path, flags, mask, &x) })
	st.Dev, st.Ino = unix.Mkdev(x.Dev_major, x.Dev_minor), x.Ino
	st.Mode, st.Size, st.Uid = uint32(x.Mode), int64(x.Size), x.Uid
	if st.Nlink = 1; x.Nlink != 1 { // several, or none any more
		st.Nlink = 2
	}
	st.Mtim = unix.Timespec{Sec: x.Mtime.Sec, Nsec: int64(x.Mtime.Nsec)}
	return st, err
}
