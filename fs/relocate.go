package fs

import (
	"strings"
	"syscall"

	"github.com/scopefs/scopefs/scope/beneath"
)

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
