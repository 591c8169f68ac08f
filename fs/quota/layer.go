package quota

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// Files is a view whose objects are counted.
type Files interface {
	fuse.RawFileSystem
	// Object returns the object of a node, or with a name the one at the name in it. The caller closes the file.
	Object(node uint64, name string) (beneath.File, Object, error)
	// Handle returns the object of an open file.
	Handle(fh uint64) (Object, error)
	// Known returns the Usage and Open of a node, or with node 0 of an object; nil: there is no node. It is called under
	// Counter.mu.
	Known(node uint64, id beneath.FileID) Object
	// Opened returns the object of the i-th open file, or no Usage; more is false after the last. It is called under
	// Counter.mu.
	Opened(i int) (o Object, more bool)
}

// Object is an object of a view.
type Object struct {
	Usage *Usage
	Stat  beneath.Stat
	Rel   string                                     // one of its paths
	Whole bool                                       // it is the agent's, wherever it is
	Open  func() bool                                // reports whether clients have it open
	Seek  func(off int64, whence int) (int64, error) // of an open file: lseek(2)
}

// Layer passes requests to a view, counts what they change and refuses writes for which there is no room.
type Layer struct {
	Files
	counter *Counter
}

// Around returns what serves a view's requests.
func (c *Counter) Around(files Files) fuse.RawFileSystem {
	if c == nil {
		return files
	}
	return &Layer{files, c}
}

// look notes what an object takes before it changes.
func (l *Layer) look(node uint64) {
	if l.counter.known(l.Known(node, beneath.FileID{}).Usage) {
		return
	}
	if f, o, err := l.Object(node, ""); err == nil {
		f.Close()
		l.counter.settle(o, unknown)
	}
}

// changing performs an operation on an object, and counts what the object takes afterwards.
func (l *Layer) changing(node uint64, do func() fuse.Status) fuse.Status {
	l.look(node)
	code := do()
	if code.Ok() {
		l.changed(node)
	}
	return code
}

// changed counts what an object takes after it has changed.
func (l *Layer) changed(node uint64) {
	if f, o, err := l.Object(node, ""); err == nil {
		f.Close()
		l.counter.settle(o, unknown)
	}
}

// written counts what an open file takes after it has changed.
func (l *Layer) written(fh uint64) {
	if o, err := l.Handle(fh); err == nil {
		l.counter.settle(o, unknown)
	}
}

// made counts an object that an operation has made in a directory.
func (l *Layer) made(dir uint64, code fuse.Status, out *fuse.EntryOut) fuse.Status {
	if o := l.Known(out.NodeId, beneath.FileID{}); code.Ok() && o.Usage != nil {
		first := l.counter.first
		o.Stat.Ino, o.Stat.Dev_major, o.Stat.Dev_minor = out.Ino, first.Dev_major, first.Dev_minor
		o.Stat.Blocks, o.Whole = out.Blocks, true
		l.counter.settle(o, absent)
		l.counter.touched(dir)
	}
	return code
}

// Create counts the file.
func (l *Layer) Create(c <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	l.look(in.NodeId)
	return l.made(in.NodeId, l.Files.Create(c, in, name, out), &out.EntryOut)
}

// Tmpfile counts the file, which has no name.
func (l *Layer) Tmpfile(c <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	return l.made(in.NodeId, l.Files.Tmpfile(c, in, out), &out.EntryOut)
}

// Mkdir counts the directory.
func (l *Layer) Mkdir(c <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	l.look(in.NodeId)
	return l.made(in.NodeId, l.Files.Mkdir(c, in, name, out), out)
}

// Mknod counts the object.
func (l *Layer) Mknod(c <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	l.look(in.NodeId)
	return l.made(in.NodeId, l.Files.Mknod(c, in, name, out), out)
}

// Symlink counts the link.
func (l *Layer) Symlink(c <-chan struct{}, head *fuse.InHeader, text, name string, out *fuse.EntryOut) fuse.Status {
	l.look(head.NodeId)
	return l.made(head.NodeId, l.Files.Symlink(c, head, text, name, out), out)
}

