package fs

import (
	"errors"
	"strings"
	"syscall"

	"github.com/scopefs/scopefs/scope/beneath"
)

// openDir opens the directory p.node and checks its identity. The caller gives p.kept back.
func (v *View) openDir(p *place) error {
	v.moves.RLock()
	defer v.moves.RUnlock()
	return v.findDir(p)
}

// findDir is openDir for a caller that holds View.moves.
func (v *View) findDir(p *place) error {
	err := v.openDirAt(p)
	if errors.Is(err, beneath.ErrStale) && v.relocate(p.node) {
		err = v.openDirAt(p)
	}
	return err
}

// openDirAt opens p.node at its path in the node table. The caller holds View.moves.
func (v *View) openDirAt(p *place) error {
	var ok bool
	if p.base, ok = v.nodes.newest(p.node); !ok {
		return beneath.ErrStale
	}
	if dir := v.kept.take(p.node); dir != nil {
		st, err := v.root.Stat(p.base)
		if err == nil && st.ID() != p.node.ident {
			err = beneath.ErrStale
		}
		if err != nil {
			v.kept.give(dir)
			return err
		}
		p.dir, p.kept = dir.Dir, dir
		return nil
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
	p.dir, p.kept = dir, v.kept.add(p.node, dir)
	return nil
}

// openNode opens p.node: by its newest name, by another name, or by an open file. An open file
// that has a name, and none that the view knows, was moved by the host, perhaps out of the
// scope. Its handles keep their access, and with grants openNode fails with ErrStale: a client
// may open what its descriptor is of again, by /proc/self/fd, for more than it was open for.
func (v *View) openNode(p *place, grants bool) error {
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
	if f, ok := v.reach(p.node); ok {
		stale := err
		if p.stat, err = f.Stat(); err == nil && (p.stat.Nlink == 0 || !p.node.dir && !grants) {
			p.obj, p.open, p.held = f, true, true
			return nil
		}
		f.Close()
		if err == nil {
			err = stale
		}
	} else if st := p.node.removed.Load(); st != nil && p.light {
		p.stat, p.held = *st, true
		return nil
	}
	if errors.Is(err, beneath.ErrStale) && v.relocate(p.node) {
		if rel, ok := v.nodes.newest(p.node); ok {
			err = v.openAt(p, rel)
		}
	}
	return err
}

// reach duplicates a descriptor of a node: of a directory that is kept, or of a handle.
func (v *View) reach(n *node) (beneath.File, bool) {
	if !n.dir {
		return v.files.reach(n, false, false)
	}
	dir := v.kept.take(n)
	if dir == nil {
		return beneath.File{}, false
	}
	defer v.kept.give(dir)
	f, err := dir.Self().Dup()
	return f, err == nil
}

// openAt finds the object at rel, and opens it unless the place is light. It fails with
// ErrStale if that is not p.node.
func (v *View) openAt(p *place, rel string) (err error) {
	p.rel = rel
	if p.light {
		if p.stat, err = v.root.Stat(rel); err == nil && p.stat.ID() != p.node.ident {
			err = beneath.ErrStale
		}
		return err
	}
	if p.obj, err = v.root.Object(rel); err != nil {
		return err
	}
	if p.stat, err = p.obj.Stat(); err == nil && p.stat.ID() == p.node.ident {
		p.open = true
		return nil
	}
	p.obj.Close()
	return beneath.ErrStale
}

func (p *place) close() {
	if p.open {
		p.obj.Close()
	}
}

// relocate finds where the host has moved n, or the nearest directory above it that the
// view has open. It reports whether the node table now has the new path, by which n
// can be resolved. The caller holds View.moves.
func (v *View) relocate(n *node) bool {
	for ; n != nil && n != v.nodes.root; n = v.nodes.parent(n) {
		if !n.dir {
			continue
		}
		f, ok := v.reach(n)
		if !ok {
			continue
		}
		rel, err := v.root.Find(f)
		f.Close()
		if err != nil || rel == "" {
			return false // it was removed, or is out of the scope
		}
		if known, ok := v.nodes.newest(n); ok && rel == known {
			return true // settle has recorded it
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

// parent returns the directory of a node's newest name, or nil.
func (t *tree) parent(n *node) *node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if len(n.names.list) == 0 {
		return nil
	}
	return n.names.list[n.names.newest].parent
}

// relocate records that a directory is at a path; idents are the identities of the
// path's components. A component without a node gets one that is not in the table: it
// lives as long as a node in its subtree refers to it.
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

// settle records that another process has moved a directory to a name. It reports whether
// the node table has the directory.
func (v *View) settle(dir *node, name string) bool {
	v.moves.RLock() // excludes renames by the view
	defer v.moves.RUnlock()
	p := place{node: dir}
	if v.openDirAt(&p) != nil {
		return false
	}
	defer v.kept.give(p.kept)
	st, err := p.dir.Stat(name)
	if err != nil || !st.IsDir() {
		return false
	}
	t := &v.nodes
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byIdent[st.ID()]
	if n == nil || !n.dir || t.under(dir, n) {
		return false
	}
	t.addName(n, nameIn{dir, name}, false)
	return true
}
