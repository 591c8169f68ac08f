package hold

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
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
	if err := l.MakeDirs(beneath.Parent(to)); err != nil {
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
	keep := func(history.Place, *beneath.Stat) (*history.Making, error) { return nil, nil }
	return l.place(name, to, 0, keep, func(*beneath.Stat) error { return nil })
}

// Rename renames within held paths. A record says what of Base the new name shows: only a file that replaces one of Upper is copied, if w
// keeps changes. open reports whether clients have the object open that is replaced.
func (l *Layers) Rename(old, new Name, flags uint, w *history.Writer, open bool) error {
	for try := 0; ; try++ {
		err := l.change(func(c *change) error { return c.rename(old, new, flags, w, open) })
		below, ok := errors.AsType[*notOwn](err)
		if !ok || try == maxTries {
			return err
		}
		if below.dir {
			err = l.MakeDirs(below.rel)
		} else {
			err = l.CopyUp(below.rel, w)
		}
		if err != nil {
			return err
		}
	}
}

// notOwn reports an object of Base that has to be one of Upper: else a history had one record for two changes.
type notOwn struct {
	rel string
	dir bool
}

const maxTries = 4

func (*notOwn) Error() string { return "it is not in the layer" }

func (*notOwn) Unwrap() error { return beneath.ErrStale }

// keeps returns an error for an object that has to be one of Upper, for a history: a directory has what Upper gets below it later.
func (c *change) keeps(old, new Name, moved, other *beneath.Found, replaces, swap bool) error {
	switch {
	case moved.Root != c.Upper && (moved.Stat.IsDir() || replaces && !swap && other.Root == c.Upper):
		return &notOwn{old.Path(), moved.Stat.IsDir()}
	case replaces && swap && other.Root != c.Upper && other.Stat.IsDir():
		return &notOwn{new.Path(), true}
	}
	return nil
}

func (c *change) rename(old, new Name, flags uint, w *history.Writer, open bool) error {
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
	if w != nil {
		if err := c.keeps(old, new, &moved, &other, replaces, swap); err != nil {
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
	return l.renameFound(old, new, &moved, &other, replaces, swap, w, open)
}

// renameFound renames what rename has found.
func (l *Layers) renameFound(old, new Name, moved, other *beneath.Found, replaces, swap bool, w *history.Writer, open bool) error {
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
	if w != nil {
		return l.renameKept(old, new, &n, before, records, w, open)
	}
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
	if err != nil && records {
		err = undone(err, l.restore(before, from, to))
	}
	return err
}

// renameKept is renameFound where w keeps changes. Its records are in the history before the journal announces the change.
func (l *Layers) renameKept(old, new Name, n *line, before []line, records bool, w *history.Writer, open bool) error {
	has, over, swap := n.From != object{}, n.Over != object{}, n.Op == opSwap
	a, err := keptPlace(old)
	if err != nil {
		return err
	}
	b, err := keptPlace(new)
	if err != nil {
		return err
	}
	var moved, other *beneath.Stat // of Upper
	for _, one := range []struct {
		st  **beneath.Stat
		at  Name
		has bool
	}{{&moved, old, has}, {&other, new, over}} {
		if !one.has {
			continue
		}
		st, err := one.at.Dir.Stat(one.at.Name)
		if err != nil {
			return err
		}
		*one.st = &st
	}
	var id beneath.FileID
	flags := uint(0)
	switch {
	case swap && has && over:
		flags = beneath.RenameExchange
	case !has && over: // an exchange: see keeps
		a, b, moved, other = b, a, other, nil
	}
	if moved != nil {
		id = moved.ID()
	}
	var shown *history.Showing
	lines, written := []line{*n}, false
	if records {
		if shown, err = l.showing(w, id, lines, false); err != nil {
			return err
		}
	}
	write := func() error {
		err := l.write(lines...)
		written = err == nil
		return err
	}
	if moved == nil {
		if err = errors.Join(w.Times(a), w.Times(b)); err == nil {
			err = write()
		}
		if err == nil {
			touch(old.Dir)
			touch(new.Dir)
		}
	} else {
		if records {
			w = w.Ready(write)
		}
		err = w.Rename(a, b, moved, other, open, flags)
	}
	if err == nil {
		shown.Done()
		return nil
	}
	shown.Void()
	if written {
		err = undone(err, l.restore(before, string(n.Path), string(n.To)))
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