// Link counts what the directory takes: an object with several names counts once.
func (l *Layer) Link(c <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	l.look(in.NodeId)
	done := l.counter.moves()
	code := l.Files.Link(c, in, name, out)
	done(l.at(in.NodeId, name)...)
	l.counter.touched(in.NodeId)
	return code
}

// at returns the object at a name while a walk is under way; none: it is not there.
func (l *Layer) at(dir uint64, name string) []Object {
	if !l.counter.walking() {
		return nil
	}
	f, o, err := l.Object(dir, name)
	if err != nil {
		return nil
	}
	f.Close()
	l.counter.settle(o, unknown)
	_ = l.counter.held(&o) // its number in the upper layer
	return []Object{o}
}

// removing performs an operation that removes a name, and counts the object no more if that was its last one.
func (l *Layer) removing(dir uint64, name string, do func() fuse.Status) fuse.Status {
	f, o, err := l.Object(dir, name)
	if err != nil {
		return do()
	}
	defer f.Close()
	held := l.counter.held(&o)
	if !l.counter.known(o.Usage) {
		l.counter.settle(o, unknown) // afterwards it is not known whose it was
	}
	code := do()
	if !code.Ok() {
		return code
	}
	if st, err := f.Stat(); err == nil && st.Nlink == 0 && !o.Open() {
		l.counter.remove(o, held)
	}
	return code
}

// Unlink counts an object no more that has no other name and is not open.
func (l *Layer) Unlink(c <-chan struct{}, head *fuse.InHeader, name string) fuse.Status {
	return l.removing(head.NodeId, name, func() fuse.Status { return l.Files.Unlink(c, head, name) })
}

// Rmdir counts the directory no more.
func (l *Layer) Rmdir(c <-chan struct{}, head *fuse.InHeader, name string) fuse.Status {
	return l.removing(head.NodeId, name, func() fuse.Status { return l.Files.Rmdir(c, head, name) })
}

// Rename counts an object no more that it replaces.
func (l *Layer) Rename(c <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	l.look(in.Newdir)
	done := l.counter.moves()
	code := l.removing(in.Newdir, to, func() fuse.Status { return l.Files.Rename(c, in, from, to) })
	done(append(l.at(in.Newdir, to), l.at(in.NodeId, from)...)...) // at both, after an exchange
	l.counter.touched(in.NodeId)
	l.counter.touched(in.Newdir)
	return code
}

// Release counts a file no more that has no name and that nobody else has open.
func (l *Layer) Release(c <-chan struct{}, in *fuse.ReleaseIn) {
	o, err := l.Handle(in.Fh)
	l.Files.Release(c, in)
	switch {
	case err != nil:
	case o.Stat.Nlink > 0:
		l.counter.settle(o, unknown)
	case !o.Open():
		l.counter.remove(o, l.counter.held(&o))
	}
}

// Open counts what truncation frees.
func (l *Layer) Open(c <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if in.Flags&(unix.O_ACCMODE|unix.O_TRUNC) == unix.O_RDONLY {
		return l.Files.Open(c, in, out)
	}
	l.look(in.NodeId)
	code := l.Files.Open(c, in, out)
	if code.Ok() {
		l.written(out.Fh)
	}
	return code
}

// SetAttr counts what the file takes afterwards.
func (l *Layer) SetAttr(c <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return l.changing(in.NodeId, func() fuse.Status { return l.Files.SetAttr(c, in, out) })
}

// SetXAttr counts what the object takes afterwards.
func (l *Layer) SetXAttr(c <-chan struct{}, in *fuse.SetXAttrIn, attr string, data []byte) fuse.Status {
	return l.changing(in.NodeId, func() fuse.Status { return l.Files.SetXAttr(c, in, attr, data) })
}

