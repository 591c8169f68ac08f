package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// GetAttr returns the attributes of a node, by an open file if the request has one.
func (v *View) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if in.Flags()&fuse.FUSE_GETATTR_FH != 0 {
		return status(v.by(&in.InHeader, scope.OpStat, in.Fh(), func(h *handle) error {
			return v.attr(h.node, h.file, v.now(), out)
		}))
	}
	n := v.nodes.get(in.NodeId)
	unwatched := v.follower.watch != nil && n != nil && n.dir && n.watched.Load() == 0 && n.removed.Load() == nil
	return status(v.on(request{head: &in.InHeader, op: scope.OpStat, light: !unwatched, cancel: v.atGate(n, cancel)}, func(p *place) error {
		if unwatched {
			v.follow(p.node, p.obj.Dir())
			return v.attr(p.node, p.obj, v.now(), out)
		}
		v.setAttr(&out.Attr, &p.stat)
		out.Nlink = p.stat.Nlink // without names in the history already
		out.SetTimeout(v.keepAttr(p.node, &p.stat, p.began))
		return nil
	}))
}

// atGate returns cancel for the root of a view that may be closed: there a walk waits, see Asker. With default_permissions and no
// attribute timeout the kernel asks for the root's attributes before it walks through it, without a lock: fuse_permission, linux
// fs/fuse/dir.c.
func (v *View) atGate(n *node, cancel <-chan struct{}) <-chan struct{} {
	if v.opt.Gate && n == v.nodes.root {
		return cancel
	}
	return nil
}

// Statx is GetAttr with the birth time.
func (v *View) Statx(cancel <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	fill := func(n *node, st *beneath.Stat, began int64) {
		out.FromStatx(&st.Statx_t)
		out.Ino = v.number(st)
		out.Mask &= unix.STATX_BASIC_STATS | unix.STATX_BTIME
		out.SetTimeout(v.keepAttr(n, st, began))
	}
	if in.GetattrFlags&fuse.FUSE_GETATTR_FH != 0 {
		return status(v.by(&in.InHeader, scope.OpStat, in.Fh, func(h *handle) error {
			began := v.now()
			st, err := h.file.Stat()
			st.Nlink = v.links(&st)
			fill(h.node, &st, began)
			return err
		}))
	}
	cancel = v.atGate(v.nodes.get(in.NodeId), cancel)
	return status(v.on(request{head: &in.InHeader, op: scope.OpStat, light: true, cancel: cancel}, func(p *place) error {
		fill(p.node, &p.stat, p.began)
		return nil
	}))
}

// Access performs access(2) and chdir(2) in a view that is not shared, where the kernel
// does not check permissions itself. A denial is not recorded: the client has not tried
// to write.
func (v *View) Access(_ <-chan struct{}, in *fuse.AccessIn) fuse.Status {
	return status(v.on(request{head: &in.InHeader, op: scope.OpStat}, func(p *place) error {
		op := scope.OpStat
		switch {
		case in.Mask&unix.W_OK != 0:
			op = scope.OpOpenWrite
		case in.Mask != unix.F_OK:
			op = scope.OpOpen
		}
		policy, names := v.policy.Load(), uint64(p.stat.Nlink)
		if p.stat.Mode&unix.S_IFMT == unix.S_IFDIR { // its links are its directories
			names = 1
		}
		rel, ok := v.nodes.strictest(p.node, policy)
		if d := policy.Linked(op, rel, names); !ok || !d.Allow && !d.Ask { // open(2) waits for an approval
			return scope.ErrDenied
		}
		return p.obj.Access(in.Mask)
	}))
}

// SetAttr changes mode, owner, size or times.
func (v *View) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return status(v.on(request{head: &in.InHeader, op: scope.OpSetattr}, func(p *place) error {
		if p.stat.IsRegular() {
			p.keep.Begin(p.node.ident(), false)
			defer func() { p.keep.Left(p.node.ident(), p.obj.Stat) }()
		}
		if size, ok := in.GetSize(); ok {
			content := request{head: &in.InHeader, op: scope.OpOpenWrite, nested: true}
			if err := v.decideNode(&content, p.node, uint64(p.stat.Nlink)); err != nil {
				return err
			}
			if err := v.resize(p, in, int64(size)); err != nil {
				return err
			}
		}
		if in.Valid&(fuse.FATTR_MODE|fuse.FATTR_UID|fuse.FATTR_GID|fuse.FATTR_ATIME|fuse.FATTR_MTIME) != 0 {
			if err := v.keepAttributes(p); err != nil {
				return err
			}
			if p.stat.IsRegular() {
				p.keep.Opened(p.node.ident())
			}
		}
		if one := p.node.staged.Load(); one != nil {
			defer one.changed.Store(true)
		}
		if in.Valid&(fuse.FATTR_MODE|fuse.FATTR_UID|fuse.FATTR_GID) != 0 {
			defer v.permitted(p.node)
		}
		if mode, ok := in.GetMode(); ok {
			if p.node == v.nodes.root && mode&ownerEnters != ownerEnters {
				return v.forbid(&in.InHeader, scope.OpSetattr, p.rel, rootMode)
			}
			if err := v.chmod(p, v.plain(&in.InHeader, p.rel, p.stat.Type(), mode)); err != nil {
				return err
			}
		}
		if in.Valid&(fuse.FATTR_UID|fuse.FATTR_GID) != 0 {
			uid, _ := in.GetUID() // -1 without FATTR_UID: unchanged
			gid, _ := in.GetGID()
			if err := p.obj.Chown(int(int32(uid)), int(int32(gid))); err != nil {
				return err
			}
		}
		if in.Valid&(fuse.FATTR_ATIME|fuse.FATTR_MTIME) != 0 {
			if err := p.obj.Utimes(times(in)); err != nil {
				return err
			}
		}
		return v.attr(p.node, p.obj, v.now(), out)
	}))
}

