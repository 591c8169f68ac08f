package fs

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// handle is an open file.
type handle struct {
	file   beneath.File
	node   *node
	reads  bool                         // open for reading
	writes bool                         // open for writing
	blind  bool                         // file lacks the access of the handle: only the kernel may use it, by passthrough
	backed bool                         // uses node.backing
	muted  bool                         // counted in node.muted
	own    bool                         // of Hold.Upper
	policy atomic.Pointer[scope.Policy] // the policy of the last decision
	keep   *history.Writer              // of the process that opened it
	at     int                          // index into node.open; guarded by table.mu
}

// newHandle returns a handle of f, which is open with the flags of open(2).
func newHandle(f beneath.File, n *node, flags int) *handle {
	h := &handle{file: f, node: n}
	h.reads, h.writes = accessOf(flags)
	return h
}

// table is the table of open files. The number of a handle is its index plus one.
type table struct {
	mu    sync.RWMutex
	slots []*handle
	free  []int

	limit int64 // of count; 0 is none
	count atomic.Int64
}

// reserve counts a handle, before anything is opened or created. It fails with EMFILE.
func (t *table) reserve() error {
	if t.count.Add(1) > t.limit && t.limit > 0 {
		t.count.Add(-1)
		return syscall.EMFILE
	}
	return nil
}

// release undoes reserve, after the handle is closed or was not opened.
func (t *table) release() { t.count.Add(-1) }

func (t *table) get(fh uint64) *handle {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if fh == 0 || fh > uint64(len(t.slots)) {
		return nil
	}
	return t.slots[fh-1]
}

func (t *table) add(h *handle) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	h.at = len(h.node.open)
	h.node.open = append(h.node.open, h)
	if n := len(t.free); n > 0 {
		i := t.free[n-1]
		t.free = t.free[:n-1]
		t.slots[i] = h
		return uint64(i) + 1
	}
	t.slots = append(t.slots, h)
	return uint64(len(t.slots))
}

// remove removes a handle. It returns a backing id if h was the last handle to use it; the caller releases it.
func (t *table) remove(fh uint64) (h *handle, backing int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if fh == 0 || fh > uint64(len(t.slots)) || t.slots[fh-1] == nil {
		return nil, 0
	}
	h = t.slots[fh-1]
	t.slots[fh-1] = nil
	t.free = append(t.free, int(fh-1))
	n := h.node
	last := n.open[len(n.open)-1]
	n.open[h.at], last.at = last, h.at
	n.open[len(n.open)-1] = nil
	n.open = n.open[:len(n.open)-1]
	if h.backed {
		if n.backingOn--; n.backingOn == 0 {
			backing = n.backing
		}
	}
	return h, backing
}

// reach duplicates the descriptor of a handle of the node that has the access wanted.
func (t *table) reach(n *node, reads, writes bool) (beneath.File, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, h := range n.open {
		if (reads || writes) && h.blind || reads && !h.reads || writes && !h.writes {
			continue
		}
		if f, err := h.file.Dup(); err == nil {
			return f, true
		}
	}
	return beneath.File{}, false
}

// writers returns the nodes that clients have open for writing, each with a Writer of one of them.
func (t *table) writers() map[*node]*history.Writer {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := map[*node]*history.Writer{}
	for _, h := range t.slots {
		if h != nil && h.writes && h.keep != nil {
			all[h.node] = h.keep
		}
	}
	return all
}

// backed reports whether the kernel writes a node's file itself.
func (t *table) backed(n *node) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return n.backingOn > 0
}

// holds reports whether a node has handles, or with writes those that are open for writing.
func (t *table) holds(n *node, writes bool) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.ContainsFunc(n.open, func(h *handle) bool { return h.writes || !writes })
}

// all returns the numbers of all handles.
func (t *table) all() (numbers []uint64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i, h := range t.slots {
		if h != nil {
			numbers = append(numbers, uint64(i)+1)
		}
	}
	return numbers
}

