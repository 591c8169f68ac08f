package beneath

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Alias is the mount point of the view in the sandbox. An absolute link below
// it leads into the view's root.
const Alias = "/workspace"

// resolve holds the openat2(2) flags of every path resolution. The kernel
// resolves atomically, beneath the start descriptor, through no symbolic or
// magic link and across no mount.
const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS |
	unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// attempts limits the retries of a system call that was interrupted (EINTR) or
// that lost a race with a rename (EAGAIN). The kernel does not guarantee that
// an unlucky resolution ever succeeds. Only an attacker causes 128 failures in
// a row, and EAGAIN is then a correct result.
const attempts = 128

// pathMax is PATH_MAX without the NUL: the longest path that openat2(2)
// accepts, in bytes.
const pathMax = 4095

// Root is the directory of one scope, held by descriptor. Every *at call starts
// at this descriptor or at one opened beneath it. If the directory is renamed
// or replaced on the host, the descriptor still refers to the original
// directory.
type Root struct {
	fd    int
	mount uint64 // the id of the mount, of a Root of NewDetached; 0: any mount

	// Shown are absolute paths outside of the scope that a sandbox has at the same place,
	// beside its system directories: links may lead there. The caller sets it before use.
	Shown []string

	// Beside returns the path of the directory in a sandbox, and further directories there that processes change: links may lead to
	// them, also relative ones through place. The caller sets it before use. Any goroutine may call it. nil returns none.
	Beside func() (place string, dirs []string)

	// Layer finds the objects at paths, in other Roots. The caller sets it before use. A nil Layer is this Root for all paths.
	Layer Layer

	// Moved returns where the object is that Follow finds at a path; false: nowhere. It is for what is about to move. The caller sets
	// it before use. A nil Moved returns the path.
	Moved func(rel string) (now string, ok bool)
}

// Layer shows a tree whose objects are in several Roots.
type Layer interface {
	// Find returns where the object at a path is. It returns ErrStale if there is none.
	Find(rel string) (Found, error)
	// Names lists a directory.
	Names(rel string) ([]string, error)
}

// Found is where an object of a Layer is.
type Found struct {
	Root *Root
	Rel  string // in Root
	Stat Stat   // with the identity that the Layer shows
	Own  FileID // the object's own identity
}

// OpenRoot opens the directory rel beneath base. It follows symbolic links in
// base. No component of rel may be a symbolic link, but components of rel may
// be mount points. The error wraps ENOENT if the directory does not exist, and
// a *Violation or ELOOP if rel leads through a link or out of base.
func OpenRoot(base, rel string) (*Root, error) {
	b, err := unix.Open(base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open base %q: %w", base, err)
	}
	defer unix.Close(b)
	fd, err := openat2(b, rel, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, resolve&^unix.RESOLVE_NO_XDEV)
	if err != nil {
		return nil, fmt.Errorf("open scope %q: %w", filepath.Join(base, rel), err)
	}
	return &Root{fd: fd}, nil
}

// OpenDir opens the directory at an absolute path. No component may be a symbolic link:
// whoever can replace one would choose the directory. The error wraps ENOENT if there is
// none, and ELOOP if a component is a link.
func OpenDir(path string) (*Root, error) {
	fd, err := openat2(unix.AT_FDCWD, path, unix.O_PATH|unix.O_DIRECTORY, 0, unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return nil, fmt.Errorf("open scope %q: %w", path, err)
	}
	return &Root{fd: fd}, nil
}

// NewRoot returns a Root that owns fd, a descriptor of a scope's directory.
func NewRoot(fd int) *Root { return &Root{fd: fd} }

// NewDetached returns a Root that owns fd, a descriptor that mounts.Detach returned in this
// process or in another. The kernel follows no symbolic link in such a mount, so that
// Root.Stat is one system call. NewDetached returns EINVAL if the mount follows links, and
// does not close fd then.
func NewDetached(fd int) (*Root, error) {
	const noSymFollow = 0x2000 // ST_NOSYMFOLLOW, linux/statfs.h
	f := File{fd: fd}
	fs, err := f.StatFS()
	if err != nil {
		return nil, fmt.Errorf("mount of the scope: %w", err)
	}
	st, err := f.Stat()
	if err == nil && (fs.Flags&noSymFollow == 0 || st.Mask&unix.STATX_MNT_ID == 0) {
		err = unix.EINVAL
	}
	if err != nil {
		return nil, fmt.Errorf("mount of the scope: %w", err)
	}
	if fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		overlayDev.Store(st.ID().Dev)
	}
	return &Root{fd: fd, mount: st.Mnt_id}, nil
}

