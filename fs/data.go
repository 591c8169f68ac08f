package fs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// openFlags are the flags of open(2) that reach the file below. O_APPEND does
// not: whether a write appends is told with each one. O_DIRECT does not: where
// data comes through the view, its buffers are not the caller's.
const openFlags = unix.O_ACCMODE | unix.O_SYNC | unix.O_DSYNC | unix.O_NOATIME

// fmodeExec in the flags of an open says that it is to be executed: __FMODE_EXEC,
// linux/fs.h.
const fmodeExec = 0x20

// Open opens a file. Truncating is done when it is known to be the one meant.
func (v *View) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	flags := int(in.Flags)
	op := scope.OpOpen
	if flags&unix.O_ACCMODE != unix.O_RDONLY || flags&unix.O_TRUNC != 0 {
		op = scope.OpOpenWrite
	}
	return status(v.on(ask{head: &in.InHeader, op: op}, func(p *place) error {
		if !p.stat.IsRegular() {
			return beneath.ErrStale
		}
		if flags&fmodeExec != 0 && !v.opt.Shared {
			// The kernel is content with any of the three bits: fuse_permission.
			if err := p.obj.Access(unix.X_OK); err != nil {
				return err
			}
		}
		if err := v.files.reserve(); err != nil {
			return err
		}
		f, blind, err := v.reopen(p, flags)
		if err != nil {
			v.files.release()
			return err
		}
		h := newHandle(f, p.node, flags)
		h.blind = blind
		if err := v.opened(h, false, out); err != nil {
			v.files.release()
			f.Close()
			return err
		}
		return nil
	}))
}

// reopen opens a file once more, as open(2) says. A blind descriptor is not open
// in that way: only the kernel may use it, by passthrough.
func (v *View) reopen(p *place, flags int) (f beneath.File, blind bool, err error) {
	f, err = v.openFile(p, flags&openFlags)
	switch {
	case err == nil && flags&unix.O_TRUNC != 0:
		if err = v.emptied(p, f, flags); err != nil {
			f.Close()
		}
		return f, false, err
	case errors.Is(err, syscall.EACCES) && flags&fmodeExec != 0:
		// execve(2) takes the right to execute alone. It was asked for above or, in
		// a shared view, by the kernel.
	case err == errNotOpenSo && flags&unix.O_TRUNC == 0:
	default:
		return f, false, err
	}
	f, err = p.obj.Dup()
	return f, true, err
}

// emptied truncates f, or the file that it is if f is open for reading.
func (v *View) emptied(p *place, f beneath.File, flags int) error {
	if flags&unix.O_ACCMODE != unix.O_RDONLY {
		return f.Truncate(0)
	}
	t, err := v.openFile(p, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer t.Close()
	return t.Truncate(0)
}

// errNotOpenSo says that a file without a name is not open in the way that is
// wanted. There is no other way to it.
var errNotOpenSo = fmt.Errorf("file without a name: %w", syscall.EACCES)

// openFile opens the file of p by its name. A file without one is open already:
// it is checked again and shares that descriptor. Reads and writes have offsets of
// their own.
func (v *View) openFile(p *place, flags int) (beneath.File, error) {
	if !p.held {
		return v.root.Open(p.rel, flags, p.node.ident)
	}
	reads, writes := accessOf(flags)
	var mask uint32
	if reads {
		mask |= unix.R_OK
	}
	if writes {
		mask |= unix.W_OK
	}
	if err := p.obj.Access(mask); err != nil {
		return beneath.File{}, err
	}
	if f, ok := v.files.reach(p.node, reads, writes); ok {
		return f, nil
	}
	return beneath.File{}, errNotOpenSo
}

// accessOf is what open(2) with these flags is for.
func accessOf(flags int) (reads, writes bool) {
	mode := flags & unix.O_ACCMODE
	return mode != unix.O_WRONLY, mode != unix.O_RDONLY
}

// Create makes and opens a file. When the host has made one of that name
// meanwhile, the kernel is asked to look again: ESTALE.
func (v *View) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return status(v.in(ask{head: &in.InHeader, op: scope.OpCreate, name: name}, func(p *place) error {
		if err := v.room(); err != nil {
			return err
		}
		f, err := p.dir.Create(name, int(in.Flags)&openFlags, v.plain(&in.InHeader, p.path(), unix.S_IFREG, masked(p.dir, in.Mode, in.Umask)))
		if err == syscall.EEXIST && in.Flags&unix.O_EXCL == 0 {
			err = beneath.ErrStale
		}
		if err != nil {
			v.files.release()
			return err
		}
		return v.created(p, name, f, int(in.Flags), out)
	}))
}

