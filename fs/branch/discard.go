package branch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Discard drops the differences that the patterns cover: the branch has the version of Base, and Diff does not list them. It
// returns the number of entries, and how many are done. If it is interrupted, another Discard goes on. An entry that cannot be taken
// back stays, and is in the error. With a hash, as of Options, it drops what has that hash, or fails with ErrChanged, and what a
// client has changed since stays.
func (b *Branch) Discard(ctx context.Context, paths []string, hash string) (done, total int, err error) {
	if err := b.refresh(true); err != nil {
		return 0, 0, err
	}
	d, err := b.differ(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer d.release()
	needs := make([][]int, len(d.entries))
	for i, list := range dependencies(d.entries) {
		for _, j := range list { // what is taken last goes back first
			needs[j] = append(needs[j], i)
		}
	}
	entries, err := b.agreed(ctx, d.entries, paths, needs, hash)
	if err != nil {
		return 0, 0, err
	}
	if hash == "" && len(entries) == len(d.entries) {
		d.release()
		if err := b.clearAll(); err != nil {
			return 0, len(entries), err
		}
		return len(entries), len(entries), nil
	}
	var out, in, last []*Entry
	for i := range entries {
		switch e := &entries[i]; e.Kind {
		case history.Added:
			out = append(out, e)
		case history.Renamed:
			out, in = append(out, e), append(in, e)
		case history.Deleted:
			in = append(in, e)
		default:
			last = append(last, e)
		}
	}
	slices.SortFunc(out, func(a, b *Entry) int { return cmp.Compare(b.Path, a.Path) })
	slices.SortFunc(in, func(a, b *Entry) int { return cmp.Compare(a.base, b.base) })
	d.release() // from here on the modes are the branch's own
	u := &discard{Branch: b, stays: map[string]string{}, parked: map[*Entry]string{}, failed: map[*Entry]error{}, bound: hash != ""}
	picked := map[string]bool{}
	for _, e := range in {
		picked[e.base] = true
	}
	for i := range d.entries {
		if e := &d.entries[i]; e.Kind == history.Renamed && !picked[e.base] {
			u.stays[e.base] = e.Path
		}
	}
	for _, phase := range []struct {
		do   func(*Entry) error
		list []*Entry
	}{{u.leave, out}, {u.enter, in}, {u.reset, last}} {
		for _, e := range phase.list {
			if err := ctx.Err(); err != nil {
				u.failed[e] = err
			} else if u.failed[e] == nil {
				if err := u.lifted(e.Path, func() error { return phase.do(e) }); err != nil {
					u.failed[e] = fmt.Errorf("%s: %w", e.Path, err)
				}
			}
		}
	}
	var gone [][]byte
	for i := range entries {
		e := &entries[i]
		if err = errors.Join(err, u.failed[e]); u.failed[e] == nil {
			gone = append(gone, []byte(e.at), []byte(e.base))
		}
	}
	if failed := b.Trim(); failed != nil {
		err = errors.Join(err, failed)
	}
	_, failed := b.shed() // directories that have nothing more
	err = errors.Join(err, failed, b.noteOrigins(nil, gone), b.renew())
	return len(entries) - len(u.failed), len(entries), err
}

// clearAll has the branch show Base alone, whatever that has.
func (b *Branch) clearAll() error {
	names, err := b.Upper.Names("")
	for _, name := range names {
		if failed := b.clearAt(name); failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, failed))
		}
	}
	if err = errors.Join(err, b.ClearJournal(), b.Reset("")); err != nil {
		return err
	}
	return b.renew()
}

// discard takes entries back.
type discard struct {
	*Branch
	stays  map[string]string // moved directories that are not taken back: their paths in Base and in the branch
	parked map[*Entry]string // moved directories, and their names in the root
	failed map[*Entry]error
	bound  bool // to a hash
}

