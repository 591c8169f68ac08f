package hold

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// MakeDirs makes a directory of Upper, and those above it, as the client sees them.
func (l *Layers) MakeDirs(rel string) error {
	if st, err := l.Upper.Stat(rel); err == nil && st.IsDir() {
		return nil
	}
	if err := l.MakeDirs(beneath.Parent(rel)); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if st, err := l.Upper.Stat(rel); err == nil && st.IsDir() {
		return nil // another request has made it
	}
	base, err := l.below(rel)
	if err != nil || !base.Stat.IsDir() {
		return beneath.ErrStale
	}
	dir, err := l.Upper.Dir(beneath.Parent(rel))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err = dir.Mkdir(beneath.Base(rel), 0o700); err != nil {
		return err
	}
	if err = copyAttributes(&base, l.Upper, rel); err != nil {
		return undone(err, dir.Rmdir(beneath.Base(rel)))
	}
	return nil
}

// copyAttributes gives a directory the owner, mode and extended attributes of another one, and its modification time.
func copyAttributes(from *beneath.Found, to *beneath.Root, at string) error {
	now, err := to.Stat(at)
	if err != nil {
		return err
	}
	a := plan.AttributesOf(from.Root, from.Rel, &from.Stat, false)
	a.Mtime = from.Stat.Mtime
	return plan.AsOwner(a, &now, func(a *journal.Attr) error { return plan.SetAttributes(to, at, now.ID(), a) })
}

// CopyUp copies Base's object at a path to Upper, unless Upper has one. w keeps that.
func (l *Layers) CopyUp(rel string, w *history.Writer) error {
	from, err := l.Below(rel)
	if err == nil {
		err = l.Quota.Fits(int64(from.Stat.Blocks) * 512)
	}
	if err == nil {
		err = l.MakeDirs(beneath.Parent(rel))
	}
	if err != nil {
		return err
	}
	name, err := l.stage(&from)
	if err != nil {
		return err
	}
	keep := func(at history.Place, own *beneath.Stat) (*history.Making, error) {
		return w.Copied(at, own.ID(), from.Rel)
	}
	err = l.place(name, rel, unix.RENAME_NOREPLACE, keep, func(own *beneath.Stat) error {
		if now, err := l.below(rel); err != nil || now.Own != from.Own {
			return beneath.ErrStale // the directory has moved
		}
		if from.Stat.Nlink > 1 { // its other names are other files from now on
			return nil
		}
		return l.write(line{Op: opCopy, From: objectOf(own), Over: object{Ino: from.Own.Ino}})
	})
	if err == unix.EEXIST {
		return nil // another request has copied it, or made it anew
	}
	return err
}

// stage copies an object to Stage, and returns its name there. A file is on the disk then: a name that gets the copy must not be
// empty after a power failure.
func (l *Layers) stage(from *beneath.Found) (name string, err error) {
	dir, err := l.Stage.Dir("")
	if err != nil {
		return "", err
	}
	defer dir.Close()
	name = strconv.FormatUint(l.copies.Add(1), 10)
	to := plan.Target{Root: l.Stage, Dir: dir, Rel: name, Sync: true, Lift: true, Own: true}
	return name, to.Copy(from.Root, from.Rel, &from.Stat)
}

// place moves a copy to a path of Upper, if may agrees.
func (l *Layers) place(name, rel string, flags uint, keep func(history.Place, *beneath.Stat) (*history.Making, error),
	may func(own *beneath.Stat) error) error {
	stage, err := l.Stage.Dir("")
	if err != nil {
		return err
	}
	defer stage.Close()
	dir, err := l.Upper.Dir(beneath.Parent(rel))
	if err == nil {
		defer dir.Close()
		err = l.change(func(c *change) error {
			if at, err := l.look(rel); err == nil {
				c.hides(rel, &at, false)
			}
			if !c.read() {
				return errUnread
			}
			own, err := stage.Stat(name)
			if err == nil {
				err = l.begin()
			}
			if err != nil {
				return err
			}
			at, err := keptPlace(Name{dir, beneath.Parent(rel), beneath.Base(rel)})
			if err != nil {
				return err
			}
			m, err := keep(at, &own)
			if err != nil {
				return err
			}
			if err = may(&own); err == nil {
				c.note()
				err = stage.Rename(name, dir, beneath.Base(rel), flags)
			}
			if err != nil {
				m.Void()
				return err
			}
			m.Done(&own)
			l.Quota.Added(&own)
			return nil
		})
	}
	if err != nil {
		_ = stage.Unlink(name)
	}
	return err
}

