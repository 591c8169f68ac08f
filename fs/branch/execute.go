package branch

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// execution is a commit that is being done.
type execution struct {
	*Branch
	in       *intent
	j        *plan.Journal
	entries  []Entry // nil for Resume
	progress func(done, total int)
	failed   map[int]string // entries, and why
	newer    map[int]bool   // merged entries that a client of the branch has changed again
}

func (x *execution) run() error {
	runner := plan.Runner{Tree: x.Base, Stage: x.State, Fatal: fatal, Progress: x.progress}
	if err := x.j.Run(context.Background(), runner); err != nil {
		x.j.Close()
		return err // Resume goes on
	}
	return x.finish()
}

// fails sets why entries were not taken.
func (x *execution) fails() {
	x.failed = map[int]string{}
	for i := range x.in.steps {
		failure, s := x.j.Failed[i], &x.in.steps[i]
		if failure == nil || x.failed[s.Entry] != "" {
			continue
		}
		why := whyGone
		switch failure.Kind {
		case plan.Changed:
			why = whyChanged
		case plan.Taken:
			why = whyToo
		case plan.Full:
			why = "has files of others"
		case plan.Skipped:
			why = "needs " + x.in.steps[failure.Step].Path()
		case plan.System:
			why = whyCannot + failure.Text
		}
		x.failed[s.Entry] = why
	}
}

// finish makes the steps durable and ends the intent.
func (x *execution) finish() error {
	x.fails()
	if err := x.adoptAll(); err != nil {
		return err
	}
	var lines []line
	dirs := map[string]bool{}
	note := func(rel []byte, l line) {
		if st, err := x.Base.Stat(string(rel)); err == nil {
			l.ident, l.Path = identOf(&st), rel
			lines = append(lines, l)
		}
	}
	for _, rel := range x.in.Touched {
		dirs[string(rel)] = true
		note(rel, line{})
	}
	for _, p := range x.in.Whole {
		note(p.Path, line{Made: true, Upper: p.Upper})
	}
	for _, p := range x.in.Carried {
		if st, err := x.Base.Stat(string(p.Path)); err == nil && st.IsDir() {
			lines = append(lines, line{ident: ident{Ino: st.Ino, Birth: st.ID().Birth, Dir: true}, Path: p.Path, Moved: true, Upper: p.Upper})
		}
	}
	for _, ino := range x.in.Known {
		lines = append(lines, line{Known: ino})
	}
	for i := range x.in.steps {
		s := &x.in.steps[i]
		rel := s.Path()
		dirs[parentOf(rel)] = true
		if x.failed[s.Entry] != "" {
			continue
		}
		l := line{Upper: s.Upper, Seen: s.Seen}
		switch {
		case s.takes():
			if _, err := x.Base.Stat(rel); errors.Is(err, beneath.ErrStale) {
				lines = append(lines, line{Path: s.At.Path, Gone: true, ident: ident{Dir: s.Object.Dir}})
			}
		case s.Do == plan.Attributes:
			dirs[rel] = true
			note([]byte(rel), l)
		case !x.newer[s.Entry]: // else it conflicts again
			l.Moved, l.Made = len(s.Home) > 0, s.Made
			note([]byte(rel), l)
		}
	}
	if err := x.noteOrigins(x.noted()); err != nil {
		return err
	}
	if err := x.syncAll(dirs); err != nil {
		return err
	}
	other, err := x.unlinkOld()
	if err != nil {
		return err
	}
	if err := x.taken.append(append(lines, other...)); err != nil {
		return err
	}
	if err := x.settle(x.paths()); err != nil {
		return err
	}
	return x.j.End()
}

// paths returns those of the entries that were taken.
func (x *execution) paths() (taken []string) {
	for i := range x.in.steps {
		if s := &x.in.steps[i]; x.failed[s.Entry] == "" {
			taken = append(taken, s.Path())
		}
	}
	return taken
}

