package fs

import (
	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/scope/beneath"
)

var _ quota.Files = (*View)(nil)

// Object implements quota.Files.
func (v *View) Object(node uint64, name string) (f beneath.File, o quota.Object, err error) {
	n := v.nodes.get(node)
	if n == nil {
		return f, o, beneath.ErrStale
	}
	v.moves.RLock()
	defer v.moves.RUnlock()
	rel, ok := v.nodes.newest(n)
	if !ok {
		return f, o, beneath.ErrStale
	}
	if name != "" {
		rel = beneath.Join(rel, name)
	}
	if f, err = v.root.Object(rel); err != nil {
		return f, o, err
	}
	if o.Stat, err = f.Stat(); err == nil && name == "" && !n.dir && o.Stat.ID() != n.ident() {
		err = beneath.ErrStale
	}
	if name != "" {
		n = v.nodes.byIdentity(o.Stat.ID())
	}
	if err != nil {
		f.Close()
		return f, o, err
	}
	v.describe(&o, n, rel)
	return f, o, nil
}

// describe completes the object of a node; nil is none.
func (v *View) describe(o *quota.Object, n *node, rel string) {
	o.Rel, o.Usage, o.Open = rel, &quota.Usage{}, func() bool { return false }
	if n != nil {
		o.Usage, o.Open = &n.usage, func() bool { return v.files.holds(n, false) }
	}
}

// Handle implements quota.Files.
func (v *View) Handle(fh uint64) (o quota.Object, err error) {
	h := v.files.get(fh)
	if h == nil {
		return o, beneath.ErrStale
	}
	rel, _ := v.nodes.newest(h.node)
	v.describe(&o, h.node, rel)
	o.Seek = h.file.Seek
	o.Stat, err = h.file.Stat()
	return o, err
}

// Opened implements quota.Files.
func (v *View) Opened(i int) (o quota.Object, more bool) {
	v.files.mu.RLock()
	defer v.files.mu.RUnlock()
	if i >= len(v.files.slots) {
		return o, false
	}
	if h := v.files.slots[i]; h != nil {
		if st, err := h.file.Stat(); err == nil {
			o.Usage, o.Stat = &h.node.usage, st
		}
	}
	return o, true
}

// Known implements quota.Files.
func (v *View) Known(node uint64, id beneath.FileID) (o quota.Object) {
	n := v.nodes.get(node)
	if node == 0 {
		n = v.nodes.byIdentity(id)
	}
	if n != nil {
		v.describe(&o, n, "")
	}
	return o
}
