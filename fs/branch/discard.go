package branch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Discard drops the differences that the patterns cover: the branch has the version of Base, and Diff does not list them. It
// returns the number of entries, and how many are done. If it is interrupted, another Discard goes on. An entry that cannot be taken
// back stays, and is in the error. With a hash, as of Options, it drops what has that hash, or fails with ErrChanged, and what a
// client has changed since stays. Clients of the branch should not change it meanwhile. To discard everything, a new branch
// is faster.
func (b *Branch) Discard(ctx context.Context, paths []string, hash string) (done, total int, err error) {
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
		} else if e.Kind == history.Deleted && !picked[e.base] && picked[parentOf(e.base)] {
			u.note(e, line{}) // it is still removed, without a whiteout
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
				if err := u.lifted(phase.do, e); err != nil {
					u.failed[e] = fmt.Errorf("%s: %w", e.Path, err)
				}
			}
		}
	}
	if err := u.attributes(in); err != nil {
		return 0, len(entries), err
	}
	var now []noted
	for i := range entries {
		e := &entries[i]
		if err = errors.Join(err, u.failed[e]); e.base != "" && u.failed[e] == nil {
			now = append(now, noted{moved(e.base, u.stays), e.base})
		}
	}
	err = errors.Join(err, b.noteOrigins(now, nil))
	b.unsettle()
	return len(entries) - len(u.failed), len(entries), errors.Join(err, b.taken.append(u.lines))
}

// discard takes entries back.
type discard struct {
	*Branch
	stays  map[string]string // moved directories that are not taken back: their paths in Base and in the branch
	parked map[*Entry]string // moved directories, and their names in the root
	failed map[*Entry]error
	lines  []line
	bound  bool // to a hash
}

// lifted calls do, also in directories that their owner may not write to.
func (u *discard) lifted(do func(*Entry) error, e *Entry) error {
	err := do(e)
	if errors.Is(err, unix.EACCES) {
		defer u.Merged.Lift(parentOf(e.Path), unix.S_IRWXU)()
		err = do(e)
	}
	return err
}

// agreed returns the entries that patterns cover, with those that need them. With a hash, a Diff with these patterns has it, and
// these entries.
func (b *Branch) agreed(ctx context.Context, all []Entry, paths []string, needs [][]int, hash string) ([]Entry, error) {
	entries, err := selected(all, paths, needs)
	if err != nil || hash == "" {
		return entries, err
	}
	s := &Set{}
	if s.Entries, err = selected(all, paths, dependencies(all)); err != nil {
		return nil, err
	}
	if err := b.hashMerged(ctx, s, nil); err != nil {
		return nil, err
	}
	if s.Hash != hash {
		return nil, ErrChanged
	}
	shown := map[string]bool{}
	for _, e := range s.Entries {
		shown[e.Path] = true
	}
	for _, e := range entries {
		if !shown[e.Path] {
			return nil, fmt.Errorf("%s goes with them, and was not shown: give its path, too", e.Path)
		}
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
	same := err == nil && st.Size == e.new.Size && plainTime(st.Mtime) == plainTime(e.new.Mtime)
	if same && e.new.Nlink <= 1 { // the end of another name changes the time, too
		same = plainTime(st.Ctime) == plainTime(e.new.Ctime)
	}
	if !same {
		return errors.New("changed since it was shown")
	}
	return nil
}

// leave takes what is new at a path away: a moved directory to the root of the branch.
func (u *discard) leave(e *Entry) error {
	if err := e.unchanged(u.Merged, e.Path); u.bound && err != nil {
		return err
	}
	dir, err := u.Merged.Dir(parentOf(e.Path))
	if err != nil {
		return err
	}
	defer dir.Close()
	switch {
	case !e.new.IsDir():
		return dir.Unlink(baseOf(e.Path))
	case e.Kind == history.Added && !e.fixed:
		return dir.Rmdir(baseOf(e.Path))
	}
	defer u.Merged.Lift(e.Path, unix.S_IRWXU)()
	root, err := u.Merged.Dir("")
	if err != nil {
		return err
	}
	defer root.Close()
	for n := 0; ; n++ {
		name := fmt.Sprintf(".discarded%d", n)
		err := dir.Rename(baseOf(e.Path), root, name, unix.RENAME_NOREPLACE)
		switch {
		case err == nil && e.Kind == history.Added: // unreadable: the list lacks its content
			return Remove(u.Merged, name)
		case err == nil:
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
	dir, err := u.Merged.Dir(parentOf(at))
	if err != nil {
		return err
	}
	defer dir.Close()
	if name := u.parked[e]; name != "" {
		root, err := u.Merged.Dir("")
		if err != nil {
			return err
		}
		defer root.Close()
		return root.Rename(name, dir, baseOf(at), unix.RENAME_NOREPLACE)
	}
	if !e.old.IsDir() {
		to := plan.Target{Root: u.Merged, Dir: dir, Rel: at}
		err = to.Copy(u.Base, e.base, &e.old)
	} else if err = dir.Mkdir(baseOf(at), 0o700); err == unix.EEXIST {
		if st, failed := dir.Stat(baseOf(at)); failed == nil && st.IsDir() {
			err = nil // it was replaced
		}
	}
	if err != nil {
		return err
	}
	// The branch's directory does not show Base's through any more: what the host adds there is not a removal.
	l := line{Path: []byte(e.base), Made: e.old.IsDir()}
	if st, err := u.Upper.Stat(at); err == nil {
		l.Upper = upperID(&st)
	}
	u.note(e, l)
	return nil
}

// note adds a line about an object of Base, which is as it was.
func (u *discard) note(e *Entry, l line) {
	l.ident = ident{Ino: e.old.Ino, Birth: e.old.ID().Birth, Dir: e.old.IsDir()}
	u.lines = append(u.lines, l)
}

// reset gives an object of the branch the content and attributes of Base.
func (u *discard) reset(e *Entry) error {
	at := moved(e.base, u.stays)
	if err := e.unchanged(u.Merged, at); u.bound && err != nil {
		return err
	}
	if !e.Content {
		st, err := u.Merged.Stat(at)
		if err != nil {
			return err
		}
		return plan.SetAttributes(u.Merged, at, st.ID(), plan.AttributesOf(u.Base, e.base, &e.old, false))
	}
	dir, err := u.Merged.Dir(parentOf(at))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Unlink(baseOf(at)); err != nil && err != unix.ENOENT {
		return err
	}
	to := plan.Target{Root: u.Merged, Dir: dir, Rel: at}
	err = to.Copy(u.Base, e.base, &e.old)
	return err
}

// attributes sets those of the directories that are back, the deepest first.
func (u *discard) attributes(in []*Entry) error {
	for _, e := range slices.Backward(in) {
		if !e.old.IsDir() || u.failed[e] != nil {
			continue
		}
		at := moved(e.base, u.stays)
		st, err := u.Merged.Stat(at)
		if err == nil {
			err = plan.SetAttributes(u.Merged, at, st.ID(), plan.AttributesOf(u.Base, e.base, &e.old, false))
		}
		if err != nil {
			u.failed[e] = fmt.Errorf("%s: %w", e.Path, err)
		}
	}
	return nil
}
