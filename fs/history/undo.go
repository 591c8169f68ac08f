package history

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Hooks connect an undo with the view of the scope. The zero value is for a scope that nobody uses.
type Hooks struct {
	// May reports that the agent's rules do not let a path change, nor the object that is written there; st is nil for names.
	May     func(rel string, st *beneath.Stat) error
	Move    func(rel string) error            // the agent's rules let a directory move to or from a path
	Link    func(rel, target string) error    // the agent's rules let a symbolic link lead to a target
	Read    func(rel string) error            // the agent's rules let a path be read
	Writing func(id beneath.FileID) bool      // a client has the file open for writing
	Open    func(id beneath.FileID) bool      // a client has the file open
	Lock    func() (unlock func(), err error) // excludes changes by clients during one step
	// Changed is called during a step for a name that has changed, and for one whose object has. There is no object if
	// id is zero.
	Changed  func(dir beneath.FileID, name string, id beneath.FileID)
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
	s.awaitClosed(hooks)
	s.endAll(func(*generation) bool { return true }) // the names of their directories do not change any more
	return s.undo(ctx, sel, hooks, Header{Redo: sel.Undo})
}

// awaitClosed waits until the records say how the files are that clients have just closed: a view learns of a close(2) after the
// client.
func (s *Store) awaitClosed(hooks Hooks) {
	root, err := s.top.Self().Stat()
	if hooks.Writing == nil || err != nil {
		return
	}
	closing := func() bool {
		s.states.Lock()
		all := slices.Collect(maps.Keys(s.writing))
		s.states.Unlock()
		return slices.ContainsFunc(all, func(id beneath.FileID) bool {
			id.Dev = root.ID().Dev
			return !hooks.writing(id)
		})
	}
	for end := time.Now().Add(closeTime); closing() && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
}

// closeTime bounds awaitClosed.
const closeTime = 500 * time.Millisecond

// undo is Undo as the generation h.
func (s *Store) undo(ctx context.Context, sel Selection, hooks Hooks, h Header) (*Result, error) {
	found, err := s.find(sel)
	if err != nil {
		return nil, err
	}
	r := &Result{Plan: s.replay(found, hooks).plan}
	if hooks.Agree != nil {
		if err := hooks.Agree(&r.Plan); err != nil {
			return nil, err
		}
	}
	if len(r.Steps) == 0 {
		return r, nil
	}
	h.Undo = &Selection{Paths: sel.Paths, Force: sel.Force, Client: sel.Client}
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
	u := &undoing{store: s, hooks: hooks, alias: found.alias, w: &Writer{store: s, program: "scopefs", undo: g}, stays: map[beneath.FileID]bool{},
		failed: map[beneath.FileID]bool{}}
	steps := r.Steps
	r.Steps = make([]Step, 0, len(steps)) // those that are done
	for i, step := range steps {
		if ctx.Err() != nil {
			break
		}
		if err := u.try(step); err != nil {
			var problem *changedError
			if !errors.As(err, &problem) && errors.Is(err, unix.EIO) {
				return r, fmt.Errorf("%s: %w", step.Path, err)
			}
			if !slices.ContainsFunc(r.Conflicts, func(p Problem) bool { return p.Path == step.Path }) {
				r.Conflicts = append(r.Conflicts, Problem{step.Path, err.Error()})
			}
			continue
		}
		r.Done++
		r.Steps = append(r.Steps, step)
		if hooks.Progress != nil {
			hooks.Progress(i+1, len(steps))
		}
	}
	if err := g.write(&journal.Record{Seq: s.next(), Kind: journal.Ended}); err != nil {
		return r, err
	}
	if ctx.Err() != nil {
		g.end()
		hooks.Agree = nil
		_, err := s.undo(context.WithoutCancel(ctx), Selection{Generations: []string{r.Generation}}, hooks, Header{Redo: true})
		r.Rolled = err == nil
		return r, errors.Join(ctx.Err(), err)
	}
	return r, nil
}

// changedError reports that a path is not as the plan has found it.
type changedError struct{ why string }

func (e *changedError) Error() string { return e.why }

// undoing performs steps.
type undoing struct {
	store *Store
	hooks Hooks
	alias map[beneath.FileID]beneath.FileID
	w     *Writer
	stays map[beneath.FileID]bool // it has changed since Agree

	failed map[beneath.FileID]bool // a step about it
}

