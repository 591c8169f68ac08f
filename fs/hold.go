package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/hold"
	"github.com/scopefs/scopefs/fs/listing"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Freeze keeps clients from changing names that are held, until thaw is called: the scope and the upper layer may change
// meanwhile. They get EBUSY after 1.5 seconds. Writes to open files go on.
func (v *View) Freeze() (thaw func()) {
	if v.hold == nil {
		return func() {}
	}
	end := v.hold.Freeze()
	return func() {
		if err := end(); err != nil {
			v.opt.Logger.Error("what is held cannot be read again", "err", err)
		}
		v.reidentify()
		v.dropAll()
	}
}

// reidentify gives directories that clients use the identity of those that are at their paths now: a commit has made them in the scope.
func (v *View) reidentify() {
	v.moves.Lock()
	defer v.moves.Unlock()
	for _, id := range v.nodes.everyID() {
		n := v.nodes.get(id)
		if n == nil || !n.dir || n == v.nodes.root {
			continue
		}
		rel, ok := v.nodes.newest(n)
		if st, err := v.root.Stat(rel); ok && err == nil && st.IsDir() && st.ID() != n.ident() && v.nodes.become(n, st.ID()) {
			v.unwatch(n)
		}
	}
}

// held reports whether the view has its own version of a path.
func (v *View) held(rel string) bool { return v.hold != nil && (v.whole || v.policy.Load().Held(rel)) }

// heldAs is the result of View.held for a path of a node.
type heldAs struct {
	policy *scope.Policy
	rel    string
	held   bool
}

// nodeHeld is held for a path of a node. It keeps the last result: a policy takes microseconds.
func (v *View) nodeHeld(n *node, rel string) bool {
	if v.hold == nil || v.whole {
		return v.whole
	}
	policy := v.policy.Load()
	if last := n.held.Load(); last != nil && last.policy == policy && last.rel == rel {
		return last.held
	}
	held := policy.Held(rel)
	n.held.Store(&heldAs{policy, rel, held})
	return held
}

// stat returns the attributes of the object at the name of a place, after the decision.
func (v *View) stat(p *place) (beneath.Stat, error) {
	if !p.holds {
		return p.dir.Stat(p.name)
	}
	st, err := v.root.Stat(p.path())
	return st, hold.Missing(err)
}

// statAt is stat for any name in the directory of a place.
func (v *View) statAt(p *place, name string) (beneath.Stat, error) {
	at := place{dir: p.dir, base: p.base, name: name, holds: v.held(beneath.Join(p.base, name))}
	return v.stat(&at)
}

// holdDir opens the directory p.node at the held path p.base: the scope's, or Upper's if the scope has none there.
func (v *View) holdDir(p *place) (beneath.Dir, error) {
	at, err := v.hold.Find(p.base)
	if err == nil && at.Stat.ID() != p.node.ident() {
		err = beneath.ErrStale
	}
	if err == nil && at.Own != p.node.ident() {
		at, err = v.hold.Below(p.base)
	}
	if err != nil {
		return beneath.Dir{}, err
	}
	return at.Root.Dir(at.Rel)
}

// holdAt is openAt for a held path.
func (v *View) holdAt(p *place, rel string) error {
	at, err := v.hold.Find(rel)
	if err != nil {
		return err
	}
	p.stat, p.own = at.Stat, at.Root == v.hold.Upper
	p.stat.Nlink = v.links(&p.stat)
	if p.stat.ID() != p.node.ident() {
		return beneath.ErrStale
	}
	if p.light {
		return nil
	}
	if p.obj, err = at.Root.Object(at.Rel); err != nil {
		return err
	}
	now, err := p.obj.Stat()
	if err == nil && now.ID() != at.Own {
		err = beneath.ErrStale
	}
	if p.open = err == nil; !p.open {
		p.obj.Close()
	}
	return err
}

// named returns the directory that has the object of a place, and its name there. The caller closes the directory.
func (v *View) named(p *place) (dir beneath.Dir, name string, err error) {
	root, rel, err := v.root.Locate(p.rel)
	if err == nil {
		dir, err = root.Dir(beneath.Parent(rel))
	}
	return dir, beneath.Base(rel), err
}

