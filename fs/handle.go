package fs

import (
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusedev"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// handle is an open file or directory.
type handle struct {
	file    beneath.File
	node    *node
	reads   bool                         // open for reading
	writes  bool                         // open for writing
	blind   bool                         // file is not open in that way: the kernel alone may use it
	backed  bool                         // uses node.backing
	muted   bool                         // counted in node.muted
	policy  atomic.Pointer[scope.Policy] // what allowed it
	listing *listing                     // of a directory
	at      int                          // index into node.open; guarded by table.mu
}

// newHandle returns a handle of a file that is open with the flags of open(2).
func newHandle(f beneath.File, n *node, flags int) *handle {
	h := &handle{file: f, node: n}
	h.reads, h.writes = accessOf(flags)
	return h
}

// table holds the open files. A handle's number is its index plus one.
type table struct {
	mu    sync.RWMutex
	slots []*handle
	free  []int

	limit int64 // of count; 0 is none
	count atomic.Int64
}

// reserve counts a handle that is about to be opened, before anything is opened or
// made: EMFILE when there are too many.
func (t *table) reserve() error {
	if t.count.Add(1) > t.limit && t.limit > 0 {
		t.count.Add(-1)
		return syscall.EMFILE
	}
	return nil
}

// release is for a handle that was reserved and is not in the table, or not any more.
func (t *table) release() { t.count.Add(-1) }

// HandlesWithin returns how many handles this process can serve, of so many that are
// wanted, for [Limits]: each has a descriptor, and requests need some for a moment, whatever
// clients hold open. A process that confines itself calls it before.
func HandlesWithin(want int) int {
	most := fusedev.Descriptors()
	if most == 0 || want != 0 && want < most {
		return want
	}
	return most
}

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

// remove takes a handle out. It returns the backing id to give up, if h was
// the last to use one.
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

// reach returns a descriptor of its own of a file that is open on the node, for
// reading and writing if that is wanted.
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

// holds reports whether a node is open.
func (t *table) holds(n *node) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(n.open) > 0
}

func (t *table) closeAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, h := range t.slots {
		if h != nil {
			h.file.Close()
			t.slots[i] = nil
		}
	}
}

// opened puts a file that was opened into the table and says how its data is
// to travel. All files open on one node at a time travel the same way: the
// kernel does not mix them (fs/fuse/iomode.c). EACCES for a blind file that the
// kernel does not take.
func (v *View) opened(h *handle, made bool, out *fuse.OpenOut) error {
	h.policy.Store(v.policy.Load())
	v.back(h, out)
	if h.blind && !h.backed {
		return syscall.EACCES
	}
	v.mute(h, made)
	if !h.backed && v.opt.Mediated {
		out.OpenFlags |= fuse.FOPEN_DIRECT_IO
	}
	out.Fh = v.files.add(h)
	return nil
}

// back hands the file to the kernel, so that reads and writes do not come here.
//
// A backing file has the credentials of whoever hands it over, for all who have
// the file open. With identity "caller" these could be root's, and writes of
// others would keep set-id bits. So a file with such bits is not handed over, and
// any other without CAP_FSETID: bits that come while it is open are cleared by
// whoever writes, root included.
func (v *View) back(h *handle, out *fuse.OpenOut) {
	if v.noBacking.Load() {
		return
	}
	give := v.conn.RegisterBacking
	if v.opt.Groups != nil {
		st, err := h.file.Stat()
		if err != nil || st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 && !h.blind {
			return
		}
		give = v.backBare
	}
	v.files.mu.Lock()
	defer v.files.mu.Unlock()
	n := h.node
	if n.backingOn == 0 {
		if len(n.open) > 0 {
			return
		}
		id, errno := give(h.file.FD())
		if errno != 0 {
			v.noBacking.Store(true)
			v.opt.Logger.Warn("no passthrough: the kernel caches data instead", "errno", errnoName(errno))
			return
		}
		n.backing = id
	}
	n.backingOn++
	h.backed = true
	out.BackingID = n.backing
	out.OpenFlags |= fuse.FOPEN_PASSTHROUGH
}

// backBare is Conn.RegisterBacking without CAP_FSETID.
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

// close ends a handle.
func (v *View) close(fh uint64) {
	h, backing := v.files.remove(fh)
	if h == nil {
		return
	}
	if h.listing != nil {
		v.listings.end(h.listing)
	}
	v.conn.Defer(func() {
		if backing != 0 {
			v.conn.ReleaseBacking(backing)
		}
		v.unmute(h)
		h.file.Close()
		v.files.release()
	})
}