// try does a step, unless it needs one that has failed. Where a mode keeps the owner from it, he has the right for the step.
func (u *undoing) try(step Step) error {
	id := follow(u.alias, plain(step.entry.Object))
	if u.failed[id] && step.id == (beneath.FileID{}) {
		return &changedError{"what comes before it was not done"}
	}
	if u.hooks.Lock != nil {
		unlock, err := u.hooks.Lock()
		if err != nil {
			return err
		}
		defer unlock()
	}
	err := u.do(step)
	if errors.Is(err, unix.EACCES) {
		restore := []func(){u.store.tree.Lift(step.Path, 0)}
		if step.To != "" && step.Action != Restore && step.Action != Return {
			restore = append(restore, u.store.tree.Lift(step.To, 0))
		}
		err = u.do(step)
		for _, give := range slices.Backward(restore) {
			give()
		}
	}
	u.failed[id] = u.failed[id] || err != nil
	return err
}

func (u *undoing) do(step Step) error {
	if u.w.inverts = step.entry.Seq; step.id != (beneath.FileID{}) {
		u.w.inverts = 0 // it makes room, and inverts nothing
	}
	at, err := u.place(step.Path)
	if err != nil {
		return err
	}
	defer at.Dir.Close()
	defer u.changed(at)
	if was := step.seen.attr; u.hooks.Agree != nil && was != nil && !step.seen.dir {
		st, err := at.Dir.Stat(at.Name)
		u.stays[step.seen.id] = u.stays[step.seen.id] || err == nil && !journal.AttrOf(&st).Same(was)
	}
	if u.stays[step.seen.id] {
		return &changedError{"changed since it was shown"}
	}
	e := step.entry
	switch step.Action {
	case Remove:
		return u.remove(at, e.Object)
	case Restore:
		return u.restore(at, step.To, e)
	case Return:
		return u.giveBack(at, step.To, e)
	case Mkdir:
		id := e.Object
		if e.Kind == journal.Moved {
			id = e.Other
		}
		return u.mkdir(at, id, e.Attr)
	case Move, Exchange, Copy:
		to, err := u.place(step.To)
		if err != nil {
			return err
		}
		defer to.Dir.Close()
		defer u.changed(to)
		switch {
		case step.Action == Copy:
			return u.copy(at, to, step.id)
		case step.id != (beneath.FileID{}):
			return u.rename(at, to, step.id, e, false) // it gives what is in the way another name
		}
		return u.rename(at, to, e.Object, e, step.Action == Exchange)
	case Rewrite:
		return u.rewrite(at, e)
	case Attribute:
		return u.setAttributes(at, e)
	}
	return fmt.Errorf("no action %q", step.Action)
}

// changed reports a name to the view. The root has none.
func (u *undoing) changed(at Place) {
	if u.hooks.Changed == nil {
		return
	}
	id := at.ID
	if at.Name != "" {
		st, err := at.Dir.Stat(at.Name)
		if id = st.ID(); err != nil {
			id = beneath.FileID{}
		}
	}
	u.hooks.Changed(at.ID, at.Name, id)
}

// place opens the directory of a path. The path of the root is "": its Name is empty.
func (u *undoing) place(rel string) (Place, error) {
	d, err := u.store.tree.Dir(beneath.Parent(rel))
	if errors.Is(err, beneath.ErrStale) {
		return Place{}, &changedError{"its directory is not there any more"}
	}
	if err != nil {
		return Place{}, err
	}
	st, err := d.Self().Stat()
	if err != nil {
		d.Close()
		return Place{}, err
	}
	return Place{Dir: d, ID: st.ID(), Rel: beneath.Parent(rel), Name: beneath.Base(rel)}, nil
}

// meant returns the attributes of the object at a place. It fails if that is not the object id.
func (u *undoing) meant(at Place, id beneath.FileID) (st beneath.Stat, err error) {
	if at.Name == "" {
		st, err = at.Dir.Self().Stat()
	} else {
		st, err = at.Dir.Stat(at.Name)
	}
	if err != nil || follow(u.alias, plain(st.ID())) != follow(u.alias, plain(id)) {
		return st, &changedError{"another process has changed it meanwhile"}
	}
	return st, nil
}

// written is meant for an object whose content or attributes change.
func (u *undoing) written(at Place, id beneath.FileID) (st beneath.Stat, err error) {
	if st, err = u.meant(at, id); err == nil && at.Name != "" && u.hooks.May != nil {
		err = u.hooks.May(at.Path(), &st)
	}
	return st, err
}

func (u *undoing) open(id beneath.FileID) bool { return u.hooks.Open != nil && u.hooks.Open(id) }

func (u *undoing) remove(at Place, id beneath.FileID) error {
	st, err := u.meant(at, id)
	if err != nil {
		return err
	}
	if st.IsDir() {
		if err = u.w.Rmdir(at, &st); err == unix.ENOTEMPTY {
			err = &changedError{"the directory has files of others"}
		}
		return err
	}
	return u.w.Unlink(at, &st, u.open(st.ID()))
}

