package history

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Writer keeps what the changes of one process destroy. A nil *Writer makes the changes and keeps nothing.
type Writer struct {
	store   *Store
	label   Label
	pid     uint32
	program string

	unnamed bool        // the object that changes has no name but in the history
	nothing bool        // not even there
	undo    *generation // instead of that of label
	inverts uint64      // Record.Of of an undo

	ready func() error   // see Ready
	base  journal.Record // of a layer: To and Attr of the copy that an undo removes; zero: it is none
}

// Place is a name in a directory.
type Place = plan.Place

// plain returns an identity as journals have it. The number of a device can differ after a restart of the host.
func plain(id beneath.FileID) beneath.FileID {
	id.Dev = 0
	return id
}

// generation returns the generation that takes the writer's records. The caller calls users.Done.
func (w *Writer) generation() (*generation, error) {
	if w.undo != nil {
		w.undo.users.Add(1)
		return w.undo, nil
	}
	return w.store.generation(w.label)
}

// write appends a record to the journal.
func (w *Writer) write(g *generation, r *journal.Record) error {
	r.Seq, r.PID, r.Program = w.store.next(), w.pid, w.program
	if r.Of == 0 {
		r.Of = w.inverts
	}
	r.Object, r.Other = plain(r.Object), plain(r.Other)
	w.store.settle(g)
	return g.write(r)
}

// void notes that a record has not happened.
func (w *Writer) void(g *generation, r *journal.Record) {
	g.note(&journal.Record{Seq: w.store.next(), Kind: journal.Void, Of: r.Seq}) // Open finds it out, too
}

// begin calls f with the writer's generation, which does not end meanwhile.
func (w *Writer) begin(f func(*generation) error) error {
	g, err := w.generation()
	if err != nil {
		return err
	}
	defer g.users.Done()
	return f(g)
}

// Making is an object that is being made.
type Making struct {
	w *Writer
	g *generation
	r *journal.Record
}

// Make keeps the name of an object that is about to be made. The caller calls Done or Void once.
func (w *Writer) Make(at Place) (m *Making, err error) {
	return w.makeFor(at, beneath.FileID{}, beneath.FileID{})
}

// makeFor is Make of an object that an undo moves to the name: a directory stands for one that was removed.
func (w *Writer) makeFor(at Place, id, removed beneath.FileID) (m *Making, err error) {
	return w.making(at, &journal.Record{Kind: journal.Made, Path: at.Path(), Object: id, Other: removed})
}

// making is Make with a record.
func (w *Writer) making(at Place, r *journal.Record) (m *Making, err error) {
	if w == nil {
		return nil, nil
	}
	err = w.begin(func(g *generation) error {
		if err := w.named(g, at); err != nil {
			return err
		}
		m = &Making{w, g, r}
		if err := w.write(g, m.r); err != nil {
			return err
		}
		g.users.Add(1)
		return nil
	})
	err = w.orLose(at.Path(), err, func() error {
		m = nil
		return nil
	})
	return m, err
}

// RefusedError reports a change that was not made, because the history cannot keep what it destroys.
type RefusedError struct {
	Why   string
	Errno unix.Errno // for the client
}

func (e *RefusedError) Error() string { return "history: not kept: " + e.Why }

func (e *RefusedError) Unwrap() error { return e.Errno }

// refusal returns the RefusedError for an error, unless Options.Unkept is set.
func (w *Writer) refusal(err error, why string) error {
	if w.store.opt.Unkept {
		return nil
	}
	switch {
	case errors.Is(err, unix.EDQUOT):
		why = "the limit of the disk is reached: remove files, or raise it"
	case full(err):
		why = whyFull + ": make room on it, or write history: {unkept: allow}"
	}
	return &RefusedError{why, errnoOf(err)}
}

// errnoOf returns the errno of an error, else EPERM.
func errnoOf(err error) unix.Errno {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno
	}
	return unix.EPERM
}

// full reports whether an error says that there is no room.
func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// orLose is for an error of the history about a change that is not made yet: if there is no room for what it destroys, the oldest
// generations go, and the change is refused, or with Options.Unkept made by do and listed as not kept.
func (w *Writer) orLose(rel string, err error, do func() error) error {
	if w.undo != nil || !full(err) {
		return err
	}
	if _, refused := errors.AsType[*RefusedError](err); refused {
		w.store.crowded(err)
		return err
	}
	if refused := w.refusal(err, whyFull); refused != nil {
		w.store.crowded(err)
		return refused
	}
	w.store.lose(loss{w.label, rel, whyFull})
	return do()
}

