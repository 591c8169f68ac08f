package fs

import (
	"cmp"
	"errors"
	"math"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/judge"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// steady keeps directories from moving until unlock is called: records of the history have the paths at which names change.
// The caller of at, make and unlink holds View.moves in this way, or otherwise.
func (v *View) steady() (unlock func()) {
	if v.opt.History == nil {
		return func() {}
	}
	v.moves.RLock()
	return v.moves.RUnlock
}

// at returns the name of a place, for the history. The directory may have moved since it was opened.
func (v *View) at(p *place) history.Place {
	rel, ok := p.base, false
	if p.keep != nil {
		rel, ok = v.nodes.newest(p.node)
	}
	if !ok {
		rel = p.base
	}
	return history.Place{Dir: p.dir, ID: p.node.ident(), Rel: rel, Name: p.name}
}

// make calls f, which creates the object of a place.
func (v *View) make(p *place, f func() (beneath.Stat, error)) error {
	make := func(at history.Place) error {
		m, err := p.keep.Make(at)
		if err != nil {
			return err
		}
		st, err := f()
		if err != nil || m == nil {
			m.Void()
			return err
		}
		m.Done(&st)
		return nil
	}
	if p.own {
		return v.hold.Make(nameOf(p), make)
	}
	return make(v.at(p))
}

// made returns the attributes of a new object that has no content but a link's text, after the error of its system call. They are not
// known if another process has removed it, or has put something else there.
func (p *place) made(err error, kind uint32, text string) (beneath.Stat, error) {
	if err == nil && p.keep != nil {
		if st, failed := p.dir.Stat(p.name); failed == nil && st.Type() == kind && (st.IsDir() || st.Size == uint64(len(text))) {
			return st, nil
		}
	}
	return beneath.Stat{}, err
}

// unlink removes the name of a place, which had the attributes st.
func (v *View) unlink(p *place, st *beneath.Stat) error {
	if p.own {
		return v.hold.Remove(nameOf(p), false, p.keep, v.keepOpen(p, st))
	}
	if st.IsDir() {
		return p.dir.Unlink(p.name) // EISDIR
	}
	return p.keep.Unlink(v.at(p), st, v.keepOpen(p, st))
}

// rmdir removes the directory of a place, which had the attributes st.
func (v *View) rmdir(p *place, st *beneath.Stat) error {
	switch {
	case p.own:
		return v.hold.Remove(nameOf(p), true, p.keep, false)
	case v.hold == nil:
		return p.keep.Rmdir(v.at(p), st)
	case v.hold.Shows(p.path()):
		return syscall.ENOTEMPTY
	}
	err := p.keep.Rmdir(v.at(p), st)
	if err == nil {
		v.hold.Clear(p.path())
	}
	return err
}

// keepOpen reports whether clients have the object at a place open, which is about to lose its name. It keeps the
// content of one that they may write afterwards.
func (v *View) keepOpen(p *place, st *beneath.Stat) bool {
	if p.keep == nil || !st.IsRegular() {
		return false
	}
	n := v.nodes.byIdentity(st.ID())
	if n == nil || !v.files.holds(n, false) {
		return false
	}
	if !v.files.holds(n, true) {
		return true
	}
	if f, ok := v.files.reach(n, false, false); ok {
		p.keep.Begin(st.ID(), false) // its clients may close it now
		// After an error the kept file itself has the content.
		_ = p.keep.Content(p.path(), st, func() (beneath.File, error) { return v.root.Open(p.path(), unix.O_RDONLY, st.ID()) })
		p.keep.Left(st.ID(), f.Stat)
		f.Close()
	}
	return true
}

// keepContent keeps the content of a file that is about to be opened for writing, or truncated.
func (v *View) keepContent(p *place) error {
	if p.node.staged.Load() != nil {
		return nil // install keeps the file
	}
	if p.keep != nil && v.opt.History.Large(int64(p.stat.Size)) && v.files.backed(p.node) {
		return &history.RefusedError{Why: "it is large, and programs have had it open since it was not", Errno: syscall.EBUSY}
	}
	return p.keep.Content(p.rel, &p.stat, func() (beneath.File, error) { return v.openFile(p, unix.O_RDONLY) })
}

// keepAttributes keeps the attributes of an object that are about to change.
func (v *View) keepAttributes(p *place) error {
	if p.node.staged.Load() != nil {
		return nil // likewise
	}
	if p.own && p.stat.IsDir() { // p.stat has the identity of the base's
		st, err := v.hold.Upper.Stat(p.rel)
		if err != nil {
			return err
		}
		return p.keep.Attributes(p.rel, &st)
	}
	return p.keep.Attributes(p.rel, &p.stat)
}

// keepWrite keeps the content of a file that is about to be written through the view, from an offset up to another one: it may have
// been opened in an earlier generation.
func (v *View) keepWrite(head *fuse.InHeader, h *handle, off, end int64) error {
	if h.keep == nil {
		return nil
	}
	w := h.keep
	if head.Pid != 0 { // else the kernel writes back pages of a mapping
		w = v.opt.History.Writer(head.Pid)
	}
	if w.HasContent(h.node.ident()) {
		return w.Blocks(h.node.ident(), off, end)
	}
	rel, _ := v.nodes.newest(h.node)
	st, err := h.file.Stat()
	if err != nil {
		return err
	}
	if v.links(&st) == 0 {
		w = w.Unnamed(h.node.ident())
	}
	err = w.Content(rel, &st, func() (beneath.File, error) {
		if f, ok := v.files.reach(h.node, true, false); ok {
			return f, nil
		}
		return v.root.Open(rel, unix.O_RDONLY, h.node.ident())
	})
	if err != nil {
		return err
	}
	return w.Blocks(h.node.ident(), off, end)
}

// keepWritten keeps the content of the files that clients have open for writing: the kernel may write them past the view.
func (v *View) keepWritten() {
	for n, w := range v.files.writers() {
		if rel, ok := v.nodes.newest(n); ok { // else it has no name to come back to
			v.keepNow(n, rel, w)
		}
	}
}

// keepNow keeps the content of a file that a client has open for writing. The client may close and move it meanwhile.
func (v *View) keepNow(n *node, rel string, w *history.Writer) {
	obj, err := v.root.Object(rel)
	if err != nil {
		return
	}
	defer obj.Close()
	st, err := obj.Stat()
	switch {
	case err != nil || st.ID() != n.ident():
		return
	case v.opt.History.Large(int64(st.Size)) && v.files.backed(n):
		w.Lost(rel, "it is large, and a program had it open")
		return
	}
	w.Begin(n.ident(), false) // as in keepOpen
	err = w.Content(rel, &st, func() (beneath.File, error) { return v.root.Open(rel, unix.O_RDONLY, n.ident()) })
	if err != nil {
		w.Lost(rel, err.Error())
	}
	w.Left(n.ident(), obj.Stat)
}

// keepAll is for what changes anything up to the end of a file.
const keepAll = math.MaxInt64

// links returns the link count of an object without its names in the history.
func (v *View) links(st *beneath.Stat) uint32 {
	if v.opt.History == nil || st.IsDir() {
		return st.Nlink
	}
	return st.Nlink - min(st.Nlink, v.opt.History.Links(st.ID()))
}

// replaceStaged gives a staged file of git, with the attributes st, its name. now are those of the file that it replaces;
// zero: none.
func (v *View) replaceStaged(at *place, st, now *beneath.Stat) error {
	replace := func(to history.Place, replaced *beneath.Stat) error {
		from := to
		from.Name = scope.StagedGitFile
		m, err := at.keep.Make(from)
		if err != nil {
			return err
		}
		m.Done(st)
		return at.keep.Rename(from, to, st, replaced, false, 0)
	}
	if at.own {
		return v.hold.Replace(nameOf(at), replace)
	}
	var replaced *beneath.Stat
	if now.Mask != 0 {
		replaced = now
	}
	return replace(v.at(at), replaced)
}

// Hooks returns what connects an undo with the view.
func (v *View) Hooks() history.Hooks {
	return history.Hooks{
		May: v.mayUndo,
		Move: func(rel string) error {
			d := v.policy.Load().Move(rel)
			d.Allow = d.Allow || d.Below // Below decides
			return judge.Permitted(d)
		},
		Below:   v.mayMoveBelow,
		Link:    v.mayLead,
		Read:    func(rel string) error { return judge.Read(v.policy.Load(), rel) },
		Writing: func(id beneath.FileID) bool { return v.holds(id, true) },
		Open:    func(id beneath.FileID) bool { return v.holds(id, false) },
		Lock:    v.undoing,
		Begin:   v.keepWritten,
		Changed: v.undone,
		Over:    v.reidentify,
	}
}

// mayLead returns an error if the rules protect what a symbolic link leads to. A link of the host out of the scope comes back.
// The caller holds View.moves.
func (v *View) mayLead(rel, text string) error {
	return ruled(v.judgeNew(rel, text))
}

// ruled returns the error of an undo for a refusal, with its rule; nil for a link of the host out of the scope.
func ruled(err error) error {
	u, is := errors.AsType[*unrecorded](err)
	switch {
	case err == nil || isViolation(err):
		return nil
	case is:
		return judge.Permitted(scope.Decision{Rule: u.event.Rule})
	}
	return scope.ErrDenied
}

// mayUndo returns an error for a path that the rules do not let clients change, and for an object with a name that they do
// not. st are the object's attributes; nil: there is none.
func (v *View) mayUndo(rel string, st *beneath.Stat) error {
	policy, links := v.policy.Load().Approved(), uint64(1) // what changed was approved
	if st != nil {
		if st.IsRegular() {
			links = uint64(v.links(st))
		}
		if n := v.nodes.byIdentity(st.ID()); n != nil { // a rule may be about another name of it
			if other, ok := v.nodes.strictest(n, policy); ok && (policy.Held(other) || !policy.Linked(scope.OpOpenWrite, other, links).Allow) {
				return cmp.Or(judge.Undo(policy, other, links), scope.ErrDenied)
			}
		}
	}
	return judge.Undo(policy, rel, links)
}

// mayMoveBelow returns an error for a move of a directory from one path to another that the rules do not allow for something below it. A
// link of the host out of the scope comes back. The caller holds View.moves.
func (v *View) mayMoveBelow(from, to string) error {
	return ruled(v.judgeSubtree(from, to, false))
}

func (v *View) holds(id beneath.FileID, writes bool) bool {
	n := v.nodes.byIdentity(id)
	return n != nil && v.files.holds(n, writes) || v.stages.writes(id)
}

// undoing excludes changes by clients. The unlock invalidates what the kernel has of the names that were changed
// meanwhile. For that the kernel needs locks of clients, whose requests may wait for View.moves.
func (v *View) undoing() (unlock func(), err error) {
	v.moves.Lock()
	done, err := v.alone()
	if err != nil {
		v.moves.Unlock()
		return nil, err
	}
	return func() {
		changed := v.stale
		v.stale = nil
		done()
		v.moves.Unlock()
		var last *node
		for _, at := range changed {
			if at.name != "" {
				v.conn.InvalidateEntry(at.parent.id, at.name, false)
			}
			if at.parent != last { // many steps change names of one directory
				v.conn.InvalidateInode(at.parent.id, true)
			}
			if last = at.parent; at.node != nil {
				v.conn.InvalidateInode(at.node.id, true)
			}
		}
	}, nil
}

// identity returns the identity that clients see at a path; zero: none.
func (v *View) identity(rel string) beneath.FileID {
	st, err := v.root.Stat(rel)
	if err != nil {
		return beneath.FileID{}
	}
	return st.ID()
}

// staleName is a name that an undo has changed, and the node of what it has.
type staleName struct {
	nameIn
	node *node
}

// undone is history.Hooks.Changed.
func (v *View) undone(at history.Place, id beneath.FileID) {
	dir, name := at.ID, at.Name
	if v.whole { // clients know other identities
		dir, id = v.identity(at.Rel), v.identity(at.Path())
	}
	parent := v.nodes.byIdentity(dir)
	if parent == nil {
		return // the kernel knows no name there
	}
	parent.changes.Add(1)
	n := v.nodes.byIdentity(id)
	if n != nil && name != "" {
		v.nodes.named(n, nameIn{parent, name})
	}
	v.stale = append(v.stale, staleName{nameIn{parent, name}, n})
}
