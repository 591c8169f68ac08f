package hold

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/branch"
	"github.com/scopefs/scopefs/scope/beneath"
)

// MakeDirs makes a directory of Upper, and those above it, as the scope's are.
func (l *Layers) MakeDirs(rel string) error {
	if st, err := l.Upper.Stat(rel); err == nil && st.IsDir() {
		return nil
	}
	if err := l.MakeDirs(parentOf(rel)); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	st, err := l.below(rel)
	if err != nil || !st.IsDir() {
		return beneath.ErrStale
	}
	dir, err := l.Upper.Dir(parentOf(rel))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err = dir.Mkdir(baseOf(rel), 0o700); err == nil {
		if err = branch.CopyAttributes(l.Base, rel, l.Upper, rel); err != nil {
			_ = dir.Rmdir(baseOf(rel))
		}
	}
	if now, failed := dir.Stat(baseOf(rel)); err == unix.EEXIST && failed == nil && now.IsDir() {
		return nil // another request has made it
	}
	return err
}

// CopyUp copies the scope's object at a held path to Upper, unless Upper has one. st are its attributes.
func (l *Layers) CopyUp(rel string, st *beneath.Stat) error {
	if err := l.Quota.Fits(int64(st.Blocks) * 512); err != nil {
		return err
	}
	if err := l.MakeDirs(parentOf(rel)); err != nil {
		return err
	}
	name := strconv.FormatUint(l.copies.Add(1), 10)
	if err := branch.Copy(l.Base, rel, st, l.Stage, name); err != nil {
		return err
	}
	err := l.place(name, rel, unix.RENAME_NOREPLACE)
	if err == unix.EEXIST {
		return nil // another request has copied it, or made it anew
	}
	return err
}

// place moves a copy to a held path of Upper.
func (l *Layers) place(name, rel string, flags uint) error {
	stage, err := l.Stage.Dir("")
	if err != nil {
		return err
	}
	defer stage.Close()
	dir, err := l.Upper.Dir(parentOf(rel))
	if err == nil {
		defer dir.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		if err = l.note(rel); err == nil {
			err = stage.Rename(name, dir, baseOf(rel), flags)
		}
		if st, failed := dir.Stat(baseOf(rel)); err == nil && failed == nil {
			l.Quota.Added(&st)
		}
	}
	if err != nil {
		_ = stage.Unlink(name)
	}
	return err
}

// note notes the scope's version of a path that Upper is about to have. The caller holds mu.
func (l *Layers) note(rel string) error {
	if _, err := l.Upper.Stat(rel); err == nil {
		return nil
	}
	st, err := l.below(rel)
	if err != nil {
		return nil
	}
	return branch.Note(l.State, rel, &st)
}

// Make calls f, which creates the object of a place in Upper. A new directory hides what the scope has in its own.
func (l *Layers) Make(at Name, f func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	rel := at.Path()
	if _, _, err := l.look(rel); !errors.Is(err, beneath.ErrStale) {
		return cmp.Or(err, error(syscall.EEXIST))
	}
	st, err := at.Dir.Stat(at.Name)
	white := err == nil && st.IsWhiteout()
	if white {
		if err := at.Dir.Unlink(at.Name); err != nil {
			return err
		}
	}
	if err := f(); err != nil {
		if !white {
			return err
		}
		if failed := at.Dir.Whiteout(at.Name); failed != nil {
			return errors.Join(err, failed)
		}
		return err
	}
	return l.cover(rel)
}

// cover puts whiteouts into a new directory of Upper for what the scope's has.
func (l *Layers) cover(rel string) error {
	st, err := l.Upper.Stat(rel)
	if err != nil || !st.IsDir() {
		return err
	}
	lower, err := l.below(rel)
	if err != nil || !lower.IsDir() {
		return nil
	}
	names, err := l.Base.Names(rel)
	if err != nil {
		return err
	}
	dir, err := l.Upper.Dir(rel)
	if err != nil {
		return err
	}
	defer dir.Close()
	for _, name := range names {
		if failed := dir.Whiteout(name); failed != nil && failed != unix.EEXIST {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// Remove removes the object of a place, a directory or another one.
func (l *Layers) Remove(at Name, directory bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.drop(at, directory)
}

func (l *Layers) drop(at Name, directory bool) error {
	rel := at.Path()
	st, root, err := l.look(rel)
	switch {
	case err != nil:
		return Missing(err)
	case directory && !st.IsDir():
		return syscall.ENOTDIR
	case !directory && st.IsDir():
		return syscall.EISDIR
	}
	if err := l.note(rel); err != nil {
		return err
	}
	if directory {
		if err := l.empty(rel, root == l.Upper); err != nil {
			return err
		}
	}
	switch {
	case root != l.Upper:
	case directory:
		err = at.Dir.Rmdir(at.Name)
	default:
		err = at.Dir.Unlink(at.Name)
	}
	if err != nil {
		return err
	}
	if _, err := l.below(rel); errors.Is(err, beneath.ErrStale) {
		return nil
	}
	return at.Dir.Whiteout(at.Name)
}

// empty returns ENOTEMPTY for a directory that has names. It removes the whiteouts of Upper's.
func (l *Layers) empty(rel string, own bool) error {
	var mine, theirs []string
	var err error
	if own {
		if mine, err = l.Upper.Names(rel); err != nil {
			return err
		}
	}
	if st, failed := l.below(rel); failed == nil && st.IsDir() {
		if theirs, err = l.Base.Names(rel); err != nil {
			return err
		}
	}
	for _, name := range theirs {
		if !slices.Contains(mine, name) {
			return syscall.ENOTEMPTY
		}
	}
	for _, name := range mine {
		if st, err := l.Upper.Stat(beneath.Join(rel, name)); err != nil || !st.IsWhiteout() {
			return cmp.Or(err, error(syscall.ENOTEMPTY))
		}
	}
	return l.sweep(rel, mine)
}

// sweep removes names of a directory of Upper.
func (l *Layers) sweep(rel string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	dir, err := l.Upper.Dir(rel)
	if err != nil {
		return err
	}
	defer dir.Close()
	for _, name := range names {
		err = errors.Join(err, dir.Unlink(name))
	}
	return err
}

// has reports whether Upper has anything in a directory that is not held; with shown anything but whiteouts.
func (l *Layers) has(rel string, shown bool) bool {
	st, err := l.Upper.Stat(rel)
	if err != nil {
		return false
	}
	if !st.IsDir() {
		return !shown || !st.IsWhiteout()
	}
	names, err := l.Upper.Names(rel)
	return err != nil || slices.ContainsFunc(names, func(name string) bool { return l.has(beneath.Join(rel, name), shown) })
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
	l.prune(rel)
}

func (l *Layers) prune(rel string) {
	st, err := l.Upper.Stat(rel)
	if err != nil {
		return
	}
	dir, err := l.Upper.Dir(parentOf(rel))
	if err != nil {
		return
	}
	defer dir.Close()
	if !st.IsDir() {
		_ = dir.Unlink(baseOf(rel))
		return
	}
	names, _ := l.Upper.Names(rel)
	for _, name := range names {
		l.prune(beneath.Join(rel, name))
	}
	_ = dir.Rmdir(baseOf(rel))
}

func parentOf(rel string) string { return rel[:max(strings.LastIndexByte(rel, '/'), 0)] }
func baseOf(rel string) string   { return rel[strings.LastIndexByte(rel, '/')+1:] }