// restore gives a kept file its name again.
func (u *undoing) restore(at Place, kept string, e *entry) error {
	from, err := u.store.dir.Dir(beneath.Parent(kept))
	if err != nil {
		return err
	}
	defer from.Close()
	st, err := from.Stat(beneath.Base(kept))
	if err != nil {
		return err
	}
	if st.IsLink() && u.hooks.Link != nil {
		text := make([]byte, unix.PathMax)
		n, _, err := readLink(u.store.dir, kept, text, 0)
		if err == nil {
			err = u.hooks.Link(at.Path(), string(text[:n]))
		}
		if err != nil {
			return err
		}
	}
	g := u.w.undo
	if err := u.w.directory(g, at); err != nil {
		return err
	}
	r := &journal.Record{Kind: journal.Restored, Path: at.Path(), To: kept, Object: st.ID()}
	err = u.w.do(g, r, func() error { return from.Rename(beneath.Base(kept), at.Dir, at.Name, unix.RENAME_NOREPLACE) })
	if err == nil {
		u.store.links.remove(plain(st.ID()))
	}
	return err
}

// giveBack moves a file that an undo has restored to where it was kept.
func (u *undoing) giveBack(at Place, kept string, e *entry) error {
	st, err := u.meant(at, e.Object)
	if err != nil {
		return err
	}
	to, err := u.store.dir.Dir(beneath.Parent(kept))
	if err != nil {
		return u.w.Unlink(at, &st, u.open(st.ID())) // that generation was given up
	}
	defer to.Close()
	g := u.w.undo
	if err := u.w.directory(g, at); err != nil {
		return err
	}
	if several := st.Nlink > 1; several || u.open(st.ID()) {
		u.store.links.add(plain(st.ID()), several)
	}
	r := &journal.Record{Kind: journal.Returned, Path: at.Path(), To: kept, Object: st.ID()}
	return u.w.do(g, r, func() error { return at.Dir.Rename(at.Name, to, beneath.Base(kept), unix.RENAME_NOREPLACE) })
}

// mkdir makes a directory for one that was removed.
func (u *undoing) mkdir(at Place, id beneath.FileID, a *journal.Attr) error {
	id = follow(u.alias, plain(id)) // an earlier undo may have made one for it, which is removed as well
	m, err := u.w.makeFor(at, id)
	if err != nil {
		return err
	}
	if err := at.Dir.Mkdir(at.Name, a.Mode); err != nil {
		m.Void()
		return err
	}
	st, err := at.Dir.Stat(at.Name)
	m.Done(&st)
	if err != nil {
		return err
	}
	u.alias[id] = plain(st.ID())
	if err := u.set(at, &st, a); err != nil {
		return err
	}
	return u.w.write(u.w.undo, &journal.Record{Kind: journal.Written, Object: st.ID()}) // complete
}

func (u *undoing) rename(from, to Place, id beneath.FileID, e *entry, exchange bool) error {
	if exchange { // from has Other, and to has Object
		id = e.Other
	}
	moved, err := u.meant(from, id)
	if err != nil {
		return err
	}
	if !exchange {
		return u.w.Rename(from, to, &moved, nil, false, unix.RENAME_NOREPLACE)
	}
	other, err := u.meant(to, e.Object)
	if err != nil {
		return err
	}
	return u.w.Rename(from, to, &moved, &other, false, beneath.RenameExchange)
}

// copy makes a copy of a file.
func (u *undoing) copy(from, to Place, id beneath.FileID) error {
	st, err := u.meant(from, id)
	if err != nil {
		return err
	}
	f, err := u.store.tree.Open(from.Path(), unix.O_RDONLY, st.ID())
	if err != nil {
		return err
	}
	defer f.Close()
	m, err := u.w.Make(to)
	if err != nil {
		return err
	}
	made, err := to.Dir.Create(to.Name, unix.O_RDWR, 0o600)
	if err != nil {
		m.Void()
		return err
	}
	defer made.Close()
	if made.Clone(f) != nil {
		err = made.CopySparse(f, int64(st.Size))
	}
	now, failed := made.Stat()
	m.Done(&now)
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	a := journal.AttrOf(&st)
	a.XAttrs = u.store.xattrs(from.Path(), &st)
	if err := u.set(to, &now, a); err != nil {
		return err
	}
	if now, err = made.Stat(); err == nil {
		u.w.Written(&now)
	}
	return err
}