// Tmpfile makes and opens a file that has no name.
func (v *View) Tmpfile(_ <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	// Decided on as a name in the directory: what may not be created there
	// by any name must not be created without one.
	return status(v.in(ask{head: &in.InHeader, op: scope.OpCreate, name: "#tmpfile"}, func(p *place) error {
		mode := v.plain(&in.InHeader, p.base, unix.S_IFREG, masked(p.dir, in.Mode, in.Umask))
		if err := v.room(); err != nil {
			return err
		}
		var f beneath.File
		err := v.unnamed(func() (err error) {
			f, err = p.dir.CreateTemp(int(in.Flags)&(openFlags|unix.O_EXCL), mode)
			return err
		})
		if err != nil {
			v.files.release()
			return err
		}
		return v.created(p, "#tmpfile", f, int(in.Flags), out)
	}))
}

// room reserves a handle of a file that is about to be made, or says why it must not be.
func (v *View) room() error {
	if err := v.roomy(); err != nil {
		return err
	}
	return v.files.reserve()
}

func (v *View) created(p *place, name string, f beneath.File, flags int, out *fuse.CreateOut) error {
	st, err := f.Stat()
	if err == nil {
		err = v.known(p, name, &st, true, &out.EntryOut)
	}
	if err != nil {
		v.files.release()
		f.Close()
		return err
	}
	n := v.nodes.get(out.NodeId)
	_ = v.opened(newHandle(f, n, flags), true, &out.OpenOut) // it is not blind
	out.SetAttrTimeout(v.keepAttr(n, &st, p.began))          // now that it is known who writes it
	return nil
}

// Read is for files whose data comes through the view.
func (v *View) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	var n int
	err := v.by(&in.InHeader, scope.OpRead, in.Fh, func(h *handle) (err error) {
		n, err = h.file.ReadAt(buf[:min(len(buf), int(in.Size))], int64(in.Offset))
		return err
	})
	return fuse.ReadResultData(buf[:n]), status(err)
}

// Write is for files whose data comes through the view.
func (v *View) Write(c <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	return v.Writev(c, in, [][]byte{data})
}

// Writev is Write of several pieces.
func (v *View) Writev(_ <-chan struct{}, in *fuse.WriteIn, data [][]byte) (written uint32, code fuse.Status) {
	code = status(v.by(&in.InHeader, scope.OpWrite, in.Fh, func(h *handle) error {
		// A page that the kernel writes back has a place of its own.
		appends := in.Flags&unix.O_APPEND != 0 && in.WriteFlags&fuse.WRITE_CACHE == 0
		for _, p := range data {
			n, err := h.file.WriteAt(p, int64(in.Offset)+int64(written), appends)
			written += uint32(n)
			if err != nil || n < len(p) {
				return err
			}
		}
		return nil
	}))
	return written, code
}

// CopyFileRange copies within the view, in the kernel.
func (v *View) CopyFileRange(_ <-chan struct{}, in *fuse.CopyFileRangeIn) (copied uint32, code fuse.Status) {
	const most = 1 << 30 // the answer has 32 bits
	code = status(v.by(&in.InHeader, scope.OpRead, in.FhIn, func(from *handle) error {
		return v.by(&in.InHeader, scope.OpWrite, in.FhOut, func(to *handle) error {
			n, err := from.file.CopyTo(to.file, int64(in.OffIn), int64(in.OffOut), int(min(in.Len, most)))
			copied = uint32(n)
			return err
		})
	}))
	return copied, code
}

// Fallocate allocates, punches and zeroes as the file system below can.
func (v *View) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	return status(v.by(&in.InHeader, scope.OpWrite, in.Fh, func(h *handle) error {
		return h.file.Allocate(in.Mode, int64(in.Offset), int64(in.Length))
	}))
}

// Lseek finds data and holes.
func (v *View) Lseek(_ <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	return status(v.by(&in.InHeader, scope.OpRead, in.Fh, func(h *handle) error {
		if in.Whence != unix.SEEK_DATA && in.Whence != unix.SEEK_HOLE {
			return syscall.EINVAL
		}
		off, err := h.file.Seek(int64(in.Offset), int(in.Whence))
		out.Offset = uint64(off)
		return err
	}))
}

// Fsync writes a file to the disk.
func (v *View) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return status(v.by(&in.InHeader, scope.OpRead, in.Fh, func(h *handle) error {
		return h.file.Sync(in.FsyncFlags&1 != 0)
	}))
}

// FsyncDir writes a directory to the disk.
func (v *View) FsyncDir(c <-chan struct{}, in *fuse.FsyncIn) fuse.Status { return v.Fsync(c, in) }

// Release closes a file.
func (v *View) Release(_ <-chan struct{}, in *fuse.ReleaseIn) { v.close(in.Fh) }

// ReleaseDir closes a directory.
func (v *View) ReleaseDir(in *fuse.ReleaseIn) { v.close(in.Fh) }