// Done keeps the identity and the attributes of the object that was made. The zero Stat is not known.
func (m *Making) Done(st *beneath.Stat) {
	if m == nil {
		return
	}
	defer m.g.users.Done()
	if st.Mask == 0 {
		return
	}
	id := plain(st.ID())
	m.g.gone(id)
	if m.w.undo == nil { // each inverse has a record
		m.g.mark(id, seenBorn)
		m.g.leave(st)
	}
	r := &journal.Record{Seq: m.w.store.next(), Kind: journal.Settled, Of: m.r.Seq, Object: id} // Open finds it out, too
	if st.IsRegular() {
		r.Attr = journal.AttrOf(st)
	}
	m.g.note(r)
}

// Void notes that the object was not made.
func (m *Making) Void() {
	if m != nil {
		m.w.void(m.g, m.r)
		m.g.users.Done()
	}
}

// Link calls do, which gives an object another name. from is one that it has; "": none.
func (w *Writer) Link(from string, at Place, id beneath.FileID, do func() error) error {
	if w == nil {
		return do()
	}
	err := w.begin(func(g *generation) error {
		if err := w.named(g, at); err != nil {
			return err
		}
		err := w.do(g, &journal.Record{Kind: journal.Linked, Path: at.Path(), To: from, Object: id}, do)
		if err == nil && from != "" {
			g.link(at.Path(), id)
		}
		return err
	})
	return w.orLose(at.Path(), err, do)
}

// do writes a record and calls f. After an error of f it voids the record.
func (w *Writer) do(g *generation, r *journal.Record, f func() error) error {
	if err := w.write(g, r); err != nil {
		return err
	}
	if err := f(); err != nil {
		w.void(g, r)
		return err
	}
	g.note(&journal.Record{Seq: w.store.next(), Kind: journal.Settled, Of: r.Seq}) // Open finds it out, too
	return nil
}

// Unlink removes the name of an object with the attributes st, which is no directory. open says that clients have it
// open. It fails with ErrStale if another object is there.
func (w *Writer) Unlink(at Place, st *beneath.Stat, open bool) error {
	if w == nil {
		return at.Dir.Unlink(at.Name)
	}
	err := w.begin(func(g *generation) error {
		id := plain(st.ID())
		r := &journal.Record{Kind: journal.Removed, Path: at.Path(), Object: id, To: w.base.To, Attr: w.base.Attr}
		switch {
		case st.Nlink <= 1 && g.own(st, seenBorn):
			r.Flags |= journal.Born
		case st.Nlink > 1 && g.unlink(r.Path, id):
			r.Flags |= journal.Twin
		}
		err := w.directory(g, at)
		switch {
		case r.Flags != 0 && full(err): // nothing is destroyed: an undo finds that it is not there
			return at.Dir.Unlink(at.Name)
		case err != nil:
			return err
		case r.Flags != 0:
		case w.store.excluded(r.Path):
			r.Why = whyExcluded
		case st.Nlink > 1 && w.store.Links(id) >= maxNames && w.undo == nil:
			return &RefusedError{fmt.Sprintf("the history has %d of its names", maxNames), unix.EMLINK}
		default:
			return w.unlinkKept(g, r, at, st, open || st.Nlink > 1)
		}
		if r.Flags&journal.Twin == 0 {
			defer g.gone(id)
		}
		err = w.do(g, r, func() error { return at.Dir.Unlink(at.Name) })
		if r.Flags != 0 && full(err) {
			err = at.Dir.Unlink(at.Name)
		}
		return err
	})
	return w.orLose(at.Path(), err, func() error { return at.Dir.Unlink(at.Name) })
}

const whyExcluded = "excluded"

// maxNames bounds the names of a file that are in the history alone: a file system has few for each file, and others need some.
const maxNames = 1000

// unlinkKept moves the object into the history.
func (w *Writer) unlinkKept(g *generation, r *journal.Record, at Place, st *beneath.Stat, visible bool) error {
	r.Kept = g.number()
	name := keptName(r.Kept)
	err := w.do(g, r, func() error {
		if visible {
			w.store.links.add(r.Object, st.Nlink > 1)
		}
		err := at.Dir.Rename(at.Name, g.dir, name, unix.RENAME_NOREPLACE)
		if err == nil {
			if now, failed := g.dir.Stat(name); failed == nil && plain(now.ID()) != r.Object {
				// Another process has replaced it.
				if err = g.dir.Rename(name, at.Dir, at.Name, unix.RENAME_NOREPLACE); err == nil {
					err = beneath.ErrStale
				}
			}
		}
		if err != nil && visible {
			w.store.links.remove(r.Object)
		}
		return err
	})
	if err == nil {
		g.keeps(int64(st.Blocks) * 512)
	}
	return w.unkept(err, func(why string) error {
		again := &journal.Record{Kind: journal.Removed, Path: r.Path, Object: r.Object, Why: why}
		return w.do(g, again, func() error { return at.Dir.Unlink(at.Name) })
	})
}

