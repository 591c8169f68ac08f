package fs

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// How long the kernel may keep what it was told. While a change by others would
// be seen (watch), the longest is what nobody tells of: stores to a mapping, a
// name that the host gave a file outside and writes to it by.
const (
	keepWatched = time.Minute
	keepBriefly = 20 * time.Millisecond // of what could change unseen, though the rest is watched

	batchTime = 5 * time.Millisecond // between two readings of the watch

	maxStray = 4096 // watches that could not be ended: each holds an inode in memory
)

// follower keeps what the kernel remembers in step with the directory below:
// each directory of which it remembers names is watched, and what others change
// there it is told to ask for again. Changes of our own it has made itself.
type follower struct {
	watch *beneath.Watch // nil: nothing is watched

	mu    sync.Mutex
	dirs  map[string]*node // by the handle that the watch tells
	stray int              // watches that could not be ended, and are not in dirs
}

// follow watches a directory before the first answer about a name in it.
func (v *View) follow(n *node, dir beneath.Dir) {
	f := &v.follower
	if f.watch == nil || n.watched.Load() != 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	key, err := f.watch.Add(dir)
	if err == unix.ENOSPC && f.stray > 0 {
		v.flush()
		key, err = f.watch.Add(dir)
	}
	if err != nil {
		v.unwatched.Do(func() {
			v.opt.Logger.Warn("a directory cannot be watched: changes by others are seen there after a time", "err", err, "time", v.opt.Timeout)
		})
		return
	}
	n.handle = key
	f.dirs[key] = n
	n.watched.Store(v.now())
}

// flush ends all watches; the caller holds follower.mu. Directories are watched
// again when they are used.
func (v *View) flush() {
	f := &v.follower
	_ = f.watch.Flush()
	for _, n := range f.dirs {
		n.watched.Store(0)
	}
	clear(f.dirs)
	f.stray = 0
	v.background.Go(v.dropAll) // the caller is a reader: it could deadlock
}

// unfollow ends the watch on a directory that the kernel has forgotten.
func (v *View) unfollow(n *node) {
	f := &v.follower
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dirs[n.handle] != n { // another node has taken it over, and the watch
		return
	}
	delete(f.dirs, n.handle)
	p := place{node: n}
	if v.openDir(&p) != nil { // it is gone, or not ours any more, or closed to us
		if f.stray++; f.stray > maxStray {
			v.flush()
		}
		return
	}
	_ = f.watch.Remove(p.dir)
	p.dir.Close()
}

// gone notes that a directory was removed, which ends its watch.
func (v *View) gone(ident beneath.FileID) {
	n := v.nodes.byIdentity(ident)
	if n == nil || n.watched.Load() == 0 {
		return
	}
	f := &v.follower
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dirs[n.handle] == n {
		delete(f.dirs, n.handle)
		n.watched.Store(0)
	}
}

// keepName is how long the kernel may remember what stands at a name.
func (v *View) keepName(dir *node) time.Duration {
	if dir.watched.Load() != 0 {
		return keepWatched
	}
	return v.opt.Timeout
}

// keepAbsent is how long the kernel may remember that nothing stands at a name.
// Of these there is no list: they must be dropped all at once.
func (v *View) keepAbsent(dir *node) time.Duration {
	if v.conn.Epochs() {
		return v.keepName(dir)
	}
	return v.opt.Timeout
}

// keepAttr is how long the kernel may remember what a node is, of which it was
// asked after began. In a shared view that is what it goes by when it lets
// others open a file, so what a name elsewhere could change is kept briefly.
func (v *View) keepAttr(n *node, st *beneath.Stat, began int64) time.Duration {
	if st.IsRegular() && st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		n.setID.Store(true)
	}
	sure := func(dir *node) bool { at := dir.watched.Load(); return at != 0 && at <= began }
	switch {
	case v.follower.watch == nil:
		return v.opt.Timeout
	case n.dir:
		if sure(n) {
			return keepWatched
		}
	case st.Nlink != 1, n.muted.Load() > 0, v.opt.Shared && v.opt.Groups == nil:
	case v.nodes.everyParent(n, sure):
		return keepWatched
	}
	return min(keepBriefly, v.opt.Timeout)
}

