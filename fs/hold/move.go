package hold

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// Remains returns EXDEV if Upper has something below directories that are not held and would be exchanged, and ENOTEMPTY if it has
// below one that would be replaced.
func (l *Layers) Remains(from, to string, flags uint) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if flags&beneath.RenameExchange != 0 && (l.has(from, false) || l.has(to, false)) {
		return syscall.EXDEV
	}
	if l.has(to, true) {
		return syscall.ENOTEMPTY
	}
	return nil
}

// Carry calls do, which renames a directory that is not held, and moves what Upper has below it. After a crash between the two
// Upper has it at the new name alone.
func (l *Layers) Carry(from, to string, do func() error) error {
	l.mu.RLock()
	there, left := l.has(from, false), l.has(to, false)
	l.mu.RUnlock()
	if !there && !left {
		return do()
	}
	if !l.gate.TryRLock() {
		return syscall.EXDEV
	}
	defer l.gate.RUnlock()
	if err := l.MakeDirs(parentOf(to)); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	carry := func(from, to string) error {
		n := line{Op: opCarry, Path: []byte(from), To: []byte(to)}
		st, err := l.Upper.Stat(from)
		if err == nil {
			n.From = objectOf(&st)
		}
		if err := l.write(n); err != nil {
			return err
		}
		return l.shift(from, to, err == nil, false, false)
	}
	l.prune(to) // see Remains
	if err := carry(from, to); err != nil {
		return err
	}
	err := do()
	if err == nil {
		return nil
	}
	return undone(err, carry(to, from))
}

// Adopt copies a file of Base that is not held to a held path, where it replaces what is there. The file stays.
func (l *Layers) Adopt(from string, st *beneath.Stat, to string, flags uint) error {
	if was, err := l.Find(to); err == nil && was.Stat.IsDir() {
		return syscall.EISDIR
	} else if err == nil && flags&unix.RENAME_NOREPLACE != 0 {
		return syscall.EEXIST
	}
	name, err := l.stage(&beneath.Found{Root: l.Base, Rel: from, Stat: *st})
	if err != nil {
		return err
	}
	return l.place(name, to, 0, func(*beneath.Stat) error { return nil })
}

// Rename renames within held paths. Nothing is copied: a record says what of Base the new name shows.
func (l *Layers) Rename(old, new Name, flags uint) error {
	return l.change(func(c *change) error { return c.rename(old, new, flags) })
}

func (c *change) rename(old, new Name, flags uint) error {
	l, from, to := c.Layers, old.Path(), new.Path()
	if err := l.here(old, new); err != nil {
		return err
	}
	moved, err := l.look(from)
	if err != nil {
		return Missing(err)
	}
	other, err := l.look(to)
	replaces, swap := err == nil, flags&beneath.RenameExchange != 0
	switch {
	case err != nil && !errors.Is(err, beneath.ErrStale):
		return err
	case !replaces && swap:
		return syscall.ENOENT
	case replaces && flags&unix.RENAME_NOREPLACE != 0:
		return syscall.EEXIST
	case swap:
	case replaces && other.Stat.ID() == moved.Stat.ID():
		return nil // two names of one file: rename(2)
	case replaces && moved.Stat.IsDir() && !other.Stat.IsDir():
		return syscall.ENOTDIR
	case replaces && !moved.Stat.IsDir() && other.Stat.IsDir():
		return syscall.EISDIR
	case replaces && other.Stat.IsDir():
		if err := l.empty(to); err != nil {
			return err
		}
	}
	if c.hides(from, &moved, false); replaces {
		c.hides(to, &other, false)
	}
	if !c.read() {
		return errUnread
	}
	c.note()
	if l.Keep != nil && (moved.Stat.IsDir() || replaces && other.Stat.IsDir()) {
		l.Keep.Moved(from, to)
	}
	return l.renameFound(old, new, &moved, &other, replaces, swap)
}

// renameFound renames what rename has found.
func (l *Layers) renameFound(old, new Name, moved, other *beneath.Found, replaces, swap bool) error {
	from, to := old.Path(), new.Path()
	n := line{Op: opMove, Path: []byte(from), To: []byte(to)}
	n.From = l.objectAt(moved)
	if replaces {
		n.Over = l.objectAt(other)
	}
	shows, left := l.brings(from, to, moved), l.hidden(from)
	if swap {
		n.Op, left = opSwap, l.brings(to, from, other)
	}
	n.Shows, n.Left = stateOf(shows), stateOf(left)
	before := append(l.records.dump(from), l.records.dump(to)...)
	records := swap || l.changes(from, left) || l.changes(to, shows)
	if records {
		if err := l.write(n); err != nil {
			return err
		}
	}
	var err error
	if n.From != (object{}) && !swap {
		err = old.Dir.Rename(old.Name, new.Dir, new.Name, 0)
	} else {
		err = l.shift(from, to, n.From != object{}, n.Over != object{}, swap)
		touch(old.Dir)
		touch(new.Dir)
	}
	if err != nil {
		if records {
			err = undone(err, l.write(append([]line{{Op: opDrop, Path: []byte(from)}, {Op: opDrop, Path: []byte(to)}}, before...)...))
		}
	}
	return err
}

// objectAt returns the object of Upper that look has found; zero: it is Base's.
func (l *Layers) objectAt(at *beneath.Found) (o object) {
	if at.Root == l.Upper {
		o = object{at.Own.Ino, at.Own.Birth}
	}
	return o
}

// brings returns what of Base a path shows to which an object moves from another one.
func (l *Layers) brings(from, to string, moved *beneath.Found) shown {
	base, err := l.below(from)
	usual, there := l.records.usual(to)
	switch {
	case err == nil && base.Stat.Type() == moved.Stat.Type() && there && usual == base.Rel:
		return shown{} // it is back
	case err == nil && base.Stat.Type() == moved.Stat.Type():
		return shown{true, true, base.Rel}
	}
	return l.hidden(to)
}
