package hold

import (
	"errors"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/branch"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Remains returns EXDEV if Upper has something below directories that would be exchanged, and ENOTEMPTY if it has below one
// that would be replaced.
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
	l.prune(to) // whiteouts: see remains
	if !there {
		return do()
	}
	if err := l.move(from, to); err != nil {
		return err
	}
	err := do()
	if err == nil {
		return nil
	}
	if failed := l.move(to, from); failed != nil {
		return errors.Join(err, failed)
	}
	return err
}

// move renames in Upper.
func (l *Layers) move(from, to string) error {
	a, err := l.Upper.Dir(parentOf(from))
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := l.Upper.Dir(parentOf(to))
	if err != nil {
		return err
	}
	defer b.Close()
	return a.Rename(baseOf(from), b, baseOf(to), unix.RENAME_NOREPLACE)
}

// Adopt copies a file of Base that is not held to a held path, where it replaces what is there. The file stays.
func (l *Layers) Adopt(from string, st *beneath.Stat, to string, flags uint) error {
	if was, _, err := l.Find(to); err == nil && was.IsDir() {
		return syscall.EISDIR
	} else if err == nil && flags&unix.RENAME_NOREPLACE != 0 {
		return syscall.EEXIST
	}
	name := strconv.FormatUint(l.copies.Add(1), 10)
	if err := branch.Copy(l.Base, from, st, l.Stage, name); err != nil {
		return err
	}
	return l.place(name, to, 0)
}

// Rename renames within held paths.
func (l *Layers) Rename(old, new Name, flags uint) error {
	from, to := old.Path(), new.Path()
	for _, rel := range []string{from, to} {
		st, at, err := l.Find(rel)
		if err == nil && at == l.Base && !st.IsDir() && (rel == from || flags&beneath.RenameExchange != 0) {
			err = l.CopyUp(rel, &st)
		}
		if err != nil && (rel == from || !errors.Is(err, beneath.ErrStale)) {
			return Missing(err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	moved, at, err := l.look(from)
	if err != nil {
		return Missing(err)
	}
	if lower, err := l.below(from); at != l.Upper || err == nil && lower.IsDir() && moved.IsDir() {
		return syscall.EXDEV
	}
	other, _, err := l.look(to)
	switch {
	case err != nil && !errors.Is(err, beneath.ErrStale):
		return err
	case err != nil && flags&beneath.RenameExchange != 0:
		return syscall.ENOENT
	case err == nil && flags&unix.RENAME_NOREPLACE != 0:
		return syscall.EEXIST
	case flags&beneath.RenameExchange != 0:
		if moved.IsDir() || other.IsDir() {
			return syscall.EXDEV
		}
		return old.Dir.Rename(old.Name, new.Dir, new.Name, flags)
	case err == nil && other.ID() == moved.ID():
		return nil // two names of one file: rename(2)
	case err == nil && moved.IsDir() && !other.IsDir():
		return syscall.ENOTDIR
	case err == nil && !moved.IsDir() && other.IsDir():
		return syscall.EISDIR
	}
	if err := l.makeRoom(new, err == nil && other.IsDir(), moved.IsDir()); err != nil {
		return err
	}
	if err := old.Dir.Rename(old.Name, new.Dir, new.Name, 0); err != nil {
		return err
	}
	if err := l.cover(to); err != nil {
		return err
	}
	if _, err := l.below(from); errors.Is(err, beneath.ErrStale) {
		return nil
	}
	return old.Dir.Whiteout(old.Name)
}

// makeRoom notes the scope's object at the new name of a rename, and removes what a directory cannot replace.
func (l *Layers) makeRoom(new Name, replaces, directory bool) error {
	if err := l.note(new.Path()); err != nil {
		return err
	}
	if replaces {
		if err := l.drop(new, true); err != nil {
			return err
		}
	}
	if st, err := new.Dir.Stat(new.Name); err == nil && directory && st.IsWhiteout() {
		return new.Dir.Unlink(new.Name)
	}
	return nil
}