// change is a change of Upper under mu.
type change struct {
	*Layers
	versions []version
}

// version is an object of Base that a change is about to hide.
type version struct {
	rel     string
	at      *beneath.Found // nil: not in this try
	removal bool
	note    func(at string, st *beneath.Stat) // nil: it is not read
}

// errUnread has change read versions.
var errUnread = errors.New("a version is not read")

// change calls do with mu, and again after it has read what do wants to hide, without mu: a file can be large and its disk slow.
func (l *Layers) change(do func(*change) error) error {
	c := &change{Layers: l}
	for {
		l.mu.Lock()
		err := do(c)
		l.mu.Unlock()
		if err != errUnread {
			return err
		}
		for i := range c.versions {
			v := &c.versions[i]
			if v.note == nil {
				v.note = l.Keep.Read(v.rel, v.at.Rel, &v.at.Stat, v.removal)
			}
			v.at = nil
		}
	}
}

// hides says that the change hides the object that look has found at a path.
func (c *change) hides(rel string, at *beneath.Found, removal bool) {
	if c.Keep == nil || at.Root != c.Base {
		return
	}
	for i := range c.versions {
		if c.versions[i].rel == rel {
			c.versions[i].at = at
			return
		}
	}
	c.versions = append(c.versions, version{rel, at, removal, nil})
}

// read reports whether all that the change hides is read.
func (c *change) read() bool {
	return !slices.ContainsFunc(c.versions, func(v version) bool { return v.note == nil })
}

// note notes what the change hides.
func (c *change) note() {
	for _, v := range c.versions {
		if v.at != nil {
			v.note(v.at.Rel, &v.at.Stat)
		}
	}
}

// keptPlace returns a name for a history.
func keptPlace(at Name) (history.Place, error) {
	st, err := at.Dir.Self().Stat()
	return history.Place{Dir: at.Dir, ID: st.ID(), Rel: at.Rel, Name: at.Name}, err
}

// Make calls f, which creates the object of a place in Upper.
func (l *Layers) Make(at Name, f func(history.Place) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.here(at); err != nil {
		return err
	}
	if _, err := l.look(at.Path()); !errors.Is(err, beneath.ErrStale) {
		return cmp.Or(err, error(syscall.EEXIST))
	}
	place, err := keptPlace(at)
	if err != nil {
		return err
	}
	return f(place)
}

// Replace calls f, which gives an object of Upper the name of a place. own are the attributes of the object that Upper has there; nil: none.
func (l *Layers) Replace(at Name, f func(place history.Place, own *beneath.Stat) error) error {
	return l.change(func(c *change) error {
		if err := l.here(at); err != nil {
			return err
		}
		var own *beneath.Stat
		if was, err := l.look(at.Path()); err == nil {
			if c.hides(at.Path(), &was, false); was.Root == l.Upper {
				own = &was.Stat
			}
		}
		if !c.read() {
			return errUnread
		}
		c.note()
		place, err := keptPlace(at)
		if err != nil {
			return err
		}
		return f(place, own)
	})
}

// Remove removes the object of a place, a directory or another one. w keeps it. open reports whether clients have it open.
func (l *Layers) Remove(at Name, directory bool, w *history.Writer, open bool) error {
	return l.change(func(c *change) error { return c.remove(at, directory, w, open) })
}

