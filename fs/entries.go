package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Lookup finds a name. It finds a symbolic link wherever that leads: Readlink judges it.
func (v *View) Lookup(_ <-chan struct{}, head *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return status(v.in(request{head: head, op: scope.OpLookup, name: name}, func(p *place) error {
		if err := v.copyClaimed(head, p); err != nil {
			return err
		}
		if done, err := v.lookUpStaged(head, p, out); done {
			return err
		}
		err := v.entry(p, false, out)
		if err == syscall.ENOENT {
			// Node 0 is a negative dentry.
			out.SetEntryTimeout(v.keepAbsent(p.node))
			return nil
		}
		if err == nil && out.Mode&unix.S_IFMT == unix.S_IFDIR {
			v.echoes.follow(v.nodes.get(out.NodeId))
		}
		return err
	}))
}

// entry fills out for the object at the name of a place; made says that the operation created it.
func (v *View) entry(p *place, made bool, out *fuse.EntryOut) error {
	st, err := v.stat(p)
	if err != nil {
		return err
	}
	return v.known(p, p.name, &st, made, out)
}

// known fills out for an object with the attributes st. See entry.
func (v *View) known(p *place, name string, st *beneath.Stat, made bool, out *fuse.EntryOut) error {
	n, err := v.nodes.found(p.node, name, st, made)
	if err == syscall.ENOMEM && v.roomy() == nil {
		n, err = v.nodes.found(p.node, name, st, made)
	}
	if err != nil {
		return err
	}
	out.NodeId = n.id
	v.setAttr(&out.Attr, st)
	out.SetEntryTimeout(v.keepName(p.node))
	out.SetAttrTimeout(v.keepAttr(n, st, p.began))
	if v.stages.covers(nameIn{p.node, name}) {
		out.SetEntryTimeout(0)
		out.SetAttrTimeout(0)
	}
	return nil
}

// Mkdir creates a directory.
func (v *View) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return status(v.in(request{head: &in.InHeader, op: scope.OpMkdir, name: name}, func(p *place) error {
		if err := v.roomy(); err != nil {
			return err
		}
		if err := v.mkdir(p, p.dir.Masked(in.Mode, in.Umask)); err != nil {
			return err
		}
		return v.entry(p, true, out)
	}))
}

func (v *View) mkdir(p *place, mode uint32) error {
	unlock, err := v.fixed(p, v.policy.Load().Placed(p.name))
	if err != nil {
		return err
	}
	defer unlock()
	return v.make(p, func() (beneath.Stat, error) { return p.made(p.dir.Mkdir(p.name, mode), unix.S_IFDIR, "") })
}

// Mknod creates a regular file, a FIFO or a socket. It refuses device nodes.
func (v *View) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return status(v.in(request{head: &in.InHeader, op: scope.OpMknod, name: name}, func(p *place) error {
		if err := v.roomy(); err != nil {
			return err
		}
		mode := v.plain(&in.InHeader, p.path(), in.Mode&unix.S_IFMT, p.dir.Masked(in.Mode, in.Umask))
		unlock, err := v.still(p, false)
		if err != nil {
			return err
		}
		err = v.make(p, func() (beneath.Stat, error) { return p.made(p.dir.Mknod(name, mode), mode&unix.S_IFMT, "") })
		if unlock(); err != nil {
			return err
		}
		return v.entry(p, true, out)
	}))
}

// Unlink removes a name.
func (v *View) Unlink(_ <-chan struct{}, head *fuse.InHeader, name string) fuse.Status {
	a := request{head: head, op: scope.OpUnlink, name: name}
	return status(v.in(a, func(p *place) error {
		if policy := v.policy.Load(); !policy.Uniform() && policy.File(a.op, p.path()).Own {
			return v.unlinkLock(&a, p)
		}
		st, err := v.stat(p)
		if err != nil {
			return err
		}
		unlock := v.steady()
		err = v.unlink(p, &st)
		if unlock(); err == nil {
			v.nodes.unlinked(st.ID(), nameIn{p.node, name})
		}
		return err
	}))
}

// unlinkLock removes a lock of git. It holds View.moves, so that no other client of the view
// replaces the lock between the check and the removal.
func (v *View) unlinkLock(a *request, p *place) error {
	v.moves.Lock()
	st, err := v.stat(p)
	foreign := err == nil && v.foreign(a.op, p.path(), st.ID())
	if err == nil && !foreign {
		err = v.unlink(p, &st)
	}
	v.moves.Unlock()
	if foreign {
		return notOwn(p.path())
	}
	if err == nil {
		v.locks.remove(st.ID())
		v.nodes.unlinked(st.ID(), nameIn{p.node, p.name})
	}
	return err
}