// unlinkOld removes from the stage what was taken out of Base. It returns lines for objects that have other names in Base:
// this has set their change times.
func (x *execution) unlinkOld() (lines []line, err error) {
	dir, err := x.State.Dir(stageName)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	for i := range x.in.steps {
		s := &x.in.steps[i]
		if !s.To.Stage || x.failed[s.Entry] != "" {
			continue
		}
		f, err := x.State.Object(s.To.Rel())
		if errors.Is(err, beneath.ErrStale) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err = dir.Unlink(baseOf(s.To.Rel())); err == nil {
			var st beneath.Stat
			if st, err = f.Stat(); err == nil && s.Clean && st.Nlink > 0 {
				lines = append(lines, line{ident: identOf(&st)})
			}
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
	return lines, nil
}

// syncAll writes directories of Base to the disk. It skips those that are gone.
func (x *execution) syncAll(dirs map[string]bool) error {
	if len(dirs) > maxSyncs {
		return openDir(x.State, stageName, beneath.File.SyncFS)
	}
	for rel := range dirs {
		err := syncDir(x.Base, rel)
		if err != nil && (fatal(err) || !errors.Is(err, beneath.ErrStale)) {
			return openDir(x.State, stageName, beneath.File.SyncFS) // also for what cannot be opened
		}
	}
	return nil
}

// result adds what was done, and what others have prevented.
func (x *execution) result(r *Result) *Result {
	r.Moved = append(r.Moved, x.in.Carried...)
	seen := map[int]bool{}
	for i := range x.in.steps {
		s := &x.in.steps[i]
		why := x.failed[s.Entry]
		if len(s.Home) > 0 && why == "" && x.taken.byID[s.Object.Ino].Dir {
			r.Moved = append(r.Moved, Moved{s.To.Path, s.Upper})
		}
		if seen[s.Entry] {
			continue
		}
		seen[s.Entry] = true
		e := Entry{Path: s.Path(), Kind: history.Changed, OldSize: -1, NewSize: -1}
		if x.entries != nil {
			e = x.entries[s.Entry]
		}
		if e.Merge != Merged || why != "" {
			e.Merge = ""
		}
		if e.Conflict = why; why != "" {
			r.Conflicts = append(r.Conflicts, e)
		} else {
			r.Taken = append(r.Taken, e)
		}
	}
	return r
}

// Redirect sets in Upper the paths in Base of directories that commits have moved. Unmount the overlay before, and mount it
// again: a mounted overlay has the old paths in memory. As soon as the kernel evicts the dentry, it shows of such a directory
// only what Upper has, and a rename writes the old path to Upper again. Redirect needs CAP_SYS_ADMIN.
func Redirect(upper *beneath.Root, moved []Moved) error {
	for _, m := range moved {
		rel := string(m.Path)
		st, err := upper.Stat(rel)
		if errors.Is(err, beneath.ErrStale) || err == nil && upperID(&st) != m.Upper {
			continue // the branch has moved it again
		}
		if err != nil {
			return err
		}
		f, err := upper.Open(rel, unix.O_RDONLY|unix.O_DIRECTORY, st.ID())
		if err != nil {
			return err
		}
		err = f.Setxattr("trusted.overlay.redirect", []byte("/"+rel), 0)
		f.Close()
		if err != nil {
			return fmt.Errorf("redirect %q: %w", rel, err)
		}
	}
	return nil
}

// Moved returns the directories that commits have moved, for Redirect before the overlay is mounted.
func (b *Branch) Moved() (list []Moved) {
	for _, l := range b.taken.byID {
		if l.Moved && l.Dir {
			list = append(list, Moved{l.Path, l.Upper})
		}
	}
	return list
}

// maxMoved bounds what MovedIn returns, in bytes.
const maxMoved = 64 << 20

// MovedIn is Moved of a branch that is not open. It only reads, and what it reads may be of another user.
func MovedIn(state *beneath.Root) (list []Moved, err error) {
	st, err := state.Stat(takenName)
	if errors.Is(err, beneath.ErrStale) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f, err := state.Open(takenName, unix.O_RDONLY, st.ID())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	byID, size := map[uint64]line{}, 0
	_, err = journal.Scan(f, journal.Lines, eachLine(func(l line) {
		switch old, was := byID[l.Ino]; {
		case l.Gone || l.Known != UpperID{} || size > maxMoved:
			return
		case was && old.SameObject(l.ident):
			l.Moved, l.Upper = true, cmp.Or(l.Upper, old.Upper)
		case !l.Moved || !l.Dir:
			delete(byID, l.Ino)
			return
		}
		byID[l.Ino] = l
		size += len(l.Path) + 64 // and what the line takes
	}))
	if size > maxMoved {
		return nil, fmt.Errorf("more than %d bytes of moved directories", maxMoved)
	}
	for _, l := range byID {
		if l.Dir {
			list = append(list, Moved{l.Path, l.Upper})
		}
	}
	return list, err
}
