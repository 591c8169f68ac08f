package history

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Hooks connect an undo with the view of the scope. The zero value is for a scope that nobody uses.
type Hooks struct {
	// May reports that the agent's rules do not let a path change, nor the object that is written there; st is nil for names.
	May     func(rel string, st *beneath.Stat) error
	Move    func(rel string) error            // the agent's rules let a directory move to or from a path
	Below   func(from, to string) error       // likewise what is below the directory, in the step that moves it
	Link    func(rel, target string) error    // the agent's rules let a symbolic link lead to a target
	Read    func(rel string) error            // the agent's rules let a path be read
	Writing func(id beneath.FileID) bool      // a client has the file open for writing
	Open    func(id beneath.FileID) bool      // a client has the file open
	Lock    func() (unlock func(), err error) // excludes changes by clients during one step
	// Changed is called during a step for a name that has changed, and for one whose object has. There is no object if
	// id is zero. Of a layer the place and the object are those of the tree, or not known: the path counts.
	Changed  func(at Place, id beneath.FileID)
	Over     func() // is called after the steps of an undo in a layer
	Progress func(done, total int)
	Begin    func() // keeps what clients have open for writing: a time begins to which an undo may go back
	// Agree sees the plan before the undo begins. After an error nothing is done. A file that changes later is a conflict.
	Agree func(*Plan) error
}

func (h Hooks) writing(id beneath.FileID) bool { return h.Writing != nil && h.Writing(id) }

// Result is what an undo has done.
type Result struct {
	Generation string `json:"generation,omitempty"` // of the undo
	Done       int    `json:"done"`                 // steps
	Rolled     bool   `json:"rolled_back,omitempty"`
	Plan
}

// Undo takes the selected changes back, the newest first. What others have changed since stays, and is in
// Result.Conflicts. If ctx ends, Undo takes back what it has done. A crash leaves an undo that the next Open finishes.
func (s *Store) Undo(ctx context.Context, sel Selection, hooks Hooks) (*Result, error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	before := hooks
	before.Agree, before.Progress = nil, nil
	if _, err := s.resumeAll(context.WithoutCancel(ctx), before); err != nil {
		return nil, err
	}
	s.awaitClosed()
	s.endAll(func(*generation) bool { return true }) // the names of their directories do not change any more
	return s.undo(ctx, sel, hooks, Header{Redo: sel.Undo})
}

// awaitClosed waits while clients have files open for writing, for closeTime at most: a view learns of a close(2) after the client, who
// may ask for the undo at once.
func (s *Store) awaitClosed() {
	for end := time.Now().Add(closeTime); len(s.beingWritten()) > 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
}

// beingWritten returns the files that clients have open for writing.
func (s *Store) beingWritten() map[beneath.FileID]bool {
	s.states.Lock()
	defer s.states.Unlock()
	all := map[beneath.FileID]bool{}
	for id := range s.writing {
		all[id] = true
	}
	return all
}

// closeTime bounds awaitClosed.
const closeTime = 500 * time.Millisecond

// undo is Undo as the generation h.
func (s *Store) undo(ctx context.Context, sel Selection, hooks Hooks, h Header) (*Result, error) {
	written := s.beingWritten()
	found, w, err := s.inverted(sel, hooks)
	if err != nil {
		return nil, err
	}
	r := &Result{Plan: w.plan}
	if hooks.Agree != nil {
		if err := hooks.Agree(&r.Plan); err != nil {
			return nil, err
		}
	}
	if len(r.Steps) == 0 {
		return r, nil
	}
	h.Left = len(r.Conflicts) > 0
	h.Undo = &Selection{Paths: sel.Paths, Force: sel.Force, Client: sel.Client, Command: sel.Command}
	for _, e := range found.records {
		if id := idOf(e.gen.began); e.picked && !slices.Contains(h.Undo.Generations, id) {
			h.Undo.Generations = append(h.Undo.Generations, id)
		}
	}
	s.mu.Lock()
	g, err := s.begin(h)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	defer g.end()
	r.Generation = idOf(g.began)
	u := s.undoing(g, hooks)
	u.before = written
	defer u.clear()
	p, err := w.steps(u)
	if err != nil {
		return nil, err
	}
	j, err := plan.Begin(context.WithoutCancel(ctx), g.dir, planName, p)
	if err != nil {
		return nil, err
	}
	return u.run(ctx, j, r)
}