// rewrite writes the kept content to a file.
func (u *undoing) rewrite(at Place, e *entry) error {
	st, err := u.written(at, e.Object)
	if err != nil {
		return err
	}
	reader := func() (beneath.File, error) { return u.store.tree.Open(at.Path(), unix.O_RDONLY, st.ID()) }
	if err := u.w.Content(at.Path(), &st, reader); err != nil {
		return err
	}
	whole := false
	defer func() {
		if !whole {
			u.w.Left(func() (beneath.Stat, error) { return u.meant(at, e.Object) })
		}
	}()
	f, err := u.store.tree.Open(at.Path(), unix.O_RDWR, st.ID())
	if errors.Is(err, unix.EACCES) {
		restore := u.store.tree.Lift(at.Path(), unix.S_IRUSR|unix.S_IWUSR)
		f, err = u.store.tree.Open(at.Path(), unix.O_RDWR, st.ID())
		restore()
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := u.fill(f, e); err != nil {
		return err
	}
	if err := u.set(at, &st, e.Attr); err != nil {
		return err
	}
	if err := f.Sync(true); err != nil { // before a record says that it is complete
		return err
	}
	now, err := f.Stat()
	if whole = err == nil; whole {
		u.w.Written(&now)
	}
	return err
}

// fill replaces the content of a file by the kept one.
func (u *undoing) fill(f beneath.File, e *entry) error {
	if e.Flags&journal.Inline != 0 {
		data, err := u.store.inline(e.gen.name, e.Record)
		if err == nil {
			err = u.empty(f)
		}
		if err == nil {
			err = writeAll(f, data, 0)
		}
		return err
	}
	st, err := u.store.dir.Stat(e.keptAt())
	if err != nil {
		return err
	}
	kept, err := u.store.dir.Open(e.keptAt(), unix.O_RDONLY, st.ID())
	if err != nil {
		return err
	}
	defer kept.Close()
	if e.Flags&journal.Blocks != 0 {
		return u.fillBlocks(f, kept, e)
	}
	if err := u.empty(f); err != nil {
		return err
	}
	if f.Clone(kept) == nil {
		return nil
	}
	return f.CopySparse(kept, int64(st.Size))
}

// empty truncates a file, whose content is kept.
func (u *undoing) empty(f beneath.File) error {
	st, err := f.Stat()
	if err == nil {
		err = u.w.Blocks(st.ID(), 0, int64(st.Size))
	}
	if err != nil {
		return err
	}
	return f.Truncate(0)
}

// setAttributes gives an object the kept attributes.
func (u *undoing) setAttributes(at Place, e *entry) error {
	st, err := u.written(at, e.Object)
	if err != nil {
		return err
	}
	if e.Flags&journal.Names == 0 {
		if err := u.w.Attributes(at.Path(), &st); err != nil {
			return err
		}
	} else {
		return u.setTimes(at.Path(), &st, e.Attr)
	}
	if err := u.set(at, &st, e.Attr); err != nil {
		return err
	}
	if st.IsRegular() {
		now, err := u.meant(at, e.Object)
		if err != nil {
			return err
		}
		u.w.Written(&now)
		return nil
	}
	return u.w.write(u.w.undo, &journal.Record{Kind: journal.Written, Object: e.Object}) // complete
}

// setTimes gives a directory its times.
func (u *undoing) setTimes(rel string, st *beneath.Stat, a *journal.Attr) error {
	d, err := u.store.tree.Dir(rel)
	if err != nil {
		return err
	}
	defer d.Close()
	if now, err := d.Self().Stat(); err != nil || now.ID() != st.ID() {
		return &changedError{"another process has changed it meanwhile"}
	}
	if err := u.w.directory(u.w.undo, Place{Dir: d, ID: st.ID(), Rel: rel}); err != nil {
		return err
	}
	return d.Self().Utimes(a.Times())
}

// set gives an object attributes, and its times last. st are its present ones.
func (u *undoing) set(at Place, st *beneath.Stat, a *journal.Attr) error {
	rel := at.Path()
	if at.Name == "" {
		rel = ""
	}
	obj, err := u.store.tree.Object(rel)
	if err != nil {
		return err
	}
	defer obj.Close()
	if now, err := obj.Stat(); err != nil || now.ID() != st.ID() {
		return &changedError{"another process has changed it meanwhile"}
	}
	if st.Uid != a.UID || st.Gid != a.GID {
		if err := obj.Chown(int(a.UID), int(a.GID)); err != nil {
			return err
		}
	}
	if !st.IsLink() {
		if err := obj.Chmod(a.Mode & 0o7777); err != nil && err != unix.EOPNOTSUPP {
			return err
		}
	}
	if err := u.setXattrs(rel, st, a); err != nil {
		return err
	}
	return obj.Utimes(a.Times())
}

// setXattrs sets the kept attributes, and removes those that were not there.
func (u *undoing) setXattrs(rel string, st *beneath.Stat, a *journal.Attr) error {
	if a.XAttrs == nil {
		return nil
	}
	now := u.store.xattrs(rel, st)
	if len(now) == 0 && len(a.XAttrs) == 0 {
		return nil
	}
	f, err := u.store.tree.Open(rel, unix.O_RDONLY, st.ID())
	if err != nil {
		return err
	}
	defer f.Close()
	return f.ReplaceXattrs(now, a.XAttrs)
}
