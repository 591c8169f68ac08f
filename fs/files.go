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

// openFlags are the flags of open(2) that apply to the file below. O_APPEND does not: each WRITE has it. O_DIRECT does
// not: the view's buffers are not the client's, and may not be aligned.
const openFlags = unix.O_ACCMODE | unix.O_SYNC | unix.O_DSYNC | unix.O_NOATIME

// fmodeExec marks an OPEN for execve(2): __FMODE_EXEC, linux/fs.h.
const fmodeExec = 0x20

// Open opens a file. It truncates only after the identity of the file is checked.
func (v *View) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	flags := int(in.Flags) | v.opt.Flags
	op := scope.OpOpen
	if flags&unix.O_ACCMODE != unix.O_RDONLY || flags&unix.O_TRUNC != 0 {
		op = scope.OpOpenWrite
	}
	light := flags&fmodeExec == 0 && (op == scope.OpOpen || v.opt.History == nil)
	err := v.on(request{head: &in.InHeader, op: op, light: light, cancel: cancel}, func(p *place) error {
		judged := op == scope.OpOpenWrite && v.judged(p.node) != 0
		switch {
		case judged && p.stat.Nlink > 1:
			return notJudged(p.rel, errors.New("has several names"))
		case judged || !p.stat.IsRegular():
			return beneath.ErrStale
		}
		if flags&fmodeExec != 0 && !v.opt.Shared {
			// The kernel accepts any of the three x bits: fuse_permission.
			if err := p.obj.Access(unix.X_OK); err != nil {
				return err
			}
		}
		if err := v.files.reserve(); err != nil {
			return err
		}
		if p.node.staged.Load() != nil {
			return v.openStaged(&in.InHeader, p.node, flags, out)
		}
		p.keep.Begin(p.node.ident(), false) // nil for reads
		h, err := v.openKept(p, op, flags, out)
		switch {
		case err != nil:
			v.files.release()
			p.keep.Left(p.node.ident(), p.obj.Stat) // a client may have moved or removed it
		case !h.writes:
			p.keep.Left(p.node.ident(), h.file.Stat)
		}
		return err
	})
	if op == scope.OpOpenWrite && errors.Is(err, beneath.ErrStale) {
		err = v.claim(&in.InHeader)
	}
	return status(err)
}

// openKept opens p for a handle, after what that may change is kept.
func (v *View) openKept(p *place, op scope.Op, flags int, out *fuse.OpenOut) (*handle, error) {
	if op == scope.OpOpenWrite {
		if err := v.keepContent(p); err != nil {
			return nil, err
		}
	}
	f, blind, err := v.reopen(p, flags)
	if err != nil {
		return nil, err
	}
	h := newHandle(f, p.node, flags)
	h.blind, h.keep, h.own = blind, p.keep, p.own
	if err = v.opened(h, false, out); err != nil {
		f.Close()
	}
	return h, err
}

// reopen opens p with the flags of open(2). A blind descriptor is not open with these flags: only the kernel may use
// it, by passthrough.
func (v *View) reopen(p *place, flags int) (f beneath.File, blind bool, err error) {
	f, err = v.openFile(p, flags&openFlags)
	switch {
	case err == nil && flags&unix.O_TRUNC != 0:
		if err = v.emptied(p, f, flags); err != nil {
			f.Close()
		}
		return f, false, err
	case errors.Is(err, syscall.EACCES) && flags&fmodeExec != 0:
		// execve(2) needs only execute permission. Open has checked that or, in a shared view, the kernel.
	case err == errNotOpenSo && flags&unix.O_TRUNC == 0:
	default:
		return f, false, err
	}
	f, err = p.obj.Dup()
	return f, true, err
}