// run does the steps of a plan. r has the steps as they were shown, and what the plan leaves.
func (u *undoing) run(ctx context.Context, j *plan.Journal, r *Result) (*Result, error) {
	eio := func(err error) bool { return errors.Is(err, unix.EIO) }
	r.Unkept = append(r.Unkept, u.partly...)
	runner := plan.Runner{Tree: u.store.tree, Stage: u.store.dir, Keeper: u, Lock: u.hooks.Lock, Changed: u.hooks.Changed,
		Progress: u.hooks.Progress, Fatal: eio, Partly: func(s *plan.Step, err error) {
			r.Unkept = append(r.Unkept, Problem{s.At.Rel(), err.Error()})
		}}
	if l := u.store.opt.Layer; l != nil {
		runner.Dirs = l.MakeDirs
		end, err := l.Still() // between two steps a path may show what it never had
		if err != nil {
			return r, err
		}
		defer end()
		if u.hooks.Over != nil {
			defer u.hooks.Over()
		}
	}
	err := j.Run(ctx, runner)
	defer func() { _ = j.End() }() // a journal that stays has no step left for a resume
	steps := r.Steps
	r.Steps = make([]Step, 0, len(steps)) // those that are done
	for i, step := range steps {
		switch why := j.Failed[i]; {
		case why == nil && j.Ended(i):
			r.Steps = append(r.Steps, step)
		case why != nil && !slices.ContainsFunc(r.Conflicts, func(p Problem) bool { return p.Path == step.Path }):
			r.Conflicts = append(r.Conflicts, Problem{step.Path, u.why(why)})
		}
	}
	r.Done = len(r.Steps)
	if err != nil && ctx.Err() == nil {
		return r, err
	}
	if err := u.w.undo.write(&journal.Record{Seq: u.store.next(), Kind: journal.Ended}); err != nil {
		return r, err
	}
	if ctx.Err() != nil {
		u.w.undo.end()
		u.hooks.Agree = nil
		_, err := u.store.undo(context.WithoutCancel(ctx), Selection{Generations: []string{r.Generation}}, u.hooks, Header{Redo: true})
		r.Rolled = err == nil
		return r, errors.Join(ctx.Err(), err)
	}
	return r, nil
}

// why returns why a step was not done.
func (u *undoing) why(f *plan.Failure) string {
	switch f.Kind {
	case plan.Changed:
		if u.hooks.Agree != nil {
			return "changed since it was shown"
		}
	case plan.Taken:
		return "another object is there"
	case plan.Parent:
		return "its directory is not there any more"
	case plan.Full:
		return "the directory has files of others"
	case plan.Skipped:
		return "what comes before it was not done"
	case plan.System:
		return f.Text
	}
	return "another process has changed it meanwhile"
}

// planName is the journal of the plan of an undo, in the directory of its generation. What its steps make is there, too.
const planName = "plan"

// inverse is what an undo notes of a step: the record that it inverts, without its path.
type inverse struct {
	Action  Action          `json:"a"`
	Record  *journal.Record `json:"r"`
	Gen     string          `json:"g"`
	Removed beneath.FileID  `json:"d,omitzero"`  // Mkdir: the directory for which it stands
	Room    bool            `json:"m,omitempty"` // it makes room, and inverts nothing
	Twin    bool            `json:"t,omitempty"` // Step.twin
	Base    string          `json:"b,omitempty"` // Reveal of a layer's copy: the file of the base
}

// entry returns the record with its generation.
func (i *inverse) entry() *entry {
	return &entry{Record: i.Record, gen: &generationRecords{past: past{name: i.Gen}}}
}