// Rmdir removes an empty directory.
func (v *View) Rmdir(_ <-chan struct{}, head *fuse.InHeader, name string) fuse.Status {
	return status(v.in(request{head: head, op: scope.OpRmdir, name: name}, func(p *place) error {
		st, err := v.stat(p)
		if err == nil {
			unlock := v.steady()
			err = v.rmdir(p, &st)
			unlock()
		}
		if err == nil {
			v.gone(st)
		}
		return err
	}))
}

// Rename moves a name, or exchanges two. Both names are decided before anything moves,
// those of a directory with the rules for its subtree.
func (v *View) Rename(_ <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	if in.Flags&^uint32(beneath.RenameFlags) != 0 {
		return fuse.EINVAL
	}
	from := request{head: &in.InHeader, op: scope.OpRenameFrom, name: oldName}
	return status(v.in(from, func(old *place) error {
		to := request{head: &in.InHeader, op: scope.OpRename, name: newName, node: in.Newdir, whole: old.whole, nested: true, near: old}
		return v.in(to, func(new *place) error {
			// The other name of an exchange may be a directory as well.
			if new.whole && !old.whole {
				again := request{head: &in.InHeader, op: scope.OpRenameFrom, whole: true}
				if err := v.decide(&again, old.path()); err != nil {
					return err
				}
			}
			return v.rename(old, oldName, new, newName, uint(in.Flags))
		})
	}))
}

func (v *View) rename(old *place, oldName string, new *place, newName string, flags uint) error {
	v.moves.Lock()
	defer v.moves.Unlock()
	unlock, err := v.alone()
	if err != nil {
		return err
	}
	defer unlock()
	moved, err := v.stat(old)
	if err != nil {
		return err
	}
	placed := v.policy.Load().Placed(oldName) || v.policy.Load().Placed(newName)
	if placed || flags&beneath.RenameExchange != 0 || !moved.IsRegular() {
		if err := v.unmoved(old, new); err != nil {
			return err
		}
	}
	if v.foreign(scope.OpRenameFrom, old.path(), moved.ID()) {
		return notOwn(old.path())
	}
	var other beneath.Stat
	otherErr := error(syscall.ENOENT)
	if uniform := v.policy.Load().Uniform(); !uniform || new.keep != nil || v.whole || moved.IsDir() ||
		flags&beneath.RenameExchange != 0 {
		other, otherErr = v.stat(new)
		if !uniform && (moved.IsDir() && !old.whole || otherErr == nil && other.IsDir() && !new.whole) {
			return beneath.ErrStale // after the decision another view of the scope has moved a directory there
		}
	}
	if kind := v.policy.Load().File(scope.OpRename, new.path()).Judge; kind != 0 {
		if old.own && !v.whole {
			return syscall.EXDEV
		}
		return v.renameJudged(kind, old, oldName, new, newName, flags)
	}
	if err := v.judgeMoved(&moved, old.path(), new.path()); err != nil {
		return err
	}
	if otherErr == nil && flags&beneath.RenameExchange != 0 {
		if err := v.judgeMoved(&other, new.path(), old.path()); err != nil {
			return err
		}
	}
	if err := v.judgeSubtrees(old, new, &moved, &other, otherErr == nil && flags&beneath.RenameExchange != 0); err != nil {
		return err
	}
	replaced := &other
	if otherErr != nil {
		replaced = nil
	}
	done, err := v.holdRename(old, new, &moved, replaced, flags)
	if err != nil {
		return err
	}
	do := func() error {
		open := replaced != nil && v.keepOpen(new, replaced)
		return new.keep.Rename(v.at(old), v.at(new), &moved, replaced, open, flags)
	}
	switch {
	case done:
	case v.hold != nil && moved.IsDir() && flags&beneath.RenameExchange == 0:
		err = v.hold.Carry(old.path(), new.path(), do)
	default:
		err = do()
	}
	if err != nil {
		return err
	}
	from, to := nameIn{old.node, oldName}, nameIn{new.node, newName}
	v.nodes.moved(moved.ID(), from, to)
	switch {
	case otherErr != nil:
	case flags&beneath.RenameExchange != 0:
		v.nodes.moved(other.ID(), to, from)
	case other.IsDir():
		v.gone(other)
	}
	return nil
}
