package plan

import (
	"bytes"
	"errors"
	"maps"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/scope/beneath"
)

// ErrCapability reports that security.capability of a file could not be set: the process lacks CAP_SETFCAP,
// capabilities(7). Everything else was set.
var ErrCapability = errors.New("its file capabilities are not restored: that needs CAP_SETFCAP")

// ErrOwner reports that an object has this user's group or owner in place of its own, which the process's user namespace lacks. Its
// group may then do what others may as well. Everything else was set.
var ErrOwner = errors.New("its owner and group are not restored: this user cannot give it to them")

// SetAttributes gives the object id at a path attributes: extended ones if a has them. It fails with
// beneath.ErrStale if another object is there.
func SetAttributes(root *beneath.Root, rel string, id beneath.FileID, a *journal.Attr) error {
	f, err := root.Object(rel)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.ID() != id {
		return beneath.ErrStale
	}
	if a.XAttrs == nil && a.Capability == nil || st.IsLink() {
		return Apply(root, rel, f, nil, a)
	}
	open, err := OpenRead(root, rel, &st, true)
	if err != nil && len(a.XAttrs) == 0 && a.Capability == nil {
		return Apply(root, rel, f, nil, a)
	}
	if err != nil {
		return err
	}
	defer open.Close()
	err = Apply(root, rel, f, &open, a)
	if err == unix.EACCES { // xattr(7): user attributes need the right to write. Apply sets the mode last
		if err = open.Chmod(uint32(st.Mode)&0o7777 | unix.S_IWUSR); err == nil {
			err = Apply(root, rel, f, &open, a)
		}
	}
	return err
}

// Apply gives f, the object at a path, attributes. open is the object open for reading, or nil: then extended attributes stay as they
// are.
func Apply(root *beneath.Root, rel string, f beneath.File, open *beneath.File, a *journal.Attr) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	mode := a.Mode & 0o7777
	var partly error
	if st.Uid != a.UID || st.Gid != a.GID {
		err := f.Chown(int(a.UID), int(a.GID))
		if err == unix.EINVAL { // user_namespaces(7): an id without a mapping
			partly, mode = ErrOwner, mode&0o1707|mode&(mode<<3)&0o070
		} else if err != nil {
			return err
		}
	}
	if open != nil && a.XAttrs != nil {
		if err := open.ReplaceXattrs(open.UserXattrs(MaxXattrs), a.XAttrs); err != nil {
			return err
		}
	}
	if !st.IsLink() {
		if err := root.Chmod(f, rel, mode); err != nil {
			return err
		}
	}
	if open != nil && a.Capability != nil && !bytes.Equal(journal.CapabilityOf(*open), a.Capability) {
		if err := open.Setxattr(journal.Capability, a.Capability, 0); err != nil {
			return errors.Join(ErrCapability, partly, f.Utimes(a.Times()))
		}
	}
	return errors.Join(partly, f.Utimes(a.Times()))
}

// omitted is a time that stays as it is: utimensat(2).
var omitted = unix.StatxTimestamp{Nsec: unix.UTIME_OMIT}

func attrOf(st *beneath.Stat, mtime unix.StatxTimestamp) *journal.Attr {
	return &journal.Attr{Mode: uint32(st.Mode), UID: st.Uid, GID: st.Gid, Atime: omitted, Mtime: mtime}
}

// MaxXattrs bounds the extended attributes of an object, in bytes.
const MaxXattrs = 1 << 20

// AttributesOf returns the attributes of an object, without times. With lift also those that its mode keeps its owner
// from are read.
func AttributesOf(root *beneath.Root, rel string, st *beneath.Stat, lift bool) *journal.Attr {
	a := attrOf(st, omitted)
	if st.IsRegular() || st.IsDir() {
		if f, err := OpenRead(root, rel, st, lift); err == nil {
			a.XAttrs = f.UserXattrs(MaxXattrs)
			f.Close()
		}
	}
	return a
}

// SameAttributes reports whether two objects have the same attributes. Times are not compared.
func SameAttributes(a, b *journal.Attr) bool {
	return a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && maps.EqualFunc(a.XAttrs, b.XAttrs, bytes.Equal)
}

// OpenRead opens an object for reading. With lift it also opens one whose mode keeps its owner from that: the mode is
// lifted during the open. This sets the change time of the object, and st gets the new one.
func OpenRead(root *beneath.Root, rel string, st *beneath.Stat, lift bool) (beneath.File, error) {
	f, err := root.Open(rel, unix.O_RDONLY, st.ID())
	if !lift || !errors.Is(err, unix.EACCES) {
		return f, err
	}
	restore := root.Lift(rel, unix.S_IRUSR)
	f, err = root.Open(rel, unix.O_RDONLY, st.ID())
	restore()
	if err != nil {
		return f, err
	}
	now, err := f.Stat()
	if err != nil {
		f.Close()
		return f, err
	}
	st.Ctime = now.Ctime
	return f, nil
}

// Unwritten reports whether no process can write a file with the attributes st.
func Unwritten(root *beneath.Root, rel string, st *beneath.Stat) bool {
	f, err := OpenRead(root, rel, st, true)
	if err == nil {
		err = f.Unwritten()
		f.Close()
	}
	return err == nil
}
