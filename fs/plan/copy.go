package plan

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Target is a name that gets a copy.
type Target struct {
	Root *beneath.Root
	Dir  beneath.Dir
	Rel  string // of the name
	Sync bool   // a file is on the disk then
	Lift bool   // the mode of the source may be lifted: see OpenRead
	Own  bool   // the copy is this process's user's if it cannot have the owner of the source
}

// Copy copies an object that is not a directory, with its attributes, and sets st to those of the version that it
// copied. It fails for a socket or device, and for a file that is being written all the time: then there is no copy.
func (t *Target) Copy(from *beneath.Root, rel string, st *beneath.Stat) error {
	for range copyTries {
		steady, err := t.copy(from, rel, st)
		if steady && err == nil {
			return nil
		}
		if err == unix.EEXIST { // another object has the name
			return err
		}
		if failed := t.Dir.Unlink(beneath.Base(t.Rel)); failed != nil && failed != unix.ENOENT {
			return errors.Join(err, failed)
		}
		if err != nil {
			return err
		}
	}
	return errWritten
}

func (t *Target) apply(f beneath.File, open *beneath.File, a *journal.Attr) error {
	if !t.Own {
		return Apply(t.Root, t.Rel, f, open, a)
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	return AsOwner(a, &st, func(a *journal.Attr) error { return Apply(t.Root, t.Rel, f, open, a) })
}

// AsOwner calls set with attributes, and again with the owner of st as long as this process may not set another one.
func AsOwner(a *journal.Attr, st *beneath.Stat, set func(*journal.Attr) error) error {
	own := *a
	err := set(&own)
	if own.UID = st.Uid; notOurs(err) {
		err = set(&own)
	}
	if own.GID, own.Mode = st.Gid, own.Mode&^unix.S_ISGID; notOurs(err) {
		err = set(&own)
	}
	return err
}

// notOurs reports the errors of chown(2) for owners that the process may not set: user_namespaces(7).
func notOurs(err error) bool { return errors.Is(err, unix.EPERM) || errors.Is(err, ErrOwner) }

const copyTries = 4

var errWritten = errors.New("it is being written")

// copy is one try. It reports whether the object did not change meanwhile.
func (t *Target) copy(from *beneath.Root, rel string, st *beneath.Stat) (steady bool, err error) {
	switch st.Type() {
	case unix.S_IFREG:
		return t.copyFile(from, rel, st)
	case unix.S_IFLNK:
		text, err := from.Readlink(rel)
		if err == nil {
			err = t.Dir.Symlink(text, beneath.Base(t.Rel))
		}
		if err != nil {
			return false, err
		}
	case unix.S_IFIFO:
		if err := t.Dir.Mknod(beneath.Base(t.Rel), unix.S_IFIFO|0o600); err != nil {
			return false, err
		}
	default:
		return false, errors.New("a socket or device")
	}
	f, err := t.Root.Object(t.Rel)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return true, t.apply(f, nil, attrOf(st, st.Mtime))
}

func (t *Target) copyFile(from *beneath.Root, rel string, st *beneath.Stat) (steady bool, err error) {
	source, err := OpenRead(from, rel, st, t.Lift)
	if err != nil {
		return false, err
	}
	defer source.Close()
	before, err := source.Stat()
	if err != nil {
		return false, err
	}
	to, err := t.Dir.Create(beneath.Base(t.Rel), unix.O_RDWR, 0o600)
	if err != nil {
		return false, err
	}
	defer to.Close()
	if to.Clone(source) != nil {
		if err := to.CopySparse(source, int64(before.Size)); err != nil {
			return false, err
		}
	}
	after, err := source.Stat()
	if err != nil || IdentOf(&before) != IdentOf(&after) {
		return false, err
	}
	*st = after
	a := attrOf(&after, after.Mtime)
	a.XAttrs = source.UserXattrs(MaxXattrs)
	if err := t.apply(to, &to, a); err != nil || !t.Sync {
		return err == nil, err
	}
	return true, to.Sync(false)
}