// steps returns the plan of an undo. It makes directories and copies in the stage.
func (w *world) steps(u *undoing) (p plan.Plan, err error) {
	made := map[beneath.FileID]beneath.FileID{} // directories of this plan
	same := func(id beneath.FileID) beneath.FileID {
		if now, ok := made[w.same(id)]; ok {
			return now
		}
		return w.same(id)
	}
	about := map[beneath.FileID][]int{} // steps
	brings := map[string]int{}          // the step that gives a path an object
	for i, step := range w.plan.Steps {
		e := step.entry
		ident := func(id beneath.FileID) plan.Ident {
			o := plan.Ident{Ino: id.Ino, Birth: id.Birth, Any: true}
			if a := step.seen.attr; a != nil && !step.seen.dir && id == step.seen.id {
				o.Any, o.Mtime, o.Size = false, plan.PlainTime(a.Mtime), uint64(a.Size)
			}
			return o
		}
		record := *e.Record
		record.Path, record.Program, record.Why, record.Attr = "", "", "", nil
		base := record.To
		if step.Action != Restore && step.Action != Rewrite {
			record.To = ""
		}
		inv := inverse{Action: step.Action, Record: &record, Gen: e.gen.name, Room: step.id != beneath.FileID{}, Twin: step.twin}
		s := plan.Step{Do: plan.Move, At: plan.InTree(step.Path), To: plan.InTree(step.To), Object: ident(same(e.Object))}
		at := step.Path // whose directory the step needs
		staged := fmt.Sprint(journal.OpenName(u.w.undo.began), "/s", i)
		switch step.Action {
		case Remove:
			s.Do, s.To = plan.Remove, plan.Spot{}
		case Reveal:
			s.Do, s.To, inv.Base = plan.Remove, plan.Spot{}, base
		case Restore:
			s.At, s.To, s.Object = plan.InStage(step.To), plan.InTree(step.Path), ident(step.object)
		case Return:
			s.To = plan.InStage(step.To)
			if _, err := w.store.dir.Stat(beneath.Parent(step.To)); err != nil { // that generation was given up
				s.Do, s.To = plan.Remove, plan.Spot{}
			}
		case Mkdir:
			s.At, s.To = plan.InStage(staged), plan.InTree(step.Path)
			inv.Removed = e.Object
			if e.Kind == journal.Moved {
				inv.Removed = e.Other
			}
			inv.Removed = w.same(inv.Removed) // an earlier undo may have made one for it, which is removed as well
			st, err := u.stageDir(staged, e.Attr)
			if errors.Is(err, plan.ErrOwner) {
				u.partly, err = append(u.partly, Problem{step.Path, plan.ErrOwner.Error()}), nil
			}
			if err != nil {
				return p, fmt.Errorf("%s: %w", step.Path, err)
			}
			made[inv.Removed] = plain(st.ID())
			s.Object = ident(plain(st.ID()))
		case Move:
			at = step.To
			if inv.Room {
				s.Object = ident(step.id)
			}
		case Copy:
			at = step.To
			s.At = plan.InStage(staged)
			if st, err := u.stageCopy(step.Path, staged); err == nil {
				s.Object = ident(plain(st.ID()))
			} // else the step fails
		case Exchange: // Path has Other, and To has Object
			s.Do, s.Object, s.Other = plan.Exchange, ident(same(e.Other)), ident(same(e.Object))
		case Rewrite:
			s.Do, s.To, s.Attr = plan.Rewrite, plan.Spot{}, e.Attr
		case Attribute:
			s.Do, s.To, s.Attr = plan.Attributes, plan.Spot{}, e.Attr
			if step.OnlyTimes() {
				s.Do = plan.Times
			}
		}
		if e.Kind == journal.Shown {
			s = plan.Step{Do: plan.Show, At: plan.InTree(e.Path), To: plan.InTree(e.To)}
			at, inv.Base = e.Path, ""
		}
		key := w.same(e.Object)
		if key == (beneath.FileID{}) { // a layer shows another object of its base
			key.Dev = e.Seq
		}
		if s.Needs = slices.Clone(about[key]); inv.Room {
			about[key], s.Needs = append(about[key], i), nil
		} else {
			about[key] = []int{i}
		}
		if n, ok := brings[beneath.Parent(at)]; ok {
			s.Needs = append(s.Needs, n)
		}
		if step.Action == Exchange {
			brings[step.To] = i
		}
		if step.Action != Rewrite && step.Action != Attribute {
			brings[at] = i
		}
		if s.Note, err = json.Marshal(&inv); err != nil {
			return p, err
		}
		p.Steps = append(p.Steps, s)
	}
	return p, nil
}

// stageDir makes a directory in the stage.
func (u *undoing) stageDir(rel string, a *journal.Attr) (st beneath.Stat, err error) {
	name := beneath.Base(rel)
	if err = u.w.undo.dir.Mkdir(name, 0o700); err == nil {
		st, err = u.w.undo.dir.Stat(name)
	}
	if err == nil {
		err = plan.SetAttributes(u.store.dir, rel, st.ID(), a)
	}
	return st, err
}

// stageCopy makes a copy of a file of the tree in the stage.
func (u *undoing) stageCopy(from, rel string) (st beneath.Stat, err error) {
	if st, err = u.store.tree.Stat(from); err == nil {
		to := plan.Target{Root: u.store.dir, Dir: u.w.undo.dir, Rel: rel, Lift: true}
		err = to.Copy(u.store.tree, from, &st)
	}
	if err == nil {
		st, err = u.w.undo.dir.Stat(beneath.Base(rel))
	}
	return st, err
}