// Sub returns a Root of a directory of r, in the mount of r. The caller closes it.
func (r *Root) Sub(rel string) (*Root, error) {
	fd, err := r.open(rel, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, stale(err)
	}
	return &Root{fd: fd, mount: r.mount}, nil
}

// FD returns the descriptor. The Root keeps ownership.
func (r *Root) FD() int { return r.fd }

// Close closes the descriptor.
func (r *Root) Close() error { return unix.Close(r.fd) }

// Dir opens the directory rel, resolved once from the root. It returns ErrStale
// if rel is not a directory, because the caller has seen a directory there
// before, and a *Violation if the path crosses a mount.
func (r *Root) Dir(rel string) (Dir, error) {
	fd, err := r.path(rel, unix.O_DIRECTORY)
	if err != nil {
		return Dir{fd: -1}, stale(err)
	}
	return Dir{fd: fd}, nil
}

// Locate returns where the object at rel is: in r, or where Layer finds it.
func (r *Root) Locate(rel string) (*Root, string, error) {
	if r.Layer == nil {
		return r, rel, nil
	}
	at, err := r.Layer.Find(rel)
	return at.Root, at.Rel, err
}

// path opens what Locate finds, with O_PATH.
func (r *Root) path(rel string, flags int) (int, error) {
	r, rel, err := r.Locate(rel)
	if err != nil {
		return -1, err
	}
	return r.open(rel, unix.O_PATH|flags)
}

// Object opens the object at rel with O_PATH. It follows no link, does not
// block on a FIFO and does not open a device. It returns ErrStale if rel does
// not exist.
func (r *Root) Object(rel string) (File, error) {
	fd, err := r.path(rel, unix.O_NOFOLLOW)
	if err != nil {
		return File{fd: -1}, stale(err)
	}
	return File{fd: fd, path: true}, nil
}

// Stat returns the attributes of the object at rel. It follows no link. It returns
// ErrStale if rel does not exist, and a *Violation if the path crosses a mount.
//
// With a Root of NewDetached it is one statx(2), which has no RESOLVE flags. The mount
// replaces these: no link in it is followed, and each mount has an id of its own. A path
// with "..", and one for which statx(2) fails, is resolved by descriptor.
func (r *Root) Stat(rel string) (Stat, error) {
	if r.Layer != nil {
		at, err := r.Layer.Find(rel)
		return at.Stat, err
	}
	if r.mount != 0 && len(rel) <= pathMax && !strings.HasPrefix(rel, "/") && !strings.Contains(rel, "..") {
		var s Stat
		if statx(r.fd, rel, &s) == nil && s.Mnt_id == r.mount {
			return s, nil
		}
	}
	f, err := r.Object(rel)
	if err != nil {
		return Stat{}, err
	}
	defer f.Close()
	return f.Stat()
}

// Mounted opens the directory name of r, or what is mounted there. The kernel asks no process that serves the mount.
func (r *Root) Mounted(name string) (*Root, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	fd, err := openat2(r.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, resolve&^unix.RESOLVE_NO_XDEV)
	if err != nil {
		return nil, err
	}
	return &Root{fd: fd}, nil
}

// Names lists the directory rel, in no order, without "." and "..". Errors are those of Open.
func (r *Root) Names(rel string) (names []string, err error) {
	err = r.Each(rel, func(name string) bool {
		names = append(names, name)
		return true
	})
	return names, err
}