// now is a time to compare with others of the view.
func (v *View) now() int64 { return int64(time.Since(v.began)) + 1 }

// listen tells the kernel what others have changed, until the mount is gone.
func (v *View) listen() {
	for v.follower.watch.Wait() == nil {
		if err := v.follower.watch.Read(v.changed); err != nil {
			v.opt.Logger.Error("the watch failed", "err", err)
			v.dropAll()
		}
		time.Sleep(batchTime) // the kernel puts together what comes meanwhile
	}
}

func (v *View) changed(c beneath.Change) {
	if c.Own {
		return
	}
	if c.Lost {
		v.opt.Logger.Warn("more changes than could be told: the kernel's caches are dropped")
		v.dropAll()
		return
	}
	v.follower.mu.Lock()
	dir := v.follower.dirs[string(c.Dir)]
	v.follower.mu.Unlock()
	if dir == nil {
		return
	}
	if len(c.Name) == 0 {
		v.conn.InvalidateInode(dir.id, false)
	} else {
		if c.IsDir && c.Names {
			v.settle(dir, string(c.Name))
		}
		// The name in any case: that waits for a lookup which is on its way
		// with what was so before, and which the kernel would keep.
		v.conn.InvalidateEntry(dir.id, string(c.Name), !c.Names)
		if c.Names {
			v.conn.InvalidateInode(dir.id, false) // not done by that for a name it does not know
		}
		if n := v.child(dir, string(c.Name)); n != nil {
			v.conn.InvalidateInode(n.id, true)
		}
	}
	if c.IsDir && !c.Names {
		v.searchable()
	}
}

// child is the node at a name, if it is known.
func (v *View) child(dir *node, name string) *node {
	p := place{node: dir}
	if v.openDir(&p) != nil {
		return nil
	}
	defer p.dir.Close()
	st, err := p.dir.Stat(name)
	if err != nil {
		return nil
	}
	return v.nodes.byIdentity(st.ID())
}

// dropNames makes the kernel ask again for every name. It may wait for clients
// that wait for answers: it is not for who gives these (searchable).
func (v *View) dropNames() {
	if v.conn.InvalidateEntries() {
		return
	}
	for _, at := range v.nodes.everyName() {
		v.conn.InvalidateEntry(at.parent.id, at.name, true)
	}
}

// searchable makes the kernel ask again for every name because it has changed
// who may search a directory, which of a private view it does not ask itself.
func (v *View) searchable() {
	if v.opt.Shared || v.conn.InvalidateEntries() {
		return
	}
	if v.sweeping.CompareAndSwap(false, true) {
		v.background.Go(func() {
			v.sweeping.Store(false)
			v.dropNames()
		})
	}
}

// dropAll makes the kernel ask again for everything.
func (v *View) dropAll() {
	v.dropNames()
	for _, id := range v.nodes.everyID() {
		v.conn.InvalidateInode(id, true)
	}
}

// mute keeps the watch from telling of each write that the kernel does for the
// clients of the view; they know. What others write meanwhile is seen because
// the kernel asks what the file is again and again.
func (v *View) mute(h *handle, made bool) {
	f := &v.follower
	if f.watch == nil || !h.writes || !h.backed {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	h.muted = true
	if h.node.muted.Add(1) == 1 {
		_ = f.watch.Mute(h.file)
		if !made { // of what was just made nothing is kept yet
			v.conn.InvalidateInode(h.node.id, false)
		}
	}
}

func (v *View) unmute(h *handle) {
	f := &v.follower
	if !h.muted {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if h.node.muted.Load() == 1 {
		_ = f.watch.Unmute(h.file)
		defer v.conn.InvalidateInode(h.node.id, false) // what was asked before it could be told
	}
	h.node.muted.Add(-1)
}