// unkept is for an error that may report that the history cannot take a file: the change is refused, or with Options.Unkept made
// by do, and its record says why nothing is kept.
func (w *Writer) unkept(err error, do func(why string) error) error {
	for _, full := range []error{unix.ENOSPC, unix.EDQUOT, unix.EXDEV, unix.EMLINK, unix.EOPNOTSUPP} {
		if errors.Is(err, full) {
			if refused := w.refusal(err, err.Error()); refused != nil {
				return refused
			}
			return do(err.Error())
		}
	}
	return err
}

// Rmdir removes an empty directory with the attributes st.
func (w *Writer) Rmdir(at Place, st *beneath.Stat) error {
	if w == nil {
		return at.Dir.Rmdir(at.Name)
	}
	err := w.begin(func(g *generation) error {
		if err := w.directory(g, at); err != nil {
			return err
		}
		r := &journal.Record{Kind: journal.Removed, Flags: journal.Directory, Path: at.Path(), Object: st.ID(), Attr: journal.AttrOf(st)}
		r.Attr.XAttrs = w.store.xattrs(r.Path, st)
		defer g.gone(plain(st.ID()))
		return w.do(g, r, func() error { return at.Dir.Rmdir(at.Name) })
	})
	return w.orLose(at.Path(), err, func() error { return at.Dir.Rmdir(at.Name) })
}

// Rename moves the object moved to a name. other is what that name has; nil: nothing. flags are those of renameat2(2).
func (w *Writer) Rename(from, to Place, moved, other *beneath.Stat, open bool, flags uint) error {
	plainly := func() error { return w.rename(from, to, flags) }
	if w == nil || other != nil && other.ID() == moved.ID() {
		return plainly()
	}
	index := IndexSum(w.store.tree, from.Path(), to.Path(), moved)
	err := w.begin(func(g *generation) error {
		if err := errors.Join(w.directory(g, from), w.named(g, to)); err != nil {
			return err
		}
		if moved.IsDir() || other != nil && other.IsDir() {
			g.relink()
		} else {
			g.unlink(from.Path(), beneath.FileID{})
			g.unlink(to.Path(), beneath.FileID{})
		}
		r := &journal.Record{Kind: journal.Moved, Path: from.Path(), To: to.Path(), Object: moved.ID(), Data: index}
		if w.ready != nil {
			r.Flags |= journal.Twin
		}
		switch {
		case other == nil:
			flags |= unix.RENAME_NOREPLACE
			err := w.do(g, r, plainly)
			if err == unix.EEXIST {
				err = beneath.ErrStale // another process has made the name since
			}
			return err
		case flags&beneath.RenameExchange != 0:
			r.Kind, r.Other = journal.Exchanged, other.ID()
			return w.do(g, r, plainly)
		case flags&unix.RENAME_NOREPLACE != 0:
			return unix.EEXIST
		}
		r.Other = other.ID()
		id := plain(r.Other)
		switch {
		case other.IsDir():
			r.Flags |= journal.Directory
			r.Attr = journal.AttrOf(other)
			r.Attr.XAttrs = w.store.xattrs(r.To, other)
		case other.Nlink <= 1 && g.own(other, seenBorn):
			r.Flags |= journal.Born
		case w.store.excluded(r.To):
			r.Why = whyExcluded
		case moved.IsDir():
			return unix.ENOTDIR
		default:
			return w.replaceKept(g, r, from, to, other, open || other.Nlink > 1)
		}
		defer g.gone(id)
		return w.do(g, r, plainly)
	})
	return w.orLose(to.Path(), err, plainly)
}

// replaceKept gives the replaced object a name in the history, and moves the other one in its place.
func (w *Writer) replaceKept(g *generation, r *journal.Record, from, to Place, other *beneath.Stat, visible bool) error {
	r.Kept = g.number()
	name := keptName(r.Kept)
	var failed error
	err := w.do(g, r, func() error {
		if failed = to.Dir.Link(to.Name, g.dir, name); failed != nil {
			return failed
		}
		w.store.links.add(r.Other, other.Nlink > 1)
		now, err := g.dir.Stat(name)
		if err == nil && plain(now.ID()) != r.Other {
			err = beneath.ErrStale
		}
		if err == nil {
			err = w.rename(from, to, 0)
		}
		if err != nil {
			_ = g.dir.Unlink(name) // Open removes it, too
		}
		if err != nil || !visible {
			w.store.links.remove(r.Other)
		}
		return err
	})
	switch {
	case failed == unix.EPERM || failed == unix.EMLINK || failed == unix.EOPNOTSUPP:
		return w.replaceExchanged(g, r, from, to, other, visible)
	case failed != nil:
		return w.unkept(err, func(why string) error {
			again := &journal.Record{Kind: journal.Moved, Path: r.Path, To: r.To, Object: r.Object, Other: r.Other, Why: why}
			return w.do(g, again, func() error { return w.rename(from, to, 0) })
		})
	case err == nil:
		g.keeps(int64(other.Blocks) * 512)
	}
	return err
}