// agreed returns the entries that patterns cover, with those that need them: a Diff with these patterns has them, and the hash, if one is
// given.
func (b *Branch) agreed(ctx context.Context, all []Entry, paths []string, needs [][]int, hash string) ([]Entry, error) {
	entries, err := selected(all, paths, needs)
	if err != nil {
		return nil, err
	}
	s := &Set{}
	if s.Entries, err = selected(all, paths, dependencies(all)); err == nil && hash != "" {
		err = b.hashMerged(ctx, s, nil)
	}
	if err == nil && s.Hash != hash {
		err = ErrChanged
	}
	if err != nil {
		return nil, err
	}
	shown := map[string]bool{}
	for _, e := range s.Entries {
		shown[e.Path] = true
	}
	var more []string
	for _, e := range entries {
		if !shown[e.Path] {
			more = append(more, e.Path)
		}
	}
	if len(more) > 0 {
		return nil, fmt.Errorf("%d more would go with them: give their paths, too: %s", len(more), strings.Join(more[:min(len(more), 10)], ", "))
	}
	return entries, nil
}

// unchanged fails if the object at a path is not as that of an entry was found. What a directory has is of other entries.
func (e *Entry) unchanged(root *beneath.Root, rel string) error {
	if e.Kind == history.Deleted || e.new.IsDir() {
		return nil
	}
	st, err := root.Stat(rel)
	if errors.Is(err, unix.EACCES) {
		return err
	}
	same := err == nil && st.Size == e.new.Size && plan.PlainTime(st.Mtime) == plan.PlainTime(e.new.Mtime)
	if same && e.new.Nlink <= 1 { // the end of another name changes the time, too
		same = plan.PlainTime(st.Ctime) == plan.PlainTime(e.new.Ctime)
	}
	if !same {
		return errors.New("changed since it was shown")
	}
	return nil
}

// leave takes what is new at a path away: a moved object to the root of the branch.
func (u *discard) leave(e *Entry) error {
	if err := e.unchanged(u.Merged, e.Path); u.bound && err != nil {
		return err
	}
	switch {
	case e.Kind == history.Renamed:
		return u.park(e)
	case e.new.IsDir() && e.fixed: // unreadable: the list lacks its content
		return u.clearAt(e.Path)
	case e.new.IsDir():
		return u.DropDir(e.Path, false)
	}
	_, err := u.DropFile(e.Path, nil)
	return err
}

func (u *discard) park(e *Entry) error {
	for n := 0; ; n++ {
		name := fmt.Sprintf(".discarded%d", n)
		err := u.Move(e.Path, name)
		if err == nil {
			u.parked[e] = name
		}
		if err != unix.EEXIST {
			return err
		}
	}
}

// enter restores what was at a path in Base.
func (u *discard) enter(e *Entry) error {
	at := moved(e.base, u.stays)
	if err := u.revealAbove(at); err != nil {
		return err
	}
	name := u.parked[e]
	if name == "" {
		return errors.Join(u.Reveal(at, true), u.Unset(at))
	}
	if err := u.Move(name, at); err != nil {
		return err
	}
	if !e.old.IsDir() {
		return u.dropVersion(at)
	}
	return u.resetDir(at)
}

// reset gives an object of the branch the content and attributes of Base.
func (u *discard) reset(e *Entry) error {
	at := moved(e.base, u.stays)
	if err := e.unchanged(u.Merged, at); u.bound && err != nil {
		return err
	}
	if err := u.revealAbove(at); err != nil {
		return err
	}
	if e.new.IsDir() {
		return u.resetDir(at)
	}
	if err := u.Unset(at); err != nil { // first: as in shed
		return err
	}
	return u.dropVersion(at)
}

func (u *discard) resetDir(at string) error {
	err := u.Reveal(at, false) // one that was removed and made anew
	if err == nil {
		err = u.Reset(at)
	}
	if errors.Is(err, beneath.ErrStale) { // Upper has none
		return nil
	}
	return err
}

// dropVersion removes Upper's version of a path, if it has one.
func (u *discard) dropVersion(at string) error {
	_, err := u.DropFile(at, nil)
	if err == unix.ENOENT {
		return nil
	}
	return err
}
