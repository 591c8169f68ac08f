package branch

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
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

// finish makes the steps durable, lets the branch show Base where it has nothing of its own any more, and ends the intent.
func (x *execution) finish() error {
	x.fails()
	var lines []line
	dirs := map[string]bool{}
	note := func(rel string, made func(*beneath.Stat) bool) {
		if st, err := x.Base.Stat(rel); err == nil && made(&st) {
			lines = append(lines, line{plan.IdentOf(&st), []byte(rel)})
		}
	}
	for _, rel := range x.in.Touched {
		dirs[string(rel)] = true
		note(string(rel), (*beneath.Stat).IsDir)
	}
	var done []*step
	for i := range x.in.steps {
		s := &x.in.steps[i]
		rel := s.Path()
		dirs[beneath.Parent(rel)] = true
		if x.failed[s.Entry] != "" {
			continue
		}
		done = append(done, s)
		if s.Do == plan.Attributes {
			dirs[rel] = true
		}
		if !s.takes() && s.Merged == nil {
			note(rel, s.made)
		}
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
	if err := x.settle(done); err != nil {
		return err
	}
	return x.j.End()
}

// made reports whether an object is as the step has left it: the host may have changed it since, also before Resume.
func (s *step) made(st *beneath.Stat) bool {
	object := s.Object
	if s.Do == plan.Exchange {
		object = s.Other
	}
	return object.SameContent(plan.IdentOf(st)) && (s.Do != plan.Attributes || s.Attr.Mode == uint32(st.Mode))
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
			if s.Clean { // a process that was killed has unlinked it
				other := line{ident: s.Object}
				other.Ctime = unix.StatxTimestamp{}
				lines = append(lines, other)
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if err = dir.Unlink(beneath.Base(s.To.Rel())); err == nil {
			var st beneath.Stat
			if st, err = f.Stat(); err == nil && s.Clean && st.Nlink > 0 {
				lines = append(lines, line{ident: plan.IdentOf(&st)})
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
		return x.lock.SyncFS()
	}
	for rel := range dirs {
		dir, err := x.Base.Dir(rel)
		if err == nil {
			err = dir.Sync()
			dir.Close()
		}
		if err != nil && (fatal(err) || !errors.Is(err, beneath.ErrStale)) {
			return x.lock.SyncFS() // also for what cannot be opened
		}
	}
	return nil
}

// result adds what was done, and what others have prevented.
func (x *execution) result(r *Result) *Result {
	seen := map[int]bool{}
	for i := range x.in.steps {
		s := &x.in.steps[i]
		why := x.failed[s.Entry]
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