// reopenAt opens the file or directory of a place, by its path.
func (v *View) reopenAt(p *place, flags int) (beneath.File, error) {
	return v.root.Open(p.rel, flags, p.node.ident())
}

// holdNode makes the object of a place that is about to change one of Upper. It is called after the decision.
func (v *View) holdNode(a *request, p *place) error {
	if !v.nodeHeld(p.node, p.rel) {
		return v.holdOther(a, p)
	}
	if !v.whole {
		p.keep = nil
	}
	if p.held {
		if p.stat.Nlink > 0 {
			return beneath.ErrStale // of the scope: opened before the rule held
		}
		return nil
	}
	if p.own {
		return nil
	}
	if _, only := v.nodes.onlyName(p.node); !only && !p.stat.IsDir() && p.stat.Nlink > 1 {
		v.stages.claim(a.head.Pid, nameIn{parent: p.node})
		return beneath.ErrStale // the request has no name: that of the LOOKUP which follows gets the copy
	}
	if err := v.copyUp(p.rel, p.stat.IsDir(), p.keep); err != nil {
		return err
	}
	if !p.stat.IsDir() && !v.copied(p) {
		return beneath.ErrStale // the kernel looks the name up again, and gets another node
	}
	p.close()
	p.open = false
	return v.holdAt(p, p.rel)
}

// copyUp makes the object of the scope at a path one of Upper.
func (v *View) copyUp(rel string, dir bool, w *history.Writer) error {
	if err := v.hold.Enter(); err != nil {
		return err
	}
	defer v.hold.Leave()
	if dir {
		return v.hold.MakeDirs(rel)
	}
	return v.hold.CopyUp(rel, w)
}

// copyClaimed copies the file at the name that a thread looks up if it has a claim on the file: see holdNode.
func (v *View) copyClaimed(head *fuse.InHeader, p *place) error {
	if !p.holds || v.stages.some.Load() == 0 {
		return nil
	}
	st, err := v.stat(p)
	if err != nil {
		return nil // Lookup has the error
	}
	n := v.nodes.byIdentity(st.ID())
	if n == nil || !v.stages.claimed(head.Pid, nameIn{parent: n}) || !v.policy.Load().File(scope.OpOpenWrite, p.path()).Allow {
		return nil
	}
	var w *history.Writer
	if v.whole {
		w = v.opt.History.Writer(head.Pid)
	}
	unlock := v.stages.use()
	v.stages.unclaim(head.Pid, nameIn{parent: n})
	unlock()
	return v.copyUp(p.path(), false, w)
}

// copied makes the node of a file that was copied the node of the copy. It reports false if clients have the file open, or know it by
// several names: they go on with the scope's, and the kernel has one backing file an inode (linux fs/fuse/iomode.c).
func (v *View) copied(p *place) bool {
	if _, only := v.nodes.onlyName(p.node); !only || p.stat.Nlink > 1 || v.files.holds(p.node, false) {
		return false
	}
	st, err := v.hold.Upper.Stat(p.rel)
	if err != nil || st.Type() != p.stat.Type() {
		return false
	}
	v.opt.Quota.Forget(&p.node.usage)
	return v.nodes.become(p.node, st.ID())
}

// holdOther refuses a change of an object that the scope has at a held name, too: it would change there.
func (v *View) holdOther(a *request, p *place) error {
	rel, ok := v.nodes.strictest(p.node, v.policy.Load())
	if !ok || rel == p.rel || !v.held(rel) {
		return nil
	}
	d := v.policy.Load().File(a.op, rel)
	e := event.Event{Path: p.rel, Target: rel, Verdict: event.Deny, Rule: d.Rule + ": another name", RuleKind: string(d.Kind)}
	return v.refuse(a, e, syscall.EACCES)
}

