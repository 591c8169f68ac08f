package history

import (
	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Layer is a layer (package hold) whose upper directory is the tree of a Store. At each path its clients see the object of the tree, or
// else what the layer shows of its base. A change of what it shows is a record Shown, whose data only the layer reads.
type Layer interface {
	// Last returns the number of the record whose change is the last one in the layer's journal.
	Last() uint64
	// Plan returns what the layer shows now, for a plan. Below is that of Plan at once.
	Plan() Shows
	Below(rel string) (beneath.Found, error)
	// Revert reverts a change, with the object of the tree that moves as well, and writes a record whose data reverts that again. It
	// fails if somebody has changed the path since.
	Revert(w *Writer, id beneath.FileID, data []byte) error
	// MakeDirs makes a directory of the tree that the layer shows.
	MakeDirs(rel string) error
	// Still keeps clients from changing names in the layer until end is called. The caller may change those of the tree.
	Still() (end func(), err error)
}

// Shows is what a layer would show after some changes are reverted.
type Shows interface {
	// Revert reverts a change, or returns why it cannot. empty reports whether a directory of the tree would have nothing.
	Revert(data []byte, empty func(rel string) bool) (why string)
	// Below finds the object of the base that a path shows, or would show without the tree.
	Below(rel string) (beneath.Found, error)
}

// Copied keeps that a copy of the base's file base, with the identity id, is about to get a name in the tree. The caller calls Done or
// Void once.
func (w *Writer) Copied(at Place, id beneath.FileID, base string) (*Making, error) {
	return w.making(at, &journal.Record{Kind: journal.Made, Path: at.Path(), To: base, Object: id})
}

// Showing is a change of what the layer shows that is about to be made. A nil *Showing does nothing.
type Showing struct {
	w       *Writer
	g       *generation
	records []*journal.Record
}

// Shown keeps that a path shows another object of the base, and to, if it is not empty. id is of the tree's object that moves with that.
// parts are data of records of their own, which are reverted after data. data may be nil. The caller calls Done or Void once.
func (w *Writer) Shown(rel, to string, id beneath.FileID, data []byte, parts ...[]byte) (s *Showing, err error) {
	if w == nil {
		return nil, nil
	}
	err = w.begin(func(g *generation) error {
		g.users.Add(1)
		s = &Showing{w: w, g: g}
		for _, part := range parts {
			s.records = append(s.records, &journal.Record{Kind: journal.Shown, Flags: journal.Inline, Path: rel, To: to, Data: part})
		}
		if data != nil {
			s.records = append(s.records, &journal.Record{Kind: journal.Shown, Path: rel, To: to, Object: id, Data: data})
		}
		for _, r := range s.records {
			if err := w.write(g, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && s != nil {
		s.Void()
		s = nil
	}
	return s, w.orLose(rel, err, func() error { return nil })
}

// Seq returns the number of the last record; 0: there is none.
func (s *Showing) Seq() uint64 {
	if s == nil {
		return 0
	}
	return s.records[len(s.records)-1].Seq
}

// Done notes that the layer has changed.
func (s *Showing) Done() {
	if s != nil {
		s.g.note(&journal.Record{Seq: s.w.store.next(), Kind: journal.Settled, Of: s.Seq()}) // Open finds it out, too
		s.g.users.Done()
	}
}

// Void notes that the layer has not changed.
func (s *Showing) Void() {
	if s != nil {
		for _, r := range s.records {
			s.w.void(s.g, r)
		}
		s.g.users.Done()
	}
}

// Ready returns a Writer that calls do once, right before the system call of its next change of names. After an error of do nothing
// changes.
func (w *Writer) Ready(do func() error) *Writer {
	ready := *w
	done := false
	ready.ready = func() error {
		if done {
			return nil
		}
		done = true
		return do()
	}
	return &ready
}

// rename moves what from has to a name, after what Ready has set.
func (w *Writer) rename(from, to Place, flags uint) error {
	if w != nil && w.ready != nil {
		if err := w.ready(); err != nil {
			return err
		}
	}
	return from.Dir.Rename(from.Name, to.Dir, to.Name, flags)
}

// Times keeps the times of a directory of the tree in which a name is about to change by a record alone.
func (w *Writer) Times(at Place) error {
	if w == nil {
		return nil
	}
	return w.orLose(at.Rel, w.begin(func(g *generation) error { return w.directory(g, at) }), func() error { return nil })
}

// invertShown plans to have a path show what it has shown before.
func (w *world) invertShown(e *entry) {
	why, before := w.blocked[w.same(e.Object)], w.below(e.Path)
	if why == "" {
		data, err := w.store.inline(e.gen.name, e.Record)
		if err != nil {
			w.conflict(e, e.Path, err.Error())
			return
		}
		why = w.shows().Revert(data, func(rel string) bool { return !w.at(rel).there || w.empty(rel) })
	}
	if why != "" {
		w.conflict(e, e.Path, why)
		return
	}
	w.revealed[e.Path], w.revealed[e.To] = true, true
	switch {
	case e.To != "":
		w.step(Move, e, e.To, e.Path)
	case before != nil && w.below(e.Path) == nil:
		w.step(Remove, e, e.Path, "")
	default:
		w.step(Reveal, e, e.Path, "")
	}
}

// shows returns what the layer would show; nil: the Store is of no layer.
func (w *world) shows() Shows {
	if w.shown == nil && w.store.opt.Layer != nil {
		w.shown = w.store.opt.Layer.Plan()
	}
	return w.shown
}

// below returns what the layer shows of its base at a path that the tree has not; nil: nothing.
func (w *world) below(rel string) *beneath.Found { return below(w.shows(), rel) }

func below(layer interface {
	Below(string) (beneath.Found, error)
}, rel string) *beneath.Found {
	if layer == nil {
		return nil
	}
	at, err := layer.Below(rel)
	if err != nil {
		return nil
	}
	return &at
}

// Base is the Generation of the Version of a file of a layer's base.
const Base = "base"

// baseVersion returns the version of the base that a layer shows at a path; false: it shows none.
func (s *Store) baseVersion(shows Shows, rel string) (v Version, ok bool) {
	if shows == nil {
		return v, false
	}
	at, err := shows.Below(rel)
	return Version{Generation: Base, Path: at.Rel}, err == nil && !at.Stat.IsDir()
}

// hides reports whether a path would show an object of the base that a record has not hidden when it hid the path.
func (w *world) hides(e *entry) string {
	now := w.below(e.Path)
	_, had := w.names[e.Path] // an object of the tree, which this undo has taken away
	switch {
	case now == nil, had, w.revealed[e.Path], e.Kind == journal.Moved && e.Flags&journal.Twin != 0: // hidden again, or moved back
		return ""
	case e.Attr == nil || e.To == "" || e.Other != (beneath.FileID{}): // its attributes are not those of the base's object
		return "another object is there"
	case !journal.AttrOf(&now.Stat).Same(e.Attr) && !w.sameIndex(e, now.Root, now.Rel):
		return "changed since by the host"
	}
	return ""
}

// reveals notes what a place shows of the base of a layer once a step has taken its object away.
func (u *undoing) reveals(r *journal.Record, at Place) *journal.Record {
	if found := below(u.store.opt.Layer, at.Path()); found != nil {
		r.Attr, r.Data = journal.AttrOf(&found.Stat), IndexSum(found.Root, found.Rel, found.Rel, &found.Stat)
	}
	return r
}

// Inner reports whether a step is a part of another one: people do not see it.
func (s Step) Inner() bool {
	return s.OnlyTimes() || s.entry != nil && s.entry.Kind == journal.Shown &&
		(s.entry.Object != (beneath.FileID{}) || s.entry.Flags&journal.Inline != 0)
}

// Show is of plan.Keeper.
func (u *undoing) Show(s *plan.Step) error {
	i := u.inverse(s)
	if u.kept[u.w.inverts] != nil {
		return nil // a process that was killed has done it
	}
	data, err := u.store.inline(i.Gen, i.Record)
	if err != nil {
		return err
	}
	if err = u.store.opt.Layer.Revert(u.w, i.Record.Object, data); err == nil && u.hooks.Changed != nil {
		for _, rel := range []string{s.At.Rel(), s.To.Rel()} {
			u.hooks.Changed(Place{Rel: beneath.Parent(rel), Name: beneath.Base(rel)}, beneath.FileID{})
		}
	}
	return err
}