// replaceExchanged is replaceKept for an object that cannot have another name. It exchanges the two objects and
// removes the replaced one, as two records.
func (w *Writer) replaceExchanged(g *generation, r *journal.Record, from, to Place, other *beneath.Stat, visible bool) error {
	exchange := &journal.Record{Kind: journal.Exchanged, Path: r.Path, To: r.To, Object: r.Object, Other: r.Other}
	if err := w.do(g, exchange, func() error { return w.rename(from, to, beneath.RenameExchange) }); err != nil {
		return err
	}
	gone := &journal.Record{Kind: journal.Removed, Path: r.Path, Object: r.Other, Kept: r.Kept}
	return w.unlinkKept(g, gone, from, other, visible)
}

// named is directory for a name that is new.
func (w *Writer) named(g *generation, at Place) error {
	if len(at.Rel)+len(at.Name) > MaxPath && w.undo == nil {
		return unix.ENAMETOOLONG
	}
	return w.directory(g, at)
}

// directory keeps the times of a directory in which a name changes.
func (w *Writer) directory(g *generation, at Place) error {
	id := plain(at.ID)
	if g.has(id, seenBorn|seenNames) {
		return nil
	}
	st, err := at.Dir.Self().Stat()
	if err != nil {
		return err
	}
	err = w.write(g, &journal.Record{Kind: journal.Attributes, Flags: journal.Directory | journal.Names,
		Path: at.Rel, Object: at.ID, Attr: journal.AttrOf(&st)})
	if err == nil {
		g.mark(id, seenNames)
	}
	return err
}

// Attributes keeps the attributes of an object that are about to change.
func (w *Writer) Attributes(rel string, st *beneath.Stat) error {
	if w == nil || w.nothing {
		return nil
	}
	err := w.begin(func(g *generation) error {
		id := plain(st.ID())
		if w.undo == nil && !g.own(st, seenBorn|seenContent) {
			g.disown(id) // how the change leaves the file is not how the generation's clients left it
		}
		if w.undo == nil && g.has(id, seenBorn|seenAttributes) {
			return nil
		}
		r := &journal.Record{Kind: journal.Attributes, Path: rel, Object: id, Attr: journal.AttrOf(st)}
		if st.IsDir() {
			r.Flags |= journal.Directory
		}
		if w.unnamed {
			r.Flags |= journal.Unnamed
		} else {
			r.Attr.XAttrs = w.store.xattrs(rel, st)
		}
		if st.IsRegular() {
			w.store.states.Lock()
			defer w.store.states.Unlock()
			if w.store.isWritten(id) {
				r.Flags |= journal.Busy
			}
			if now, err := w.store.tree.Stat(rel); err == nil && !w.unnamed && plain(now.ID()) == id { // else the caller's look has to do
				xattrs := r.Attr.XAttrs
				r.Attr = journal.AttrOf(&now)
				r.Attr.XAttrs = xattrs
			}
		}
		if err := w.write(g, r); err != nil {
			return err
		}
		g.mark(id, seenAttributes)
		return nil
	})
	return w.orLose(rel, err, func() error { return nil })
}

// Unnamed returns the Writer for changes of an object that has no name in the scope: nobody gets it back, unless the history
// has it.
func (w *Writer) Unnamed(id beneath.FileID) *Writer {
	if w == nil {
		return nil
	}
	other := *w
	other.unnamed, other.nothing = true, w.store.Links(id) == 0
	return &other
}

// Links returns how many names of a file are in the history alone, of those that the file system counts.
func (s *Store) Links(id beneath.FileID) uint32 {
	if s == nil {
		return 0
	}
	return s.links.of(plain(id))
}

// Names returns how many names an object of the scope has, without those in the history.
func (s *Store) Names(rel string) (uint32, error) {
	st, err := s.tree.Stat(rel)
	if err != nil || st.IsDir() {
		return 1, err
	}
	return st.Nlink - min(st.Nlink, s.Links(st.ID())), nil
}

// maxXattrs bounds the extended attributes of an object that are kept, in bytes.
const maxXattrs = journal.MaxRecord / 4

// xattrs returns the extended attributes of an object that a view shows; nil if they cannot be read, or are too large.
func (s *Store) xattrs(rel string, st *beneath.Stat) map[string][]byte {
	if !st.IsDir() && !st.IsRegular() {
		return nil
	}
	f, err := s.tree.Open(rel, unix.O_RDONLY, st.ID())
	if err != nil {
		return nil
	}
	defer f.Close()
	return f.UserXattrs(maxXattrs)
}
