package history

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/scope/beneath"
)

// MaxCopy bounds the files whose content is copied before they are written, where the file system has no
// reflinks: ioctl_ficlone(2). A larger file is kept by blocks: see Writer.Blocks.
const MaxCopy = 64 << 20

// maxInline bounds a content that is kept in the journal.
const maxInline = 16 << 10

func keptName(k uint32) string { return strconv.FormatUint(uint64(k), 10) }

// Content keeps the content of the regular file rel, with the attributes st, that is about to be written. open opens
// it for reading.
func (w *Writer) Content(rel string, st *beneath.Stat, open func() (beneath.File, error)) error {
	if w == nil || w.nothing {
		return nil
	}
	err := w.begin(func(g *generation) error {
		id := plain(st.ID())
		leave, done := g.enter(st)
		if done && w.undo != nil { // each inverse has a record
			leave, done = func() {}, false
		}
		if done {
			return w.opened(g, id)
		}
		defer leave()
		r := &journal.Record{Kind: journal.Content, Path: rel, Object: id, Attr: journal.AttrOf(st)}
		if w.unnamed {
			r.Flags |= journal.Unnamed
		}
		if err := w.keepContent(g, r, open); err != nil {
			return err
		}
		g.mark(id, seenContent)
		return nil
	})
	return w.orLose(rel, err, func() error { return nil })
}

// writing is a file that may change. Store.states guards it.
type writing struct {
	clients int  // handles that are open for writing, and requests under way
	noted   bool // the journal says that the file is open for writing
}

// Begin counts a client that is about to change a file or to open it for writing, until its Left: no Left of another
// client says meanwhile how the file was left. made says that the client has made the file.
func (w *Writer) Begin(id beneath.FileID, made bool) {
	if w == nil {
		return
	}
	w.store.states.Lock()
	defer w.store.states.Unlock()
	one := w.store.writing[plain(id)]
	if one == nil {
		one = &writing{}
		w.store.writing[plain(id)] = one
	}
	one.clients++
	one.noted = one.noted || made // by the record of that
}

// Left notes how a file was left, unless another client may still change it. stat returns its attributes.
func (w *Writer) Left(id beneath.FileID, stat func() (beneath.Stat, error)) {
	if w == nil {
		return
	}
	w.store.states.Lock()
	defer w.store.states.Unlock()
	one := w.store.writing[plain(id)]
	if one == nil {
		return
	}
	if one.clients--; one.clients > 0 {
		return
	}
	delete(w.store.writing, plain(id))
	if st, err := stat(); err == nil && plain(st.ID()) == plain(id) && one.noted {
		w.leave(&st)
	}
}

// leave notes how a file was left. The caller holds Store.states.
func (w *Writer) leave(st *beneath.Stat) {
	_ = w.begin(func(g *generation) error { // without it the file counts as somebody else's work
		g.leave(st)
		g.note(&journal.Record{Seq: w.store.next(), Kind: journal.Written, Of: w.inverts, PID: w.pid,
			Object: plain(st.ID()), Attr: journal.AttrOf(st)})
		return nil
	})
}

// written reports whether a client has a file open for writing.
func (s *Store) written(id beneath.FileID) bool {
	s.states.Lock()
	defer s.states.Unlock()
	return s.isWritten(id)
}

// isWritten is written for a caller that holds states.
func (s *Store) isWritten(id beneath.FileID) bool {
	one := s.writing[id]
	return one != nil && one.noted
}

// Opened notes that a file is open for writing, unless that is known: how it is left is not known before the last Left.
func (w *Writer) Opened(id beneath.FileID) {
	if w != nil {
		_ = w.begin(func(g *generation) error { return w.opened(g, plain(id)) }) // without it the file counts as somebody else's work
	}
}

func (w *Writer) opened(g *generation, id beneath.FileID) error {
	w.store.states.Lock()
	defer w.store.states.Unlock()
	if w.store.isWritten(id) {
		return nil
	}
	return w.writeOpen(g, &journal.Record{Kind: journal.Written, Object: id})
}

// writeOpen writes a record that says that a file is open for writing. The caller holds Store.states.
func (w *Writer) writeOpen(g *generation, r *journal.Record) error {
	err := w.write(g, r)
	if one := w.store.writing[r.Object]; one != nil && err == nil {
		one.noted = true
	}
	return err
}

// enter waits until no request copies the content of a file. Then it reports that the content is kept, or reserves
// the copy until leave is called.
func (g *generation) enter(st *beneath.Stat) (leave func(), done bool) {
	id := plain(st.ID())
	for {
		if g.own(st, seenBorn|seenContent) {
			return nil, true
		}
		g.mu.Lock()
		busy, mine := g.copying[id], make(chan struct{})
		if busy == nil {
			g.copying[id] = mine
		}
		g.mu.Unlock()
		if busy == nil {
			return func() {
				g.mu.Lock()
				defer g.mu.Unlock()
				delete(g.copying, id)
				close(mine)
			}, false
		}
		<-busy
	}
}

