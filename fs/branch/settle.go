package branch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// settle lets the branch show Base where a commit has made both equal, or merged them. What clients have open for writing or mapped
// stays in the branch, and so does what they have written since.
func (b *Branch) settle(done []*step) error {
	// A directory shows its new names before their records of moves go, and after its own has gone.
	byPath := slices.SortedFunc(slices.Values(done), func(x, y *step) int { return bytes.Compare(x.Branch, y.Branch) })
	for _, s := range byPath {
		if err := errors.Join(b.revealAbove(string(s.Branch)), b.Reveal(string(s.Branch), false)); err != nil {
			return err
		}
		if s.Moved || s.Merged != nil {
			if err := b.Unset(string(s.Branch)); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(b.Trim(), b.Layers.Sync()); err != nil { // as in shed
		return err
	}
	var gone [][]byte
	for _, s := range done {
		if s.takes() {
			gone = append(gone, s.At.Path)
		}
		if s.Do == plan.Attributes {
			continue
		}
		gone = append(gone, s.Branch)
		if s.Merged == nil {
			continue
		}
		same := func(_ *beneath.Root, _ string, st *beneath.Stat) bool { return s.Merged.SameContent(plan.IdentOf(st)) }
		dropped, err := b.DropFile(string(s.Branch), same)
		if !dropped {
			gone = gone[:len(gone)-1] // it conflicts again, with the same version before
		}
		if fatal(err) {
			return err
		}
	}
	stay, err := b.shed()
	if err != nil {
		return err
	}
	if err := b.noteOrigins(stay, gone); err != nil {
		return err
	}
	return b.renew()
}

// revealAbove reveals the directories above a path.
func (b *Branch) revealAbove(rel string) error {
	for i := range rel {
		if rel[i] == '/' {
			if err := b.Reveal(rel[:i], false); err != nil {
				return err
			}
		}
	}
	return nil
}

// shed removes from Upper what equals Base. It returns the files that stay, because clients may write them.
func (b *Branch) shed() (stay []noted, err error) {
	d, err := b.differ(context.Background())
	if err != nil {
		return nil, err
	}
	d.release()
	slices.SortFunc(d.same, func(x, y Entry) int { return strings.Compare(y.Path, x.Path) })
	hidden := map[string]bool{} // directories whose names cannot be shown
	for _, e := range slices.Backward(d.same) {
		var err error
		if e.new.IsDir() { // one that was removed and made anew
			err = b.Reveal(e.Path, false)
			hidden[e.Path] = err != nil
		} else {
			err = b.Unset(e.Path)
		}
		if err != nil && (!e.new.IsDir() || fatal(err)) {
			return nil, fmt.Errorf("%s: %w", e.Path, err)
		}
	}
	if err := b.Layers.Sync(); err != nil { // first: without the object of Upper a record would hide Base's, also after a power failure in between
		return nil, err
	}
	for i := range d.same {
		e := &d.same[i]
		if hidden[e.Path] {
			continue
		}
		if e.new.IsDir() {
			err := b.lifted(e.Path, func() error { return b.DropDir(e.Path, true) })
			if fatal(err) {
				return nil, fmt.Errorf("%s: %w", e.Path, err)
			}
			continue
		}
		equal := func(root *beneath.Root, at string, st *beneath.Stat) bool {
			content, mode, err := d.equalTo(&node{st: *st}, root, at, e.base, &e.old, e.Link)
			return !content && !mode && err == nil
		}
		dropped := false
		err := b.lifted(e.Path, func() (err error) { dropped, err = b.DropFile(e.Path, equal); return err })
		switch {
		case fatal(err):
			return nil, fmt.Errorf("%s: %w", e.Path, err)
		case !dropped:
			stay = append(stay, noted{e.Path, e.base})
		}
	}
	return stay, nil
}

// lifted calls do, also in a directory of Upper that its owner may not write to.
func (b *Branch) lifted(rel string, do func() error) error {
	err := do()
	if errors.Is(err, unix.EACCES) {
		defer b.Upper.Lift(beneath.Parent(rel), unix.S_IRWXU)()
		err = do()
	}
	return err
}

// renew ends a commit or a discard. It begins the branch anew if it shows Base alone: what Base changes from now on is a change since the
// fork. Else it writes the journals to the disk: until the intent of a commit is gone, Resume makes what a power failure takes of them.
func (b *Branch) renew() error {
	if !b.Empty() {
		return errors.Join(b.taken.log.Sync(true), b.bases.Sync(false))
	}
	if err := Stamp(b.lock); err != nil {
		return err
	}
	now, err := b.lock.Stat()
	if err != nil {
		return err
	}
	b.stamp, b.taken.byID = now.Ctime, map[uint64]line{}
	return errors.Join(b.ClearJournal(), b.taken.log.Clear(), b.bases.Truncate(0))
}

// clearAt removes an object of Upper, and all below it, whatever its modes and depth are.
func (b *Branch) clearAt(rel string) error {
	defer b.Upper.Lift(rel, unix.S_IRWXU)()
	dir, err := b.Upper.Dir(beneath.Parent(rel))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := Remove(b.State, droppedName); err != nil { // of a process that was killed
		return err
	}
	if err := dir.Rename(beneath.Base(rel), b.top, droppedName, unix.RENAME_NOREPLACE); err != nil {
		return err
	}
	return Remove(b.State, droppedName)
}
