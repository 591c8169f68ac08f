package fs

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// These bound staleness for changes that fanotify cannot report: stores through mmap,
// writes through hard links outside the scope.
const (
	keepWatched = time.Minute
	keepBriefly = 20 * time.Millisecond // of attributes that may change unseen though the directory is watched

	batchTime = 5 * time.Millisecond // between two reads of the watch

	maxStray = 4096 // marks that could not be removed: each keeps an inode in memory
)

// follower keeps the kernel's caches coherent with the directory below. It watches each
// directory whose entries the kernel caches, and invalidates entries that other processes
// change. Changes by the view need no invalidation: the kernel requested them.
type follower struct {
	watch *beneath.Watch // nil: none

	mu    sync.Mutex
	dirs  map[string]*node // by the handle in the watch's events
	stray int              // marks that could not be removed, and are not in dirs
}

// follow watches a directory, before the first reply about a name in it.
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
			v.opt.Logger.Warn("a directory cannot be watched: changes by other processes appear there after a time",
				"err", err, "time", v.opt.Timeout)
		})
		return
	}
	n.handle = key
	f.dirs[key] = n
	n.watched.Store(v.now())
}

// followRoot watches the root before a client needs it. The kernel visits each dentry of a directory when it begins to watch
// it, which takes 10 ms for 100,000 files (fsnotify_set_children_dentry_flags).
func (v *View) followRoot() {
	p := place{node: v.nodes.root}
	if v.openDirAt(&p) != nil {
		return
	}
	defer p.dir.Close()
	v.follow(p.node, p.dir)
}

// flush removes all marks. A directory is watched again when it is used. The caller
// holds follower.mu.
func (v *View) flush() {
	f := &v.follower
	_ = f.watch.Flush()
	for _, n := range f.dirs {
		n.watched.Store(0)
	}
	clear(f.dirs)
	f.stray = 0
	v.editions.Add(1)
	v.background.Go(v.dropAll) // the caller is a reader: it could deadlock
}

// unfollow removes the mark of a directory that the kernel has forgotten.
func (v *View) unfollow(n *node) {
	v.moves.RLock() // before follower.mu: a rename holds it when it calls gone
	defer v.moves.RUnlock()
	f := &v.follower
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dirs[n.handle] != n { // the mark belongs to another node by now
		return
	}
	delete(f.dirs, n.handle)
	p := place{node: n}
	if v.openDirAt(&p) != nil { // removed, moved out of the scope, or not accessible
		if f.stray++; f.stray > maxStray {
			v.flush()
		}
		return
	}
	_ = f.watch.Remove(p.dir)
	p.dir.Close()
}

// gone records that a client has removed a directory, and the watch's mark with it.
// A client that has it open can still read its attributes.
func (v *View) gone(st beneath.Stat) {
	n := v.nodes.byIdentity(st.ID())
	if n == nil {
		return
	}
	st.Nlink = 0
	n.removed.Store(&st)
	v.unwatch(n)
}

