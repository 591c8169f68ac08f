package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/event"
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
		end()
		v.dropAll()
	}
}

// held reports whether the view has its own version of a path.
func (v *View) held(rel string) bool { return v.hold != nil && v.policy.Load().Held(rel) }

// heldAs is the result of View.held for a path of a node.
type heldAs struct {
	policy *scope.Policy
	rel    string
	held   bool
}

// nodeHeld is held for a path of a node. It keeps the last result: a policy takes microseconds.
func (v *View) nodeHeld(n *node, rel string) bool {
	if v.hold == nil {
		return false
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
	st, _, err := v.hold.Find(p.path())
	return st, hold.Missing(err)
}

// statAt is stat for any name in the directory of a place.
func (v *View) statAt(p *place, name string) (beneath.Stat, error) {
	at := place{dir: p.dir, base: p.base, name: name, holds: v.held(beneath.Join(p.base, name))}
	return v.stat(&at)
}

// layer returns the root that has the object at a path; nil: there is none.
func (v *View) layer(rel string) *beneath.Root {
	if !v.held(rel) {
		return v.hold.Base
	}
	_, at, err := v.hold.Find(rel)
	if err != nil {
		return nil
	}
	return at
}

// holdDir opens the directory p.node at the held path p.base: the scope's, or Upper's if the scope has none there.
func (v *View) holdDir(p *place) (beneath.Dir, error) {
	st, at, err := v.hold.Find(p.base)
	if err == nil && st.ID() != p.node.ident {
		err = beneath.ErrStale
	}
	if err != nil {
		return beneath.Dir{}, err
	}
	if own, err := v.hold.Upper.Stat(p.base); at == v.hold.Upper && err == nil && own.ID() != st.ID() {
		at = v.hold.Base
	}
	return at.Dir(p.base)
}

// holdAt is openAt for a held path.
func (v *View) holdAt(p *place, rel string) (err error) {
	var at *beneath.Root
	if p.stat, at, err = v.hold.Find(rel); err != nil {
		return err
	}
	p.own = at == v.hold.Upper
	p.stat.Nlink = v.links(&p.stat)
	if p.stat.ID() != p.node.ident {
		return beneath.ErrStale
	}
	if p.light {
		return nil
	}
	if p.obj, err = at.Object(rel); err != nil {
		return err
	}
	now, err := p.obj.Stat()
	if err == nil && now.ID() != p.node.ident && (!p.own || !now.IsDir()) {
		err = beneath.ErrStale
	}
	if p.open = err == nil; !p.open {
		p.obj.Close()
	}
	return err
}

// root returns the layer that has the object of a place.
func (v *View) rootOf(p *place) *beneath.Root {
	if p.own {
		return v.hold.Upper
	}
	return v.root
}

// reopenAt opens the file or directory of a place, by its path.
func (v *View) reopenAt(p *place, flags int) (beneath.File, error) {
	root, id := v.rootOf(p), p.node.ident
	if p.own && p.node.dir {
		st, err := root.Stat(p.rel)
		if err != nil {
			return beneath.File{}, err
		}
		id = st.ID()
	}
	return root.Open(p.rel, flags, id)
}

// holdNode makes the object of a place that is about to change one of Upper. It is called after the decision.
func (v *View) holdNode(a *request, p *place) error {
	if !v.nodeHeld(p.node, p.rel) {
		return v.holdOther(a, p)
	}
	p.keep = nil
	if p.held {
		if p.stat.Nlink > 0 {
			return beneath.ErrStale // of the scope: opened before the rule held
		}
		return nil
	}
	if p.own {
		return nil
	}
	h := v.hold
	if err := h.Enter(); err != nil {
		return err
	}
	defer h.Leave()
	if !p.stat.IsDir() {
		if err := h.CopyUp(p.rel, &p.stat); err != nil {
			return err
		}
		return beneath.ErrStale
	}
	if err := h.MakeDirs(p.rel); err != nil {
		return err
	}
	p.close()
	p.open = false
	return v.holdAt(p, p.rel)
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
	p.keep, p.own = nil, true
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
// and another one, and those of held directories that the scope has, fail with EXDEV: programs then copy. The caller holds
// View.moves.
func (v *View) holdRename(old, new *place, moved *beneath.Stat, flags uint) (done bool, err error) {
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
	return true, h.Rename(nameOf(old), nameOf(new), flags)
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

// union returns the entries of a directory that the upper layer has, too, in the order of their offsets. They are nil for
// another one.
func (v *View) union(rel string) ([]fuse.DirEntry, error) {
	if v.hold == nil {
		return nil, nil
	}
	var layers []listing.Entries
	own := false
	err := v.hold.Both(rel, func(root *beneath.Root) error {
		entries, err := listing.Read(root, rel)
		layers, own = append(layers, entries), own || root == v.hold.Upper
		return err
	})
	if err != nil || !own || len(layers[0]) == 0 && !v.held(rel) {
		return nil, err
	}
	return listing.Merge(layers, func(name string) bool { return v.held(beneath.Join(rel, name)) }), nil
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