// RemoveXAttr is SetXAttr without a value.
func (l *Layer) RemoveXAttr(c <-chan struct{}, head *fuse.InHeader, attr string) fuse.Status {
	return l.changing(head.NodeId, func() fuse.Status { return l.Files.RemoveXAttr(c, head, attr) })
}

// writing performs a write of n bytes if there is room for it, and counts what the file takes then. With over it needs none
// where the file has its blocks.
func (l *Layer) writing(fh, off, n uint64, over bool, do func() fuse.Status) fuse.Status {
	n = min(n, maxLength)
	done, err := l.counter.reserve(int64(n), func() int64 {
		if o, err := l.Handle(fh); over && err == nil {
			return growth(&o, min(off, maxLength), n)
		}
		return int64(n)
	})
	if err != nil {
		return fuse.Status(syscall.EDQUOT)
	}
	defer done()
	code := do()
	l.written(fh)
	return code
}

// maxLength bounds offsets and lengths, so that sums do not overflow.
const maxLength = 1 << 60

// growth returns how many bytes of a write to a file have no blocks yet, at most. The number of blocks does not say where they
// are: fallocate(2) can put them behind the end.
func growth(o *Object, off, n uint64) int64 {
	hole, err := o.Seek(int64(off), unix.SEEK_HOLE)
	if err != nil || o.Stat.Size > o.Stat.Blocks*512 {
		return int64(n)
	}
	return int64(off + n - min(uint64(hole), off+n))
}

// Write is Writev of one buffer.
func (l *Layer) Write(c <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	return l.Writev(c, in, [][]byte{data})
}

// Writev fails with EDQUOT if there is no room.
func (l *Layer) Writev(c <-chan struct{}, in *fuse.WriteIn, data [][]byte) (written uint32, code fuse.Status) {
	code = l.writing(in.Fh, in.Offset, uint64(in.Size), true, func() (code fuse.Status) {
		written, code = l.Files.Writev(c, in, data)
		return code
	})
	return written, code
}

// CopyFileRange is Writev of data of another file.
func (l *Layer) CopyFileRange(c <-chan struct{}, in *fuse.CopyFileRangeIn) (written uint32, code fuse.Status) {
	in.Len = min(in.Len, maxCopy)
	code = l.writing(in.FhOut, in.OffOut, in.Len, false, func() (code fuse.Status) {
		written, code = l.Files.CopyFileRange(c, in)
		return code
	})
	return written, code
}

// maxCopy bounds one copy, in bytes: the client asks for the rest.
const maxCopy = 64 << 20

// Fallocate fails with EDQUOT if there is no room for the range. Holes need none.
func (l *Layer) Fallocate(c <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	n := in.Length
	if in.Mode&unix.FALLOC_FL_PUNCH_HOLE != 0 || in.Mode&unix.FALLOC_FL_COLLAPSE_RANGE != 0 {
		n = 0
	}
	return l.writing(in.Fh, in.Offset, n, false, func() fuse.Status { return l.Files.Fallocate(c, in) })
}

// StatFs returns the limits as the size of the file system, where that is larger.
func (l *Layer) StatFs(c <-chan struct{}, head *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	code := l.Files.StatFs(c, head, out)
	if !code.Ok() || out.Frsize == 0 {
		return code
	}
	use := l.counter.page.Use()
	bytes, files := l.counter.page.Limits()
	if bytes > 0 {
		unit := int64(out.Frsize)
		free := uint64(max(bytes-use.Bytes, 0) / unit)
		out.Blocks = min(out.Blocks, uint64(bytes/unit))
		out.Bfree, out.Bavail = min(out.Bfree, free), min(out.Bavail, free)
	}
	if files > 0 {
		out.Ffree = min(out.Ffree, uint64(max(files-use.Files, 0)))
		out.Files = min(out.Files, uint64(files))
		if out.Files == 0 { // btrfs has no number
			out.Files, out.Ffree = uint64(files), uint64(max(files-use.Files, 0))
		}
	}
	return code
}
