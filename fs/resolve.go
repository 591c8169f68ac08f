package fs

import (
	"errors"

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
