package beneath

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Alias is where the sandbox shows the view. An absolute link below it leads
// to the view's own root.
const Alias = "/workspace"

// resolve is how every path is walked: by the kernel, atomically, beneath the
// descriptor it starts from, through no link of either kind and across no
// mount. openat2(2).
const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS |
	unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// attempts bounds the retries of a system call that was interrupted (EINTR) or
// that lost a race with a rename (EAGAIN). The kernel does not promise that an
// unlucky walk ever ends; 128 in a row has not been seen without an attacker,
// and with one EAGAIN is as good an answer as any.
const attempts = 128

// pathMax is PATH_MAX less its NUL: the longest path one openat2(2) walks.
const pathMax = 4095

// Root is the directory of one scope, held by descriptor. It is the only
// source of the descriptors that *at calls start from. The directory may be
// renamed or replaced on the host: the descriptor stays with the object.
type Root struct {
	fd int
}

// OpenRoot opens the directory rel beneath base. Links in base are followed; no
// component of rel may be one. Components of rel may be mount points. The error
// wraps ENOENT when there is no such directory, and a *Violation or ELOOP when
// rel leads through a link or out of base.
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

// NewRoot takes over fd, a descriptor of a scope's directory.
func NewRoot(fd int) *Root { return &Root{fd: fd} }

// FD returns the descriptor; it stays the Root's.
func (r *Root) FD() int { return r.fd }

// Close closes the descriptor.
func (r *Root) Close() error { return unix.Close(r.fd) }

// Dir opens the directory rel, with one walk from the root. It fails with
// ErrStale when no directory stands there (the caller has seen one before) and
// with a *Violation when the walk would cross a mount.
func (r *Root) Dir(rel string) (Dir, error) {
	fd, err := r.open(rel, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return Dir{fd: -1}, stale(err)
	}
	return Dir{fd: fd}, nil
}

// Object opens whatever stands at rel without opening it for use: a link is
// not followed, a FIFO not joined, a device not touched (O_PATH).
func (r *Root) Object(rel string) (File, error) {
	fd, err := r.open(rel, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return File{fd: -1}, stale(err)
	}
	return File{fd: fd, path: true}, nil
}

// Open opens the regular file or directory rel with flags of open(2) and
// checks by descriptor that it is the object meant. O_CREAT and O_TRUNC are
// not for here: what stands at rel is known only once it is open.
func (r *Root) Open(rel string, flags int, meant FileID) (File, error) {
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

// open walks to rel and opens it. A path longer than PATH_MAX is walked in
// pieces, each beneath the last.
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
		if flags&unix.O_PATH != 0 { // a walk to "." asks for permission to search the root
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

// stale turns "nothing like that stands there" into ErrStale.
func stale(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("%w: %w", ErrStale, err)
	}
	return err
}

// violation turns the kernel's answer to a walk that would leave the scope
// into a *Violation. With links refused, EXDEV means a mount or "..".
func violation(rel string, err error) error {
	if err == unix.EXDEV {
		return &Violation{Rel: rel, Rule: RuleMount}
	}
	return err
}

// openat2 is openat2(2) with O_CLOEXEC, retried with a bound.
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

// retry calls f until it neither was interrupted nor lost a race, at most
// attempts times.
func retry(f func() error) error {
	var err error
	for range attempts {
		if err = f(); err != unix.EINTR && err != unix.EAGAIN {
			return err
		}
	}
	return err
}

// Detach returns a descriptor of a private bind mount of the scope's directory
// that is attached nowhere: it shows no device, no setuid program, follows no
// link, and no mount made later on the host reaches it. It takes
// CAP_SYS_ADMIN over the mount namespace. open_tree(2), mount_setattr(2).
func (r *Root) Detach() (int, error) {
	fd, err := unix.OpenTree(r.fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err == unix.EINVAL {
		// In an ordinary user's namespace what is mounted below is locked in
		// place and can only be taken along. The walk does not cross it.
		fd, err = unix.OpenTree(r.fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	}
	if err != nil {
		return -1, fmt.Errorf("clone the scope's mount: %w", err)
	}
	attr := unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOSYMFOLLOW,
		Propagation: unix.MS_PRIVATE,
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("confine the scope's mount: %w", err)
	}
	return fd, nil
}
