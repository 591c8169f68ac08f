package history

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// recover corrects the journals that a process has left open, and ends their generations. It returns how many it has
// corrected.
func (s *Store) recover() (corrected int, err error) {
	all, err := s.generations()
	if err != nil {
		return 0, err
	}
	for _, p := range all {
		s.last.Store(max(s.last.Load(), p.began))
		if p.ended {
			continue
		}
		if wrong, err := s.recoverGeneration(p); err != nil {
			return corrected, err
		} else if wrong {
			corrected++
		}
	}
	return corrected, nil
}

// interrupted is an undo that a crash has left.
type interrupted struct {
	past
	header Header
	kept   map[uint64]*journal.Record // see undoing.kept
	again  bool                       // an older build has left it, or it has no plan yet: it is planned anew
}

// Resume finishes the undos that a crash has interrupted, and returns their results.
func (s *Store) Resume(ctx context.Context, hooks Hooks) (results []*Result, err error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	return s.resumeAll(ctx, hooks)
}

// resumeAll is Resume for a caller that has the turn.
func (s *Store) resumeAll(ctx context.Context, hooks Hooks) (results []*Result, err error) {
	for len(s.interrupted) > 0 {
		i := s.interrupted[0]
		var r *Result
		if i.again {
			r, err = s.undo(ctx, *i.header.Undo, hooks, Header{Redo: i.header.Redo})
		} else {
			r, err = s.resume(ctx, i, hooks)
		}
		if err != nil {
			return results, err
		}
		if s.interrupted = s.interrupted[1:]; r != nil {
			results = append(results, r)
		}
	}
	return results, nil
}

// resume goes on with an undo as its generation. It returns nil if the undo had done nothing.
func (s *Store) resume(ctx context.Context, i interrupted, hooks Hooks) (*Result, error) {
	g, err := s.reopen(i)
	if err != nil {
		return nil, err
	}
	defer g.end()
	u := s.undoing(g, hooks)
	u.kept = i.kept
	defer u.clear()
	j, err := plan.Load(g.dir, planName)
	if j == nil {
		return nil, err
	}
	r := &Result{Generation: idOf(g.began), Plan: Plan{Steps: []Step{}, Conflicts: []Problem{}, Unkept: []Problem{}}}
	for n := range j.Steps {
		s := &j.Steps[n]
		at, to := s.At.Rel(), s.To.Rel()
		if s.At.Stage {
			at, to = to, at
		}
		r.Steps = append(r.Steps, Step{Action: u.inverse(s).Action, Path: at, To: to})
	}
	return u.run(ctx, j, r)
}

// reopen opens a generation that another process was writing.
func (s *Store) reopen(i interrupted) (g *generation, err error) {
	g = s.newGeneration(i.header)
	g.began = i.began
	if g.dir, err = s.dir.Dir(i.name); err != nil {
		return nil, err
	}
	if g.log, err = journal.OpenLog(g.dir, journal.Name, journal.Frames, true, func([]byte) bool { return true }); err != nil {
		g.dir.Close()
		return nil, err
	}
	names, err := s.dir.Names(i.name)
	for _, name := range names {
		if n, bad := strconv.ParseUint(name, 10, 32); bad == nil {
			g.kept = max(g.kept, uint32(n))
			if st, err := g.dir.Stat(name); err == nil {
				g.bytes += int64(st.Blocks)*512 + keptCost
			}
		}
	}
	return g, err
}

// recoverGeneration reports whether the journal was wrong.
func (s *Store) recoverGeneration(p past) (wrong bool, err error) {
	c := correction{s: s, p: p, settled: map[uint64]bool{}, void: map[uint64]bool{}, kept: map[string]bool{}}
	if c.dir, err = s.dir.Dir(p.name); err != nil {
		return false, err
	}
	defer c.dir.Close()
	st, _ := c.dir.Stat(journal.Name)
	var r reading
	if c.log, err = journal.OpenLog(c.dir, journal.Name, journal.Frames, true, r.take); err != nil {
		return false, err
	}
	defer c.log.Close()
	if !r.began { // killed before the first record
		return true, s.remove(p.name)
	}
	if r.err != nil {
		return false, r.err
	}
	h, records, torn := r.Header, r.records, int64(st.Size) > c.log.Size()
	for _, r := range records {
		s.last.Store(max(s.last.Load(), r.Seq))
		switch r.Kind {
		case journal.Settled:
			c.settled[r.Of] = true
		case journal.Void:
			c.void[r.Of] = true
		}
	}
	names, err := s.dir.Names(p.name)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		c.kept[name] = name != journal.Name
	}
	c.resumes = h.Undo != nil && c.kept[planName] // Resume goes on with it
	kept := map[uint64]*journal.Record{}
	for _, r := range records {
		if c.void[r.Seq] {
			continue
		}
		if c.check(r); !c.void[r.Seq] && r.Of != 0 && (r.Kind == journal.Content || r.Kind == journal.Attributes || r.Kind == journal.Shown) {
			kept[r.Of] = r
		}
	}
	ended := slices.ContainsFunc(records, func(r *journal.Record) bool { return r.Kind == journal.Ended })
	if h.Undo != nil && (c.resumes || !ended) {
		s.interrupted = append(s.interrupted, interrupted{p, h, kept, !c.resumes})
	}
	return c.add != nil || torn, c.end()
}