// clear removes what is left in the stage.
func (u *undoing) clear() {
	names, _ := u.store.dir.Names(journal.OpenName(u.w.undo.began))
	for _, name := range names {
		if name[0] == 's' {
			_ = u.store.links.drop(u.w.undo.dir, name) // else prune removes it with the generation
		}
	}
}

// undoing is the plan.Keeper of an undo: each step is a record of its generation.
type undoing struct {
	store *Store
	hooks Hooks
	w     *Writer
	kept  map[uint64]*journal.Record // of a process that was killed: what it has kept, by what that inverts
	notes map[*plan.Step]*inverse    // of steps under way, decoded

	partly []Problem               // of directories in the stage
	before map[beneath.FileID]bool // files that clients had open for writing before the plan
}

func (s *Store) undoing(g *generation, hooks Hooks) *undoing {
	return &undoing{store: s, hooks: hooks, w: &Writer{store: s, program: "scopefs", undo: g}, notes: map[*plan.Step]*inverse{}}
}

// inverse returns the note of a step, whose records are of that from now on.
func (u *undoing) inverse(s *plan.Step) *inverse {
	i := u.notes[s]
	if i == nil {
		i = &inverse{}
		if json.Unmarshal(s.Note, i) != nil || i.Record == nil {
			i.Record = &journal.Record{} // cannot happen: the journal has checksums
		}
		if s.Do == plan.Rewrite { // Left is the last to need it
			u.notes[s] = i
		}
	}
	if u.w.inverts = i.Record.Seq; i.Room {
		u.w.inverts = 0
	}
	return i
}

func (u *undoing) open(id beneath.FileID) bool { return u.hooks.Open != nil && u.hooks.Open(id) }

// opened reports whether a client has opened a file for writing since the plan was begun, which knows nothing of that.
func (u *undoing) opened(id beneath.FileID) bool { return u.hooks.writing(id) && !u.before[plain(id)] }

// errWriting is why a step leaves a file: a client has opened it since the plan, and would go on writing to a file without a name.
var errWriting = errors.New("a program has it open for writing")

// Remove is of plan.Keeper.
func (u *undoing) Remove(s *plan.Step, at Place, st *beneath.Stat) error {
	i := u.inverse(s)
	if u.opened(st.ID()) {
		return errWriting
	}
	if i.Base != "" {
		u.w.base = *u.reveals(&journal.Record{To: i.Base}, at)
		defer func() { u.w.base = journal.Record{} }()
	}
	if st.IsDir() {
		return u.w.Rmdir(at, st)
	}
	return u.w.Unlink(at, st, u.open(st.ID()))
}

// Move is of plan.Keeper.
func (u *undoing) Move(s *plan.Step, from, to Place, st *beneath.Stat, change func() error) error {
	i, g, id := u.inverse(s), u.w.undo, plain(st.ID())
	r := &journal.Record{Kind: journal.Moved, Path: from.Path(), To: to.Path(), Object: id}
	switch i.Action {
	case Mkdir, Copy:
		m, err := u.w.makeFor(to, id, i.Removed)
		if err != nil {
			return err
		}
		if err := change(); err != nil {
			m.Void()
			return err
		}
		if m.Done(st); i.Action == Copy {
			u.written(st)
		}
		return nil
	case Restore:
		if st.IsLink() && u.hooks.Link != nil {
			text, err := u.store.dir.Readlink(from.Path())
			if err == nil {
				err = u.hooks.Link(to.Path(), text)
			}
			if err != nil {
				return err
			}
		}
		r.Kind, r.Path, r.To = journal.Restored, to.Path(), from.Path()
	case Return:
		if r.Kind = journal.Returned; u.opened(st.ID()) {
			return errWriting
		}
	case Exchange:
		r.Kind, r.Other = journal.Exchanged, beneath.FileID{Ino: s.Other.Ino, Birth: s.Other.Birth}
	}
	if err := u.mayMoveBelow(s, from, to); err != nil {
		return err
	}
	root := u.store.tree
	if s.At.Stage {
		root = u.store.dir
	}
	r.Data = IndexSum(root, from.Path(), to.Path(), st)
	if i.Action == Move && i.Twin {
		r.Flags |= journal.Twin
	} else if i.Action == Move || i.Action == Return {
		u.reveals(r, from)
	}
	names := []Place{from, to}
	switch i.Action { // the other one is of the history
	case Restore:
		names = names[1:]
	case Return:
		names = names[:1]
	}
	for _, at := range names {
		if err := u.w.directory(g, at); err != nil {
			return err
		}
	}
	if several := st.Nlink > 1; i.Action == Return && (several || u.open(st.ID())) {
		u.store.links.add(id, several)
	}
	err := u.w.do(g, r, change)
	if err == nil && i.Action == Restore {
		u.store.links.remove(id)
	}
	return err
}