// opened adds a file to the table and chooses its data path. All handles of a node use the same one at a time: the
// kernel does not mix them (linux fs/fuse/iomode.c). It fails with EACCES for a blind file that passthrough does not
// accept.
func (v *View) opened(h *handle, made bool, out *fuse.OpenOut) error {
	h.policy.Store(v.policy.Load())
	text := h.node.staged.Load() != nil
	if !text && !v.back(h, out) {
		return beneath.ErrStale
	}
	if h.blind && !h.backed {
		return syscall.EACCES
	}
	// With FLUSH, close(2) writes dirty pages of mappings, and has the error: EDQUOT.
	maps := v.opt.Quota != nil && h.reads && h.writes && !h.backed
	if !text && !maps && (!v.opt.Remote || !h.writes) {
		out.OpenFlags |= fuse.FOPEN_NOFLUSH
	}
	v.mute(h, made)
	if text || !h.backed && v.opt.Mediated {
		out.OpenFlags |= fuse.FOPEN_DIRECT_IO
	}
	out.Fh = v.files.add(h)
	return nil
}

// back registers the file for passthrough, so that its reads and writes do not reach the view.
//
// The kernel uses a backing file with the credentials of the thread that registered it, for every process that has the
// file open. With Options.Groups these could be root's, and writes of other users would keep set-id bits. So back does
// not register a file with such bits, and registers others without CAP_FSETID: set-id bits that appear while the file
// is open are cleared by any write, also root's.
//
// back reports false if the node has handles of another file: it was copied to Hold.Upper a moment ago.
func (v *View) back(h *handle, out *fuse.OpenOut) bool {
	if v.noBacking.Load() || v.keptByBlocks(h) {
		return true
	}
	give := v.conn.RegisterBacking
	if v.opt.Groups != nil {
		st, err := h.file.Stat()
		if err != nil || st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 && !h.blind {
			return true
		}
		give = v.backBare
	}
	v.files.mu.Lock()
	defer v.files.mu.Unlock()
	n := h.node
	switch {
	case n.backingOn > 0 && n.ownBacks != h.own:
		return false
	case n.backingOn == 0 && len(n.open) > 0:
		return true
	case n.backingOn == 0:
		id, errno := give(h.file.FD())
		if errno != 0 {
			v.noBacking.Store(true)
			v.opt.Logger.Warn("no passthrough: the kernel caches data instead", "errno", unix.ErrnoName(errno))
			return true
		}
		n.backing, n.ownBacks = id, h.own
	}
	n.backingOn++
	h.backed = true
	out.BackingID = n.backing
	out.OpenFlags |= fuse.FOPEN_PASSTHROUGH
	return true
}

// keptByBlocks reports whether writes of a file must reach the view.
func (v *View) keptByBlocks(h *handle) bool {
	if v.opt.History == nil {
		return false
	}
	st, err := h.file.Stat()
	return err != nil || v.opt.History.Large(int64(st.Size)) || v.opt.History.ByBlocks(st.ID())
}

// backBare is fusedev.Conn.RegisterBacking without CAP_FSETID.
func (v *View) backBare(fd int) (id int32, errno syscall.Errno) {
	err := beneath.Unprivileged(func() error {
		id, errno = v.conn.RegisterBacking(fd)
		return nil
	})
	if err != nil {
		errno = syscall.EPERM
	}
	return id, errno
}

// close removes a handle and closes its file, after the reply.
func (v *View) close(fh uint64) {
	h, backing := v.files.remove(fh)
	if h == nil {
		return
	}
	v.conn.Defer(func() {
		if backing != 0 {
			v.conn.ReleaseBacking(backing)
		}
		v.unmute(h)
		if h.writes {
			h.keep.Left(h.node.ident(), h.file.Stat)
		}
		h.file.Close()
		v.files.release()
	})
}

// closeAll closes the files that are open when the mount ends. The kernel drops the RELEASE of a file that was closed right before that:
// the history learns how such a file was left, unless a process can write it still, by passthrough.
func (v *View) closeAll() {
	var written []*handle
	for _, fh := range v.files.all() {
		h, backing := v.files.remove(fh)
		if backing != 0 {
			v.conn.ReleaseBacking(backing)
		}
		h.file.Close()
		if h.writes && h.keep != nil {
			written = append(written, h)
		}
	}
	for _, h := range written {
		rel, ok := v.nodes.newest(h.node)
		if st, err := v.root.Stat(rel); ok && err == nil && st.ID() == h.node.ident() && plan.Unwritten(v.root, rel, &st) {
			h.keep.Left(st.ID(), func() (beneath.Stat, error) { return v.root.Stat(rel) })
		}
	}
}