// holdName makes Upper's directory the one of a place whose held name is about to change. leave ends the change.
func (v *View) holdName(a *request, p *place) (leave func(), err error) {
	leave = func() {}
	if !p.holds {
		return leave, nil
	}
	h := v.hold
	if p.own = true; !v.whole {
		p.keep = nil
	}
	if a.near == nil || !a.near.own {
		if err := h.Enter(); err != nil {
			return leave, err
		}
		leave = h.Leave
	}
	if err = h.MakeDirs(p.base); err == nil {
		p.scope = p.dir
		p.dir, err = h.Upper.Dir(p.base)
	}
	if err != nil {
		p.own = false
		leave()
		return func() {}, err
	}
	done, dir := leave, p.dir
	return func() {
		dir.Close()
		done()
	}, nil
}

// nameOf returns the name of a place, whose directory is of the upper layer.
func nameOf(p *place) hold.Name { return hold.Name{Dir: p.dir, Rel: p.base, Name: p.name} }

// maxAdopted bounds a file that moves to a held path, in bytes: the view copies it while nothing else moves.
const maxAdopted = 64 << 20

// holdRename renames if a name is held. done is false if both are not. A file that is not held can come to a held path: a
// copy of it replaces what is there, as editors and package managers expect of a rename. Other renames between a held path
// and another one fail with EXDEV: programs then copy. The caller holds View.moves.
func (v *View) holdRename(old, new *place, moved, replaced *beneath.Stat, flags uint) (done bool, err error) {
	h := v.hold
	switch {
	case h == nil:
		return false, nil
	case !old.own && !new.own:
		return false, h.Remains(old.path(), new.path(), flags)
	case !old.own && flags&^uint(unix.RENAME_NOREPLACE) == 0 && moved.IsRegular() && moved.Size <= uint64(maxAdopted):
		return true, v.adopt(old, new, moved, flags)
	case !old.own || !new.own:
		return true, syscall.EXDEV
	}
	open := replaced != nil && v.keepOpen(new, replaced)
	return true, h.Rename(nameOf(old), nameOf(new), flags, new.keep, open)
}

// adopt replaces what a held path has by a copy of a file that is not held, and removes the file.
func (v *View) adopt(old, new *place, moved *beneath.Stat, flags uint) error {
	st := *moved
	if err := v.hold.Adopt(old.path(), &st, new.path(), flags); err != nil {
		return err
	}
	if err := v.unlink(old, moved); err != nil {
		return err
	}
	if n := v.nodes.byIdentity(moved.ID()); n != nil {
		n.adopted.Store(true)
	}
	v.nodes.moved(moved.ID(), nameIn{old.node, old.name}, nameIn{new.node, new.name})
	v.background.Go(func() { // the kernel takes the client's file for the one at the new name
		v.conn.InvalidateEntry(new.node.id, new.name, false)
	})
	return nil
}

// union returns the entries of a directory of two layers, or with records, in the order of their offsets. They are nil for another one.
func (v *View) union(rel string) ([]fuse.DirEntry, error) {
	if v.hold == nil {
		return nil, nil
	}
	mine, theirs, own, layered := listing.Entries{}, listing.Entries{}, false, 0
	err := v.hold.Both(rel, func(root *beneath.Root, at string) (err error) {
		if layered++; root == v.hold.Upper {
			own = true
			mine, err = listing.Read(root, at)
			for name, e := range mine {
				e.Ino = v.hold.Number(e.Ino, 0)
				mine[name] = e
			}
		} else {
			theirs, err = listing.Read(root, at)
		}
		return err
	}, func(name string, moved *beneath.Stat) {
		layered++
		delete(theirs, name)
		if moved != nil {
			theirs[name] = fuse.DirEntry{Name: name, Mode: moved.Type(), Ino: moved.Ino}
		}
	})
	if err != nil || layered < 2 && (!own || v.whole) || !v.whole && len(mine) == 0 && !v.held(rel) {
		return nil, err
	}
	return listing.Merge(mine, theirs, func(name string) bool { return v.held(beneath.Join(rel, name)) }), nil
}

// foreignHandle reports whether a file that was opened before its name was held is the scope's.
func (v *View) foreignHandle(h *handle) bool {
	if v.hold == nil || h.own {
		return false
	}
	rel, ok := v.nodes.strictest(h.node, v.policy.Load())
	return ok && v.held(rel)
}

// refusesHold reports whether a decision is to hold, and the view cannot.
func (v *View) refusesHold(d scope.Decision) bool { return v.hold == nil && d.Access == scope.Hold }
