package fs

import (
	"errors"
	"strings"
	"syscall"

	"github.com/scopefs/scopefs/scope/beneath"
)

// openDir resolves p.node, a directory, and checks that it is the one meant.
func (v *View) openDir(p *place) error {
	v.moves.RLock()
	defer v.moves.RUnlock()
	err := v.openDirAt(p)
	if errors.Is(err, beneath.ErrStale) && v.relocate(p.node) {
		err = v.openDirAt(p)
	}
	return err
}

// openDirAt opens the directory at the path that the tree has for p.node. The
// caller holds View.moves.
func (v *View) openDirAt(p *place) error {
	var ok bool
	if p.base, ok = v.nodes.newest(p.node); !ok {
		return beneath.ErrStale
	}
	dir, err := v.root.Dir(p.base)
	if err != nil {
		return err
	}
	st, err := dir.Self().Stat()
	if err == nil && st.ID() != p.node.ident {
		err = beneath.ErrStale
	}
	if err != nil {
		dir.Close()
		return err
	}
	p.dir = dir
	return nil
}

// openNode resolves p.node: by its newest name, by another one, or by a file that is
// open.
func (v *View) openNode(p *place) error {
	v.moves.RLock()
	defer v.moves.RUnlock()
	rel, ok := v.nodes.newest(p.node)
	if !ok {
		return beneath.ErrStale
	}
	err := v.openAt(p, rel)
	if err == nil {
		return nil
	}
	for _, rel := range v.nodes.others(p.node) {
		if err = v.openAt(p, rel); err == nil {
			return nil
		}
	}
	if f, ok := v.files.reach(p.node, false, false); ok {
		// A directory that still exists was moved, by the host and perhaps out
		// of the scope: an open descriptor does not keep it the agent's.
		stale := err
		if p.stat, err = f.Stat(); err == nil && (!p.node.dir || p.stat.Nlink == 0) {
			p.obj, p.held = f, true
			return nil
		}
		f.Close()
		if err == nil {
			err = stale
		}
	}
	if errors.Is(err, beneath.ErrStale) && v.relocate(p.node) {
		if rel, ok := v.nodes.newest(p.node); ok {
			err = v.openAt(p, rel)
		}
	}
	return err
}

// openAt opens the object at rel, if it is p.node.
func (v *View) openAt(p *place, rel string) (err error) {
	p.rel = rel
	if p.obj, err = v.root.Object(rel); err != nil {
		return err
	}
	if p.stat, err = p.obj.Stat(); err == nil && p.stat.ID() == p.node.ident {
		return nil
	}
	p.obj.Close()
	return beneath.ErrStale
}

// relocate finds where the host has moved a directory that a client has open: n, or
// the nearest one above it. It reports whether the tree has the directory's path now:
// n is then resolved from the root like any other. The caller holds View.moves.
func (v *View) relocate(n *node) bool {
	for ; n != nil && n != v.nodes.root; n = v.nodes.parent(n) {
		if !n.dir {
			continue
		}
		f, ok := v.files.reach(n, false, false)
		if !ok {
			continue
		}
		rel, err := v.root.Find(f)
		f.Close()
		if err != nil || rel == "" {
			return false // it is outside
		}
		if known, ok := v.nodes.newest(n); ok && rel == known {
			return true // settle was faster
		}
		names := strings.Split(rel, "/")
		idents := make([]beneath.FileID, len(names))
		for i := range names {
			if idents[i], err = v.identOf(strings.Join(names[:i+1], "/")); err != nil {
				return false
			}
		}
		return idents[len(idents)-1] == n.ident && v.nodes.relocate(n, names, idents)
	}
	return false
}

func (v *View) identOf(rel string) (beneath.FileID, error) {
	obj, err := v.root.Object(rel)
	if err != nil {
		return beneath.FileID{}, err
	}
	defer obj.Close()
	st, err := obj.Stat()
	return st.ID(), err
}

// parent returns the directory of a node's newest name; nil for a node without any.
func (t *tree) parent(n *node) *node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if len(n.names.list) == 0 {
		return nil
	}
	return n.names.list[n.names.newest].parent
}

// relocate notes that a directory is at a path; idents are those of the directories
// on the way. One that the kernel does not know gets a node outside of the table,
// which lasts as long as something below refers to it.
func (t *tree) relocate(n *node, names []string, idents []beneath.FileID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	parent := t.root
	for i, name := range names {
		at := nameIn{parent, name}
		dir := t.byIdent[idents[i]]
		switch {
		case dir == nil:
			dir = &node{ident: idents[i], kind: syscall.S_IFDIR, dir: true}
			dir.names.only(at)
		case !dir.dir || t.under(parent, dir):
			return false
		default:
			t.addName(dir, at, false)
		}
		parent = dir
	}
	return parent == n
}

// settle notes that a change by others has brought a directory to a name.
func (v *View) settle(dir *node, name string) {
	v.moves.RLock() // no rename of ours meanwhile
	defer v.moves.RUnlock()
	p := place{node: dir}
	if v.openDirAt(&p) != nil {
		return
	}
	defer p.dir.Close()
	st, err := p.dir.Stat(name)
	if err != nil || !st.IsDir() {
		return
	}
	t := &v.nodes
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.byIdent[st.ID()]; n != nil && n.dir && !t.under(dir, n) {
		t.addName(n, nameIn{dir, name}, false)
	}
}
