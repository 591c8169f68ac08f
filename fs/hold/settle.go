package hold

import (
	"errors"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Unset removes the record of a path: it shows what Base has there.
func (l *Layers) Unset(rel string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.records.at(rel); r == nil || !r.set {
		return nil
	}
	return l.write(line{Op: opSet, Path: []byte(rel)})
}

// Reveal replaces the record that a path shows nothing of a directory of Base by records of the names in it: Clients see the same, and
// what Base gets later. A directory that Upper has not comes back, with back alone.
func (l *Layers) Reveal(rel string, back bool) error {
	revealed, err := l.reveal(rel, back)
	if err == nil && revealed { // where records are, Upper has the directory
		err = l.MakeDirs(rel)
	}
	return err
}

func (l *Layers) reveal(rel string, back bool) (revealed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.records.at(rel)
	if r == nil || r.shown != gone {
		return false, nil
	}
	base, there := l.records.usual(rel)
	st, err := l.Base.Stat(base)
	own, failed := l.Upper.Stat(rel)
	if !there || err != nil || !st.IsDir() || failed == nil && !own.IsDir() || failed != nil && !back {
		return false, nil
	}
	names, err := l.Base.Names(base)
	if err != nil {
		return false, err
	}
	var lines []line
	for _, name := range names {
		at := beneath.Join(rel, name)
		if kid := r.kids[name]; kid != nil && kid.set {
			continue
		}
		if own, err := l.Upper.Stat(at); err != nil || own.IsDir() {
			lines = append(lines, line{Op: opSet, Path: []byte(at), Shows: stateOf(gone)})
		}
	}
	return true, l.write(append(lines, line{Op: opSet, Path: []byte(rel)})...)
}

// Trim removes the records that make no difference, because Base has nothing there.
func (l *Layers) Trim() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var paths []string
	l.records.each("", func(rel string, _ *record) { paths = append(paths, rel) })
	slices.Sort(paths) // a directory before what it has
	for _, rel := range paths {
		r := l.records.at(rel)
		if r == nil || !r.set {
			continue
		}
		base, there := l.records.usual(rel)
		if r.there {
			base, there = r.base, true
		}
		if there {
			if _, err := l.Base.Stat(base); !errors.Is(err, beneath.ErrStale) {
				continue
			}
		}
		if err := l.write(line{Op: opSet, Path: []byte(rel)}); err != nil {
			return err
		}
	}
	return nil
}

// DropFile removes an object of Upper that is no directory; with want if it is as that says, and no client has it open for writing or
// mapped. want gets it at a place that no client reaches.
func (l *Layers) DropFile(rel string, want func(root *beneath.Root, at string, st *beneath.Stat) bool) (dropped bool, err error) {
	stage, err := l.Stage.Dir("")
	if err != nil {
		return false, err
	}
	defer stage.Close()
	dir, err := l.Upper.Dir(beneath.Parent(rel))
	if err != nil {
		return false, Missing(err)
	}
	defer dir.Close()
	if want == nil {
		err := dir.Unlink(beneath.Base(rel))
		return err == nil, err
	}
	name := strconv.FormatUint(l.copies.Add(1), 10)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.write(line{Op: opOut, Path: []byte(rel), To: []byte(name)}); err != nil { // a crash in between must not lose it
		return false, err
	}
	if err := dir.Rename(beneath.Base(rel), stage, name, unix.RENAME_NOREPLACE); err != nil {
		return false, err
	}
	st, err := stage.Stat(name)
	if err == nil && !st.IsDir() && (!st.IsRegular() || plan.Unwritten(l.Stage, name, &st)) && want(l.Stage, name, &st) {
		return true, stage.Unlink(name)
	}
	return false, undone(err, l.putBack(name, rel))
}

// DropDir removes a directory of Upper that is empty and has no record in it; with below only if clients see one of Base then.
func (l *Layers) DropDir(rel string, below bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.records.at(rel).kidsOf()) > 0 || rel == "" {
		return nil
	}
	if st, err := l.below(rel); below && (err != nil || !st.Stat.IsDir()) {
		return nil
	}
	err := l.removeUpper(rel)
	if err == unix.ENOTEMPTY || errors.Is(err, beneath.ErrStale) {
		return nil
	}
	return err
}

// Reset gives a directory of Upper the attributes of the one of Base.
func (l *Layers) Reset(rel string) error {
	base, err := l.Below(rel)
	if err != nil {
		return err
	}
	return copyAttributes(&base, l.Upper, rel)
}

// Move renames a path to a free one.
func (l *Layers) Move(from, to string) error {
	var names [2]Name
	for i, rel := range []string{from, to} {
		if err := l.MakeDirs(beneath.Parent(rel)); err != nil {
			return err
		}
		dir, err := l.Upper.Dir(beneath.Parent(rel))
		if err != nil {
			return err
		}
		defer dir.Close()
		names[i] = Name{dir, beneath.Parent(rel), beneath.Base(rel)}
	}
	return l.Rename(names[0], names[1], unix.RENAME_NOREPLACE, nil, false)
}

// Empty reports whether clients see Base alone.
func (l *Layers) Empty() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	empty := len(l.records.kids) == 0
	err := l.Upper.Each("", func(string) bool { empty = false; return false })
	return empty && err == nil
}

// ClearJournal removes all records.
func (l *Layers) ClearJournal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records, l.copied, l.announced = &record{}, map[uint64]copied{}, false
	return l.log.Clear()
}
