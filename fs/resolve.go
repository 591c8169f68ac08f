package fs

import "github.com/scopefs/scopefs/scope/beneath"

// openDir opens the directory p.node and checks its identity. The caller closes p.dir.
func (v *View) openDir(p *place) error {
	v.moves.RLock()
	defer v.moves.RUnlock()
	return v.openDirAt(p)
}

// openDirAt is openDir for a caller that holds View.moves.
func (v *View) openDirAt(p *place) error {
	var ok bool
	if p.base, ok = v.nodes.newest(p.node); !ok {
		return beneath.ErrStale
	}
	var dir beneath.Dir
	var err error
	if v.nodeHeld(p.node, p.base) {
		dir, err = v.holdDir(p)
	} else {
		dir, err = v.scope.Dir(p.base)
	}
	if err != nil {
		return err
	}
	st, err := dir.Self().Stat()
	if err == nil && st.ID() != p.node.ident() {
		err = beneath.ErrStale
	}
	if err != nil {
		dir.Close()
		return err
	}
	p.dir = dir
	return nil
}

// openNode opens p.node: by its newest name, by another name, or by an open file. An open file whose names are all
// unknown was moved by the host, perhaps out of the scope. Its handles keep their access. With grants openNode fails
// with ErrStale, because a client may reopen its descriptor through /proc/self/fd with more access.
func (v *View) openNode(p *place, grants bool) error {
	v.moves.RLock()
	defer v.moves.RUnlock()
	rel, ok := v.nodes.newest(p.node)
	if !ok {
		return beneath.ErrStale
	}
	if one := p.node.staged.Load(); one != nil {
		return v.openText(p, one, rel)
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
	if grants && p.node.adopted.Load() {
		return err
	}
	if f, ok := v.files.reach(p.node, false, false); ok {
		stale := err
		if p.stat, err = f.Stat(); err == nil {
			p.stat.Nlink = v.links(&p.stat)
		}
		if err == nil && (p.stat.Nlink == 0 || !grants) {
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
	return err
}

// openText finds the text of the judged file at rel.
func (v *View) openText(p *place, one *staged, rel string) (err error) {
	p.rel = rel
	if p.obj, err = v.stages.open(one, false); err != nil {
		return err
	}
	p.open, p.held = true, true
	p.stat, err = p.obj.Stat()
	return err
}

// openAt finds the object at rel, and opens it unless the place is light. It fails with ErrStale if that is not
// p.node.
func (v *View) openAt(p *place, rel string) (err error) {
	p.rel, p.own = rel, false
	if v.nodeHeld(p.node, rel) {
		return v.holdAt(p, rel)
	}
	if p.light {
		if p.stat, err = v.scope.Stat(rel); err == nil && p.stat.ID() != p.node.ident() {
			err = beneath.ErrStale
		}
		p.stat.Nlink = v.links(&p.stat)
		return err
	}
	if p.obj, err = v.scope.Object(rel); err != nil {
		return err
	}
	if p.stat, err = p.obj.Stat(); err == nil && p.stat.ID() == p.node.ident() {
		p.open = true
		p.stat.Nlink = v.links(&p.stat)
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

// settle records that another process has moved a directory to a name. It reports whether the node table has the
// directory.
func (v *View) settle(dir *node, name string) bool {
	v.moves.RLock() // excludes renames by the view
	defer v.moves.RUnlock()
	p := place{node: dir}
	if v.openDirAt(&p) != nil {
		return false
	}
	defer p.dir.Close()
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