// mayMoveBelow returns an error for a move in the tree that the agent's rules do not allow for something below a directory.
func (u *undoing) mayMoveBelow(s *plan.Step, from, to Place) error {
	if u.hooks.Below == nil || s.At.Stage || s.To.Stage {
		return nil
	}
	if err := u.hooks.Below(from.Path(), to.Path()); err != nil || s.Do != plan.Exchange {
		return err
	}
	return u.hooks.Below(to.Path(), from.Path())
}

// Keep is of plan.Keeper.
func (u *undoing) Keep(s *plan.Step, at Place, st *beneath.Stat) error {
	u.inverse(s)
	rel := at.Path()
	if at.Name != "" && u.hooks.May != nil {
		if err := u.hooks.May(rel, st); err != nil {
			return err
		}
	}
	reader := func() (beneath.File, error) { return u.store.tree.Open(rel, unix.O_RDONLY, st.ID()) }
	r := u.kept[u.w.inverts]
	switch {
	case s.Do == plan.Times:
		d, err := u.store.tree.Dir(rel)
		if err != nil {
			return err
		}
		defer d.Close()
		return u.w.directory(u.w.undo, Place{Dir: d, ID: st.ID(), Rel: rel})
	case r != nil && r.Flags&journal.Blocks != 0:
		return u.w.undo.resumeBlocks(r, reader)
	case r != nil:
		return nil
	case s.Do == plan.Rewrite:
		return u.w.Content(rel, st, reader)
	}
	return u.w.Attributes(rel, st)
}

// Left is of plan.Keeper.
func (u *undoing) Left(s *plan.Step, now *beneath.Stat, done bool) {
	defer delete(u.notes, s)
	switch u.inverse(s); {
	case s.Do == plan.Times || !s.Object.SameObject(plan.IdentOf(now)) || !done && s.Do == plan.Attributes:
	case now.IsRegular():
		u.written(now)
	default:
		_ = u.w.write(u.w.undo, &journal.Record{Kind: journal.Written, Object: now.ID()}) // complete
	}
}

// written notes how a step has left a file: in the journal before the plan says that the step is done.
func (u *undoing) written(st *beneath.Stat) {
	u.store.states.Lock()
	defer u.store.states.Unlock()
	u.w.leave(st)
	u.w.undo.flush()
}

// Fill is of plan.Keeper.
func (u *undoing) Fill(s *plan.Step, f beneath.File) error {
	e := u.inverse(s).entry()
	e.Attr = s.Attr
	return u.fill(f, e)
}

// fill replaces the content of a file by the kept one. It writes over the old content where it can: a truncation frees blocks that are
// allocated again at once, and on ext4 with the mount option discard each file took a millisecond longer.
func (u *undoing) fill(f beneath.File, e *entry) error {
	if e.Flags&journal.Inline != 0 {
		data, err := u.store.inline(e.gen.name, e.Record)
		if err == nil {
			err = u.keepAll(f)
		}
		if err == nil {
			err = f.WriteAll(data, 0)
		}
		if err == nil {
			err = f.Truncate(int64(len(data)))
		}
		return err
	}
	kept, st, err := u.store.dir.OpenAny(e.keptAt(), unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer kept.Close()
	if e.Flags&journal.Blocks != 0 {
		return u.fillBlocks(f, kept, e)
	}
	if err := u.keepAll(f); err != nil {
		return err
	}
	size := int64(st.Size)
	if hole, err := kept.Seek(0, unix.SEEK_HOLE); u.store.shares || err != nil || hole < size {
		if err := f.Truncate(0); err != nil {
			return err
		}
	}
	if u.store.shares && f.Clone(kept) == nil {
		return nil
	}
	if err := f.CopySparse(kept, size); err != nil {
		return err
	}
	return f.Truncate(size)
}

// keepAll keeps the content of a file, as far as that is kept by blocks.
func (u *undoing) keepAll(f beneath.File) error {
	st, err := f.Stat()
	if err == nil {
		err = u.w.Blocks(st.ID(), 0, int64(st.Size))
	}
	return err
}