// keepContent writes a record with the content, or with the number of a copy, or why there is none. It fails with ErrStale if
// another client has moved the file since: the caller's change will fail as well.
func (w *Writer) keepContent(g *generation, r *journal.Record, open func() (beneath.File, error)) error {
	if w.store.excluded(r.Path) {
		r.Why = whyExcluded
		_, err := w.writeContent(g, r, nil)
		return err
	}
	from, err := open()
	if errors.Is(err, unix.EACCES) && r.Flags&journal.Unnamed == 0 {
		restore := w.store.tree.Lift(r.Path, unix.S_IRUSR)
		from, err = open()
		restore()
	}
	if errors.Is(err, beneath.ErrStale) {
		return err
	}
	if err != nil {
		if r.Flags |= journal.Inline; r.Attr.Size > 0 {
			why := "it cannot be read: " + err.Error()
			if refused := w.refusal(err, why); refused != nil && r.Flags&journal.Unnamed == 0 {
				return refused
			}
			r.Flags, r.Why = r.Flags&^journal.Inline, why
		}
		_, err := w.writeContent(g, r, nil)
		return err
	}
	defer from.Close()
	for tries := 3; ; tries-- {
		unchanged := &from
		size, err := w.copyContent(g, r, from)
		if err != nil {
			if refused := w.refusal(err, err.Error()); refused != nil {
				return refused
			}
			r.Why = err.Error()
		}
		if err != nil || tries == 1 {
			unchanged = nil
		}
		if written, err := w.writeContent(g, r, unchanged); written {
			g.keeps(size)
			return err
		}
		if r.Kept != 0 {
			g.endBlocks(r.Object)
			_ = w.store.links.drop(g.dir, keptName(r.Kept)) // as in copyContent
		}
	}
}

// writeContent writes a record of content, unless another client has changed a file since.
func (w *Writer) writeContent(g *generation, r *journal.Record, unchanged *beneath.File) (written bool, err error) {
	w.store.states.Lock()
	defer w.store.states.Unlock()
	if unchanged != nil {
		if st, err := unchanged.Stat(); err != nil || !r.Attr.Same(journal.AttrOf(&st)) {
			return false, nil
		}
	}
	if w.store.isWritten(r.Object) {
		r.Flags |= journal.Busy
	}
	return true, w.writeOpen(g, r)
}

// copyContent copies the content into the record or to a file, and returns what that takes.
func (w *Writer) copyContent(g *generation, r *journal.Record, from beneath.File) (size int64, err error) {
	st, err := from.Stat()
	if err != nil {
		return 0, err
	}
	r.Attr, r.Kept, r.Data, r.Flags = journal.AttrOf(&st), 0, nil, r.Flags&^(journal.Inline|journal.Blocks)
	r.Attr.Capability = journal.CapabilityOf(from) // a write removes it
	if r.Attr.Size <= maxInline {
		r.Data = make([]byte, r.Attr.Size)
		n, err := from.ReadAt(r.Data, 0)
		if err == nil {
			r.Data, r.Flags = r.Data[:n], r.Flags|journal.Inline
		}
		return int64(n), err
	}
	if err := w.store.opt.Quota.Fits(int64(st.Blocks) * 512); err != nil && !w.store.Large(r.Attr.Size) {
		return 0, err
	}
	r.Kept = g.number()
	name := keptName(r.Kept)
	to, err := g.dir.Create(name, unix.O_RDWR, 0o600)
	if err == nil {
		defer to.Close()
		switch {
		case w.store.Large(r.Attr.Size):
			r.Flags |= journal.Blocks
			err = g.byBlocks(r.Object, from, to, r.Attr.Size)
		case to.Clone(from) != nil:
			err = to.CopySparse(from, r.Attr.Size)
		}
		if err != nil {
			_ = g.dir.Unlink(name) // Open removes it, too
		}
	}
	if err == nil {
		st, err = to.Stat()
	}
	if err != nil {
		r.Kept = 0
		return 0, err
	}
	w.store.opt.Quota.Grown(to, &quota.Usage{})
	g.mu.Lock()
	g.copies = append(g.copies, r.Kept)
	g.mu.Unlock()
	return int64(st.Blocks) * 512, nil
}

// Lost notes that a change of a file will not be kept.
func (w *Writer) Lost(rel, why string) {
	if w != nil {
		w.store.lose(loss{w.label, rel, why})
	}
}

// HasContent reports whether the writer's generation has kept the content of an object.
func (w *Writer) HasContent(id beneath.FileID) bool {
	return w == nil || w.begin(func(g *generation) error {
		if g.has(plain(id), seenBorn|seenContent) {
			return nil
		}
		return unix.ENOENT
	}) == nil
}