// correction has the records that the journal of a generation lacks.
type correction struct {
	s   *Store
	p   past
	dir beneath.Dir
	log *journal.Log

	settled, void map[uint64]bool // records that have happened, and that have not
	kept          map[string]bool // names of kept files without a record
	resumes       bool            // the generation goes on
	code          journal.Coder
	add           []byte
}

func (c *correction) note(r *journal.Record) {
	r.Seq = c.s.next()
	c.add = c.code.Append(c.add, r)
}

// check finds out whether a record has happened. One that is not settled was in flight when the process was killed: each write
// of a journal takes with it what was settled before.
func (c *correction) check(r *journal.Record) {
	void := func() {
		c.void[r.Seq] = true
		c.note(&journal.Record{Kind: journal.Void, Of: r.Seq})
	}
	name := keptName(r.Kept)
	switch {
	case r.Kind == journal.Made && c.settled[r.Seq]:
	case r.Kind == journal.Made:
		st, err := c.s.tree.Stat(r.Path)
		known := r.Object != beneath.FileID{} // by an undo, which has made it before
		if err != nil || known && plain(st.ID()) != r.Object || !known && st.ID().Birth != 0 && uint64(st.ID().Birth)+clockLag < r.Seq {
			void()
			return
		}
		c.note(&journal.Record{Kind: journal.Settled, Of: r.Seq, Object: plain(st.ID())})
	case r.Kind == journal.Shown:
		if !c.settled[r.Seq] && c.s.opt.Layer != nil && c.s.opt.Layer.Last() < r.Seq {
			void()
		}
	case r.Kind == journal.Content && r.Kept != 0:
		st, err := c.s.dir.Stat(c.p.name + "/" + name)
		delete(c.kept, name)
		size := r.Attr.Size
		if r.Flags&journal.Blocks != 0 {
			size = blocksSize(size)
		}
		if err != nil || int64(st.Size) != size {
			// A copy that a power failure cut off. The later record of the same object stands for it.
			void()
			c.note(&journal.Record{Kind: journal.Content, Path: r.Path, Object: r.Object, Attr: r.Attr,
				Why: "the host failed before the copy was on the disk"})
		}
	case r.Kept != 0:
		early := c.kept[name] && r.Kind == journal.Moved && !c.settled[r.Seq] && c.at(r.To) == r.Other // killed before it was replaced
		if early {
			_ = c.s.links.drop(c.dir, name)
		}
		if early || !c.kept[name] {
			void()
		}
		delete(c.kept, name)
	case c.settled[r.Seq]:
	case r.Kind == journal.Linked && c.at(r.Path) != r.Object, r.Kind == journal.Exchanged && c.at(r.To) != r.Object,
		r.Kind == journal.Moved && c.at(r.Path) == r.Object && c.at(r.To) != r.Object,
		(r.Kind == journal.Removed || r.Kind == journal.Returned) && c.at(r.Path) == r.Object:
		void()
	case r.Kind == journal.Restored:
		if st, err := c.s.dir.Stat(r.To); err == nil && plain(st.ID()) == r.Object {
			void()
		}
	}
}

// clockLag bounds how much older than its change the time of an inode is: the kernel reads it from a clock that advances with its tick
// (ktime_get_coarse_real_ts64), which a virtual machine misses while its host does not run it. 49 ms were seen.
const clockLag = 1_000_000_000

// at returns the identity of the object at a path; the zero identity if there is none.
func (c *correction) at(rel string) beneath.FileID {
	st, err := c.s.tree.Stat(rel)
	if err != nil {
		return beneath.FileID{}
	}
	return plain(st.ID())
}

// end removes kept files without a record, and ends the generation, unless that goes on.
func (c *correction) end() error {
	if err := errors.Join(c.log.AppendText(c.add), c.log.Sync(true)); err != nil {
		return err
	}
	size := c.log.Size()
	names, err := c.s.dir.Names(c.p.name)
	if err != nil || c.resumes {
		return err
	}
	for _, name := range names {
		if c.kept[name] {
			_ = c.s.links.drop(c.dir, name) // else prune removes it with the directory
		} else if st, err := c.dir.Stat(name); err == nil && name != journal.Name {
			size += int64(st.Blocks) * 512
		}
	}
	return c.s.top.Rename(c.p.name, c.s.top, journal.EndedName(c.p.began, size), unix.RENAME_NOREPLACE)
}
