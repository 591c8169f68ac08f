package branch

import (
	"bytes"
	"context"
	"errors"
	"maps"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/scope/beneath"
)

// maxSyncs bounds the objects that are synced one by one. With more, one syncfs(2) is faster.
const maxSyncs = 16

// stageAll copies the new objects of the entries to the stage, durably, and returns their inode numbers. It leaves the
// entries that cannot be copied. With hashed it copies those that are left, too.
func (b *Branch) stageAll(ctx context.Context, entries []Entry, left []bool, hashed bool) ([]uint64, error) {
	stage, err := b.State.Dir(stageName)
	if err != nil {
		return nil, err
	}
	defer stage.Close()
	s := &stager{Branch: b, stage: stage, links: map[uint64]string{}}
	inos := make([]uint64, len(entries))
	for i := range entries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		e := &entries[i]
		if e.new.IsDir() && e.Kind == history.Added || e.Mode && !e.copied() {
			e.attr = attributesOf(b.Merged, e.Path, &e.new, true)
		}
		if !e.copied() || left[i] && !hashed {
			continue
		}
		err := s.copy(e, stagedName(i))
		if err == nil {
			var st beneath.Stat
			st, err = stage.Stat(stagedName(i))
			inos[i] = st.Ino
		}
		if err == nil && !e.new.IsDir() { // a client may have changed it since it was listed
			e.NewMode, e.NewSize = uint32(e.new.Mode)&0o7777, int64(e.new.Size)
			if e.new.IsLink() {
				e.Link, err = readlink(b.State, stagePath(stagedName(i)))
			}
		}
		if err == nil && e.Merge == Merged {
			inos[i], err = s.merge(e, i)
			left[i] = inos[i] == 0
		}
		if fatal(err) {
			return nil, err
		}
		if err != nil {
			e.Conflict, e.fixed, left[i], inos[i] = whyCannot+err.Error(), true, true, 0
		}
	}
	if s.count == 0 {
		return inos, nil
	}
	if s.count > maxSyncs {
		err = openDir(b.State, stageName, beneath.File.SyncFS)
	} else {
		err = syncDir(b.State, stageName)
	}
	return inos, err
}

// errStuck reports that a version of the host is in the stage and could not be put back. Nothing may clear the stage.
var errStuck = errors.New("a file of the directory could not be put back")