// emptied truncates f, by another descriptor if f is open for reading.
func (v *View) emptied(p *place, f beneath.File, flags int) error {
	if err := p.keep.Blocks(p.node.ident(), 0, keepAll); err != nil {
		return err
	}
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

// errNotOpenSo says that no handle of a file without a name has the access wanted. Such a file cannot be opened
// otherwise.
var errNotOpenSo = fmt.Errorf("file without a name: %w", syscall.EACCES)

// openFile opens the file of p by its name. For a file without a name it checks permissions and duplicates the
// descriptor of a handle. The shared file offset does not matter: the view reads and writes at explicit offsets.
func (v *View) openFile(p *place, flags int) (beneath.File, error) {
	if !p.held {
		return v.reopenAt(p, flags)
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

// accessOf returns the access mode of open(2) flags.
func accessOf(flags int) (reads, writes bool) {
	mode := flags & unix.O_ACCMODE
	return mode != unix.O_WRONLY, mode != unix.O_RDONLY
}

// Create creates and opens a file. If the host has created one of that name since the kernel's lookup, it answers
// ESTALE, and the kernel looks the name up again.
func (v *View) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return status(v.in(request{head: &in.InHeader, op: scope.OpCreate, name: name}, func(p *place) error {
		if err := v.room(); err != nil {
			return err
		}
		mode := v.plain(&in.InHeader, p.path(), unix.S_IFREG, p.dir.Masked(in.Mode, in.Umask))
		policy := v.policy.Load()
		_, judged := accessOf(int(in.Flags))
		judged = judged && !policy.Uniform() && policy.File(scope.OpCreate, p.path()).Judge != 0
		var f beneath.File
		unlock, err := v.still(p, false)
		if err == nil {
			err = v.make(p, func() (st beneath.Stat, err error) {
				if f, err = p.dir.Create(name, (int(in.Flags)|v.opt.Flags)&openFlags, mode); err == nil {
					st, _ = f.Stat() // what has the name may be of the host by now
				}
				return st, err
			})
			unlock()
		}
		if err == syscall.EEXIST && in.Flags&unix.O_EXCL == 0 {
			err = beneath.ErrStale
			if judged {
				v.stages.claim(in.Pid, nameIn{p.node, name})
			}
		}
		switch {
		case err != nil:
			v.files.release()
			return err
		case judged:
			return v.createStaged(p, f, in, out)
		}
		return v.created(p, name, f, int(in.Flags), out)
	}))
}

// Tmpfile creates and opens a file without a name.
func (v *View) Tmpfile(_ <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	// The policy decides a name in the directory: where a client may create no file, it may create none without a
	// name.
	return status(v.in(request{head: &in.InHeader, op: scope.OpCreate, name: "#tmpfile"}, func(p *place) error {
		mode := v.plain(&in.InHeader, p.base, unix.S_IFREG, p.dir.Masked(in.Mode, in.Umask))
		if err := v.room(); err != nil {
			return err
		}
		var f beneath.File
		err := v.unnamed(func() (err error) {
			f, err = p.dir.CreateTemp((int(in.Flags)|v.opt.Flags)&(openFlags|unix.O_EXCL), mode)
			return err
		})
		if err != nil {
			v.files.release()
			return err
		}
		return v.created(p, "#tmpfile", f, int(in.Flags), out)
	}))
}

// room reserves a node and a handle before a file is created.
func (v *View) room() error {
	if err := v.roomy(); err != nil {
		return err
	}
	return v.files.reserve()
}

// created fills out for a file that was created. It closes the file on an error.
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
	if policy := v.policy.Load(); !policy.Uniform() && policy.File(scope.OpUnlink, p.path()).Own {
		v.locks.add(n.ident())
	}
	h := newHandle(f, n, flags)
	h.keep, h.own = p.keep, p.own
	if h.writes {
		h.keep.Begin(n.ident(), true)
	}
	_ = v.opened(h, true, &out.OpenOut)             // it fails for blind files alone
	out.SetAttrTimeout(v.keepAttr(n, &st, p.began)) // opened may have muted the watch
	return nil
}

// Read reads a file that is open without passthrough.
func (v *View) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	var n int
	err := v.by(&in.InHeader, scope.OpRead, in.Fh, func(h *handle) (err error) {
		n, err = h.file.ReadAt(buf[:min(len(buf), int(in.Size))], int64(in.Offset))
		return err
	})
	return fuse.ReadResultData(buf[:n]), status(err)
}