func (c *change) remove(at Name, directory bool, w *history.Writer, open bool) error {
	if err := c.here(at); err != nil {
		return err
	}
	rel := at.Path()
	was, err := c.look(rel)
	switch {
	case err != nil:
		return Missing(err)
	case directory && !was.Stat.IsDir():
		return syscall.ENOTDIR
	case !directory && was.Stat.IsDir():
		return syscall.EISDIR
	case directory:
		if err := c.empty(rel); err != nil {
			return err
		}
	}
	if c.hides(rel, &was, true); !c.read() {
		return errUnread
	}
	c.note()
	place, err := keptPlace(at)
	if err != nil {
		return err
	}
	before := c.records.dump(rel)
	after := c.hidden(rel)
	var shown *history.Showing
	if c.changes(rel, after) {
		lines := []line{{Op: opDrop, Path: []byte(rel), Shows: stateOf(after)}}
		if shown, err = c.showing(w, beneath.FileID{}, lines, false); err != nil {
			return err
		}
		if err = c.write(lines...); err != nil {
			shown.Void()
			return err
		}
	}
	if was.Root != c.Upper {
		if err = w.Times(place); err == nil {
			touch(at.Dir)
		}
	} else {
		var own beneath.Stat // a directory's
		if own, err = at.Dir.Stat(at.Name); err == nil && directory {
			err = w.Rmdir(place, &own)
		} else if err == nil {
			err = w.Unlink(place, &own, open)
		}
	}
	if err != nil {
		shown.Void()
		return undone(err, c.restore(before, rel))
	}
	shown.Done()
	return nil
}

// undone returns the error of a change, and that of its undo if it has one: the kernel gets an errno.
func undone(err, undo error) error {
	if undo == nil {
		return err
	}
	return errors.Join(err, undo)
}

// hidden returns the record of a path that shows nothing of Base from now on: it needs none if Base has nothing there.
func (l *Layers) hidden(rel string) shown {
	base, there := l.records.usual(rel)
	if _, err := l.Base.Stat(base); !there || errors.Is(err, beneath.ErrStale) {
		return shown{}
	}
	return gone
}

// changes reports whether the records have to change for a path to show s, and nothing else below it.
func (l *Layers) changes(rel string, s shown) bool {
	return l.records.own(rel) != s || len(l.records.at(rel).kidsOf()) > 0
}

// restore sets the records at and below some paths as they were.
func (l *Layers) restore(before []line, rels ...string) error {
	var lines []line
	for _, rel := range rels {
		lines = append(lines, line{Op: opDrop, Path: []byte(rel)})
	}
	return l.write(append(lines, before...)...)
}

// empty returns ENOTEMPTY for a directory that has names. Upper's can be one that its owner may not list.
func (l *Layers) empty(rel string) error {
	return l.Upper.Lifting(rel, unix.S_IRWXU, func() error {
		names, err := l.names(rel)
		if err == nil && len(names) > 0 {
			err = syscall.ENOTEMPTY
		}
		return err
	})
}

// has reports whether Upper or a record has anything in a directory that is not held; with shown anything that clients see.
func (l *Layers) has(rel string, shown bool) (has bool) {
	l.records.at(rel).each(rel, func(_ string, r *record) { has = has || !shown || r.there })
	return has || l.upperHas(rel)
}

func (l *Layers) upperHas(rel string) (has bool) {
	st, err := l.Upper.Stat(rel)
	if err != nil || !st.IsDir() {
		return err == nil
	}
	err = l.Upper.Each(rel, func(name string) bool {
		has = l.upperHas(beneath.Join(rel, name))
		return !has
	})
	return has || err != nil
}

// Shows reports whether clients see something of Upper in a directory that is not held.
func (l *Layers) Shows(rel string) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.has(rel, true)
}

// Clear removes what Upper has of a directory that is not held and is gone.
func (l *Layers) Clear(rel string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.has(rel, true) {
		return
	}
	if l.changes(rel, shown{}) && l.write(line{Op: opDrop, Path: []byte(rel)}) != nil {
		return
	}
	l.prune(rel)
}

// prune removes directories of Upper that have nothing.
func (l *Layers) prune(rel string) {
	if st, err := l.Upper.Stat(rel); err != nil || !st.IsDir() {
		return
	}
	names, _ := l.Upper.Names(rel)
	for _, name := range names {
		l.prune(beneath.Join(rel, name))
	}
	_ = l.removeUpper(rel)
}