// unwatch forgets the watch on a directory that is removed.
func (v *View) unwatch(n *node) {
	if n.watched.Load() == 0 {
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

// keepName returns the validity of a dentry.
func (v *View) keepName(dir *node) time.Duration {
	if dir.watched.Load() != 0 {
		return keepWatched
	}
	return v.opt.Timeout
}

// keepAbsent returns the validity of a negative dentry. The view has no list of these:
// only InvalidateEntries can invalidate them.
func (v *View) keepAbsent(dir *node) time.Duration {
	if v.conn.Epochs() {
		return v.keepName(dir)
	}
	return v.opt.Timeout
}

// keepAttr returns the validity of attributes that were read after began. In a shared
// view the kernel decides by them whether another user may open a file. There,
// attributes that may change through a name elsewhere are valid for keepBriefly.
func (v *View) keepAttr(n *node, st *beneath.Stat, began int64) time.Duration {
	if st.IsRegular() && st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		n.setID.Store(true)
	}
	sure := func(dir *node) bool { at := dir.watched.Load(); return at != 0 && at <= began }
	switch {
	case v.opt.Gate && n == v.nodes.root:
		return 0
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

// now returns a time, in nanoseconds since New.
func (v *View) now() int64 { return int64(time.Since(v.began)) + 1 }

// listen invalidates what other processes change, until Serve ends.
func (v *View) listen() {
	for v.follower.watch.Wait() == nil {
		if err := v.follower.watch.Read(v.changed); err != nil {
			v.opt.Logger.Error("the watch failed", "err", err)
			v.dropAll()
		}
		time.Sleep(batchTime) // the kernel merges events meanwhile
	}
}

func (v *View) changed(c beneath.Change) {
	if c.Own {
		return
	}
	if c.Lost {
		v.opt.Logger.Warn("more changes than the watch could report: the kernel's caches are invalidated")
		v.dropAll()
		v.echoes.note(nil, "", hostChange{})
		return
	}
	v.follower.mu.Lock()
	dir := v.follower.dirs[string(c.Dir)]
	v.follower.mu.Unlock()
	if dir == nil {
		return
	}
	if c.Names {
		dir.changes.Add(1)
	}
	if len(c.Name) == 0 {
		v.conn.InvalidateInode(dir.id, false)
		v.dropListing(dir) // its mode may have changed
	} else {
		// Other rules may hide names below a directory that was moved, perhaps to one without a watch.
		if c.IsDir && c.Names && (v.settle(dir, string(c.Name)) || c.Moved) && !v.policy.Load().Uniform() {
			v.dropListings()
		}
		// The dentry in any case: this waits for a LOOKUP in flight, which may have the
		// old result and which the kernel would cache.
		v.conn.InvalidateEntry(dir.id, string(c.Name), !c.Names)
		if c.Names {
			v.conn.InvalidateInode(dir.id, true) // the listing, after what dropListing waits for
		}
		if n := v.child(dir, string(c.Name)); n != nil {
			v.conn.InvalidateInode(n.id, true)
			v.dropListing(n)
		}
	}
	if c.IsDir && !c.Names {
		v.searchable()
	}
	if len(c.Name) > 0 {
		v.echoes.note(dir, string(c.Name), hostChange{c.Names, c.IsDir})
	}
}

// child returns the node at a name, or nil.
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

// dropNames invalidates all dentries. It may block on requests in flight, so it must
// not run on a reader goroutine: it could deadlock.
func (v *View) dropNames() {
	v.editions.Add(1)
	v.dropListings()
	if v.conn.InvalidateEntries() {
		return
	}
	for _, at := range v.nodes.everyName() {
		v.conn.InvalidateEntry(at.parent.id, at.name, true)
	}
}

// permitted invalidates the listing of a directory, and all dentries, after a client has
// changed its mode, owner or ACL. The client holds the directory's lock, so no READDIR is in
// flight.
func (v *View) permitted(n *node) {
	if !n.dir {
		return
	}
	v.searchable()
	if n.listed.Load() != nil {
		v.conn.InvalidateInode(n.id, true)
	}
}

// searchable invalidates all dentries after the search permission of a directory has
// changed. In a private view the kernel does not check that permission itself. It may run on a reader.
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

// dropAll invalidates all dentries, attributes and cached pages. See dropNames.
func (v *View) dropAll() {
	v.dropNames()
	for _, id := range v.nodes.everyID() {
		v.conn.InvalidateInode(id, true)
	}
}

// mute makes the watch ignore writes to a file while clients write it by passthrough:
// fanotify would report each of them. Meanwhile attributes of the file are valid for
// keepBriefly, which bounds how late a write by the host appears.
func (v *View) mute(h *handle, made bool) {
	if v.follower.watch == nil || !h.writes || !h.backed {
		return
	}
	h.muted = true
	f := &v.follower
	f.mu.Lock()
	defer f.mu.Unlock()
	if h.node.muted.Add(1) > 1 {
		return
	}
	if !made { // the kernel caches no attributes of a new file yet
		v.conn.InvalidateInode(h.node.id, false)
	}
	_ = f.watch.Mute(h.file) // without the mark each write is an event, no more
}

// unmute undoes mute, before the file is closed. Attributes that were read meanwhile
// expire after keepBriefly.
func (v *View) unmute(h *handle) {
	if !h.muted {
		return
	}
	f := &v.follower
	f.mu.Lock()
	defer f.mu.Unlock()
	if h.node.muted.Add(-1) == 0 {
		_ = f.watch.Unmute(h.file)
	}
}