// Write writes a file that is open without passthrough.
func (v *View) Write(c <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	return v.Writev(c, in, [][]byte{data})
}

// Writev is Write of several buffers.
func (v *View) Writev(_ <-chan struct{}, in *fuse.WriteIn, data [][]byte) (written uint32, code fuse.Status) {
	code = status(v.by(&in.InHeader, scope.OpWrite, in.Fh, func(h *handle) error {
		// A page that the kernel writes back has an offset of its own.
		appends := in.Flags&unix.O_APPEND != 0 && in.WriteFlags&fuse.WRITE_CACHE == 0
		end := int64(in.Offset) + int64(in.Size)
		if appends {
			end = 0 // it replaces nothing
		}
		if err := v.keepWrite(&in.InHeader, h, int64(in.Offset), end); err != nil {
			return err
		}
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
	const most = 1 << 30 // the count in the reply has 32 bits
	code = status(v.by(&in.InHeader, scope.OpRead, in.FhIn, func(from *handle) error {
		return v.by(&in.InHeader, scope.OpWrite, in.FhOut, func(to *handle) error {
			if err := v.keepWrite(&in.InHeader, to, int64(in.OffOut), int64(in.OffOut)+int64(min(in.Len, most))); err != nil {
				return err
			}
			n, err := from.file.CopyTo(to.file, int64(in.OffIn), int64(in.OffOut), int(min(in.Len, most)))
			copied = uint32(n)
			return err
		})
	}))
	return copied, code
}

// Fallocate allocates, punches holes or zeroes, as far as the file system below can.
func (v *View) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	return status(v.by(&in.InHeader, scope.OpWrite, in.Fh, func(h *handle) error {
		end := int64(in.Offset) // to allocate replaces nothing
		switch in.Mode &^ unix.FALLOC_FL_KEEP_SIZE {
		case 0:
		case unix.FALLOC_FL_PUNCH_HOLE, unix.FALLOC_FL_ZERO_RANGE:
			end += int64(in.Length)
		default:
			end = keepAll
		}
		if err := v.keepWrite(&in.InHeader, h, int64(in.Offset), end); err != nil {
			return err
		}
		return h.file.Allocate(in.Mode, int64(in.Offset), int64(in.Length))
	}))
}

// Lseek performs SEEK_DATA and SEEK_HOLE.
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

// Fsync flushes a file to the disk.
func (v *View) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if h := v.files.get(in.Fh); h != nil {
		if one := h.node.staged.Load(); one != nil {
			return status(v.settleStaged(&in.InHeader, one, atSync))
		}
	}
	return status(v.by(&in.InHeader, scope.OpRead, in.Fh, func(h *handle) error {
		if err := h.file.Sync(in.FsyncFlags&1 != 0); err != nil || v.hold == nil {
			return err
		}
		return v.hold.Sync()
	}))
}

// Flush is a client's close(2). It judges the text of a judged file. With Options.Remote it waits until other hosts can
// read what the client wrote, which would else be when the kernel has released the file. For most other handles the
// kernel sends no FLUSH: FOPEN_NOFLUSH, since Linux 5.16.
func (v *View) Flush(_ <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	h := v.files.get(in.Fh)
	if h == nil {
		return fuse.OK
	}
	if one := h.node.staged.Load(); one != nil {
		return status(v.settleStaged(&in.InHeader, one, atClose))
	}
	if v.opt.Remote {
		return status(h.file.Flush())
	}
	return fuse.OK
}

// Release closes a file.
func (v *View) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	h := v.files.get(in.Fh)
	v.close(in.Fh)
	if h != nil {
		if one := h.node.staged.Load(); one != nil {
			v.released(one)
		}
	}
}