// Each calls each for the names that Names returns, until it returns false. The memory that it takes does not depend on their
// number. each may remove names.
func (r *Root) Each(rel string, each func(name string) bool) error {
	if r.Layer != nil {
		names, err := r.Layer.Names(rel)
		for _, name := range names {
			if !each(name) {
				break
			}
		}
		return err
	}
	st, err := r.Stat(rel)
	if err != nil {
		return err
	}
	f, err := r.Open(rel, unix.O_RDONLY|unix.O_DIRECTORY, st.ID())
	if err != nil {
		return err
	}
	defer f.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := f.ReadDirent(buffer)
		if err != nil || n <= 0 {
			return err
		}
		_, _, names := unix.ParseDirent(buffer[:n], -1, nil)
		for _, name := range names {
			if !each(name) {
				return nil
			}
		}
	}
}

// Open opens the regular file or directory rel with the open(2) flags. It
// returns ErrStale unless the open object has the identity meant. The caller
// must not pass O_CREAT or O_TRUNC, because Open checks the identity only after
// the open.
func (r *Root) Open(rel string, flags int, meant FileID) (File, error) {
	if r.Layer != nil {
		at, err := r.Layer.Find(rel)
		if err == nil && at.Stat.ID() != meant {
			err = ErrStale
		}
		if err != nil {
			return File{fd: -1}, err
		}
		return at.Root.Open(at.Rel, flags, at.Own)
	}
	fd, err := r.open(rel, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return File{fd: -1}, stale(err)
	}
	f := File{fd: fd}
	st, err := f.Stat()
	if err == nil && (st.ID() != meant || !st.IsRegular() && !st.IsDir()) {
		err = ErrStale
	}
	if err != nil {
		f.Close()
		return File{fd: -1}, err
	}
	return f, nil
}

// OpenAny is Open of whatever regular file or directory is there. It returns its attributes, too.
func (r *Root) OpenAny(rel string, flags int) (File, Stat, error) {
	st, err := r.Stat(rel)
	if err != nil {
		return File{fd: -1}, st, err
	}
	f, err := r.Open(rel, flags, st.ID())
	return f, st, err
}

// Readlink returns the text of a symbolic link.
func (r *Root) Readlink(rel string) (string, error) {
	f, err := r.Object(rel)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return f.Readlink()
}

// open resolves rel and opens the object. It resolves a path longer than
// PATH_MAX in pieces, each beneath the previous one.
func (r *Root) open(rel string, flags int) (int, error) {
	at := r.fd
	for len(rel) > pathMax {
		cut := strings.LastIndexByte(rel[:pathMax+1], '/')
		if cut <= 0 {
			return -1, unix.ENAMETOOLONG
		}
		next, err := openat2(at, rel[:cut], unix.O_PATH|unix.O_DIRECTORY, 0, resolve)
		if at != r.fd {
			unix.Close(at)
		}
		if err != nil {
			return -1, violation(rel, err)
		}
		at, rel = next, rel[cut+1:]
	}
	if rel == "" {
		if flags&unix.O_PATH != 0 { // a lookup of "." would need search permission on the root
			return dup(r.fd)
		}
		rel = "."
	}
	fd, err := openat2(at, rel, flags, 0, resolve)
	if at != r.fd {
		unix.Close(at)
	}
	return fd, violation(rel, err)
}

// stale wraps the errors of a missing or replaced object in ErrStale.
func stale(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("%w: %w", ErrStale, err)
	}
	return err
}

// violation converts EXDEV to a *Violation. With RESOLVE_NO_SYMLINKS, EXDEV
// means a mount or "..".
func violation(rel string, err error) error {
	if err == unix.EXDEV {
		return &Violation{Rel: rel, Rule: RuleMount}
	}
	return err
}

// openat2 calls openat2(2) with O_CLOEXEC and retries up to attempts times.
func openat2(at int, path string, flags int, mode uint32, how uint64) (int, error) {
	h := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Mode: uint64(mode), Resolve: how}
	var fd int
	err := retry(func() (err error) {
		fd, err = callOpenat2(at, path, &h)
		return err
	})
	if err != nil {
		return -1, err
	}
	return fd, nil
}

// retry calls f until it returns neither EINTR nor EAGAIN, at most attempts
// times.
func retry(f func() error) error {
	var err error
	for range attempts {
		if err = f(); err != unix.EINTR && err != unix.EAGAIN {
			return err
		}
	}
	return err
}