// fatal reports whether no other entry would fare better.
func fatal(err error) bool {
	for _, e := range []error{errStuck, unix.EIO, unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.ENFILE, unix.EMFILE, unix.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// stager copies objects of the branch to the stage.
type stager struct {
	*Branch
	stage beneath.Dir
	links map[uint64]string // names of files that have several
	count int
}

func (s *stager) copy(e *Entry, name string) error {
	if e.new.IsDir() { // its attributes are set when it is full
		s.count++
		return s.stage.Mkdir(name, 0o700)
	}
	if other := s.links[e.new.Ino]; other != "" {
		return s.stage.Link(other, s.stage, name)
	}
	if e.new.Nlink > 1 {
		s.links[e.new.Ino] = name
	}
	s.count++
	to := target{s.State, s.stage, stagePath(name), s.count <= maxSyncs, true}
	const tries = 4
	for range tries {
		steady, err := to.copy(s.Merged, e.Path, &e.new)
		if steady || err != nil {
			return err
		}
		if err := s.stage.Unlink(name); err != nil {
			return err
		}
	}
	return errors.New("it is being written")
}

// target is a name that gets a copy.
type target struct {
	root *beneath.Root
	dir  beneath.Dir
	rel  string // of the name
	sync bool
	lift bool // the source is of the branch: see openLifted
}

// copy copies an object that is not a directory, with its attributes. It reports whether the object did not change
// meanwhile, and sets st to its present attributes.
func (t *target) copy(from *beneath.Root, rel string, st *beneath.Stat) (steady bool, err error) {
	a := &attributes{Mode: uint32(st.Mode), UID: st.Uid, GID: st.Gid}
	switch st.Type() {
	case unix.S_IFREG:
		return t.copyFile(from, rel, st)
	case unix.S_IFLNK:
		text, err := readlink(from, rel)
		if err == nil {
			err = t.dir.Symlink(text, baseOf(t.rel))
		}
		if err != nil {
			return false, err
		}
	case unix.S_IFIFO:
		if err := t.dir.Mknod(baseOf(t.rel), unix.S_IFIFO|0o600); err != nil {
			return false, err
		}
	default:
		return false, errors.New("a socket or device")
	}
	f, err := t.root.Object(t.rel)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if err := a.set(f, nil); err != nil {
		return false, err
	}
	return true, f.Utimes(unix.Timespec{Nsec: unix.UTIME_OMIT}, mtime(st))
}

func (t *target) copyFile(from *beneath.Root, rel string, st *beneath.Stat) (steady bool, err error) {
	source, err := openRead(from, rel, st, t.lift)
	if err != nil {
		return false, err
	}
	defer source.Close()
	before, err := source.Stat()
	if err != nil {
		return false, err
	}
	to, err := t.dir.Create(baseOf(t.rel), unix.O_RDWR, 0o600)
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
	if err != nil || identOf(&before) != identOf(&after) {
		return false, err
	}
	*st = after
	a := &attributes{uint32(after.Mode), after.Uid, after.Gid, source.UserXattrs(maxXattrs)}
	if err := a.set(to, &to); err != nil {
		return false, err
	}
	if err := to.Utimes(unix.Timespec{Nsec: unix.UTIME_OMIT}, mtime(&after)); err != nil {
		return false, err
	}
	if !t.sync {
		return true, nil
	}
	return true, to.Sync(false)
}

func mtime(st *beneath.Stat) unix.Timespec {
	return unix.Timespec{Sec: st.Mtime.Sec, Nsec: int64(st.Mtime.Nsec)}
}

// setAt gives the object id at a path the attributes.
func (a *attributes) setAt(root *beneath.Root, rel string, id beneath.FileID) error {
	if a.XAttrs != nil {
		st, err := root.Stat(rel)
		if err == nil && st.ID() != id {
			err = beneath.ErrStale
		}
		if err != nil {
			return err
		}
		f, err := openRead(root, rel, &st, true)
		if err != nil {
			return err
		}
		defer f.Close()
		return a.set(f, &f)
	}
	f, err := root.Object(rel)
	if err != nil {
		return err
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || now.ID() != id {
		return beneath.ErrStale
	}
	return a.set(f, nil)
}

// set gives an object the attributes. open is the object open for reading, or nil for one that has no extended attributes.
func (a *attributes) set(f beneath.File, open *beneath.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.Uid != a.UID || st.Gid != a.GID {
		if err := f.Chown(int(a.UID), int(a.GID)); err != nil {
			return err
		}
	}
	if open != nil {
		if err := open.ReplaceXattrs(open.UserXattrs(maxXattrs), a.XAttrs); err != nil {
			return err
		}
	}
	if st.IsLink() {
		return nil
	}
	return f.Chmod(a.Mode & 0o7777)
}

// equal reports whether two objects have the same attributes.
func (a *attributes) equal(o *attributes) bool {
	return a.Mode == o.Mode && a.UID == o.UID && a.GID == o.GID && maps.EqualFunc(a.XAttrs, o.XAttrs, bytes.Equal)
}

// attributesOf returns the attributes of an object: those of the branch are read with lift.
func attributesOf(root *beneath.Root, rel string, st *beneath.Stat, lift bool) *attributes {
	a := &attributes{Mode: uint32(st.Mode), UID: st.Uid, GID: st.Gid}
	if st.IsRegular() || st.IsDir() {
		if f, err := openRead(root, rel, st, lift); err == nil {
			a.XAttrs = f.UserXattrs(maxXattrs)
			f.Close()
		}
	}
	return a
}