// The owner of the root keeps these mode bits: an agent that cleared them would lock
// itself out.
const (
	ownerEnters = unix.S_IRUSR | unix.S_IXUSR
	rootMode    = "mode of the root" // in the log
)

// resize sets the size of a file after the decision.
func (v *View) resize(p *place, in *fuse.SetAttrIn, size int64) error {
	if v.judged(p.node) != 0 {
		return v.truncateJudged(&in.InHeader, p, size)
	}
	if err := v.keepContent(p); err != nil {
		return err
	}
	if err := p.keep.Blocks(p.node.ident(), size, keepAll); err != nil {
		return err
	}
	return v.truncate(p, in, size)
}

// truncate sets the size of a file, by an open file if the request has one.
func (v *View) truncate(p *place, in *fuse.SetAttrIn, size int64) error {
	if fh, ok := in.GetFh(); ok {
		if h := v.files.get(fh); h != nil && h.writes {
			return h.file.Truncate(size)
		}
	}
	f, err := v.openFile(p, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Truncate(size)
}

// plain clears the set-id bits of a mode, except for a directory, and records that.
// nosuid holds for the view. It does not hold for the directory below, where any user of
// the host would run such a program with the agent's rights. With Options.Groups the file
// belongs to the caller, and the bits stay.
func (v *View) plain(head *fuse.InHeader, rel string, kind, mode uint32) uint32 {
	const setID = unix.S_ISUID | unix.S_ISGID
	if mode&setID == 0 || kind == unix.S_IFDIR || v.opt.Groups != nil {
		return mode
	}
	_ = v.forbid(head, scope.OpSetattr, rel, "set-id bits")
	return mode &^ setID
}

// chmod changes the mode by descriptor or, where the kernel cannot, by name.
func (v *View) chmod(p *place, mode uint32) error {
	err := p.obj.Chmod(mode)
	if err != syscall.EOPNOTSUPP || p.stat.IsLink() {
		return err
	}
	dir, name, err := v.named(p)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Chmod(name, mode)
}

// times returns the arguments of utimensat(2).
func times(in *fuse.SetAttrIn) (atime, mtime unix.Timespec) {
	one := func(set, now uint32, sec uint64, nsec uint32) unix.Timespec {
		switch {
		case in.Valid&set == 0:
			return unix.Timespec{Nsec: unix.UTIME_OMIT}
		case in.Valid&now != 0:
			return unix.Timespec{Nsec: unix.UTIME_NOW}
		}
		return unix.Timespec{Sec: int64(sec), Nsec: int64(nsec)}
	}
	return one(fuse.FATTR_ATIME, fuse.FATTR_ATIME_NOW, in.Atime, in.Atimensec),
		one(fuse.FATTR_MTIME, fuse.FATTR_MTIME_NOW, in.Mtime, in.Mtimensec)
}

// attr fills out with the attributes of f.
func (v *View) attr(n *node, f beneath.File, began int64, out *fuse.AttrOut) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if n.dir {
		st.Ino = n.ident().Ino // that of Hold.Upper has another one
	}
	v.setAttr(&out.Attr, &st)
	out.SetTimeout(v.keepAttr(n, &st, began))
	return nil
}

// number returns the inode number of an object.
func (v *View) number(st *beneath.Stat) uint64 {
	if v.hold == nil || st.IsDir() {
		return st.Ino
	}
	return v.hold.Number(st.Ino, st.ID().Birth)
}

// setAttr converts the result of statx(2).
func (v *View) setAttr(a *fuse.Attr, s *beneath.Stat) {
	a.Ino, a.Size, a.Blocks, a.Blksize = v.number(s), s.Size, s.Blocks, s.Blksize
	a.Atime, a.Atimensec = uint64(s.Atime.Sec), s.Atime.Nsec
	a.Mtime, a.Mtimensec = uint64(s.Mtime.Sec), s.Mtime.Nsec
	a.Ctime, a.Ctimensec = uint64(s.Ctime.Sec), s.Ctime.Nsec
	a.Mode, a.Nlink = uint32(s.Mode), v.links(s)
	a.Uid, a.Gid = s.Uid, s.Gid
	if o := v.opt.Owner; o != nil {
		a.Uid, a.Gid = o.UID, o.GID
	}
	a.Rdev = uint32(unix.Mkdev(s.Rdev_major, s.Rdev_minor))
}

// StatFs returns the statistics of the file system below.
func (v *View) StatFs(_ <-chan struct{}, head *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	return status(v.on(request{head: head, op: scope.OpStatFS}, func(p *place) error {
		s, err := p.obj.StatFS()
		if err != nil {
			return err
		}
		out.Blocks, out.Bfree, out.Bavail = s.Blocks, s.Bfree, s.Bavail
		out.Files, out.Ffree, out.NameLen = s.Files, s.Ffree, uint32(s.Namelen)
		out.Bsize, out.Frsize = uint32(s.Bsize), uint32(s.Frsize)
		return nil
	}))
}
