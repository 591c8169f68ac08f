package fs

import (
	"sync"
	"time"

	"github.com/scopefs/scopefs/scope"
)

// How long the kernel may keep what it was told. While a change by others would
// be seen (watch), the longest is what nobody tells of: stores to a mapping, a
// name that the host gave a file outside and writes to it by.
const (
	keepWatched = time.Minute
	keepBriefly = 20 * time.Millisecond // what a change of would not be seen, though the rest is watched

	batchTime = 5 * time.Millisecond // between two readings of the watch
)

// follower keeps what the kernel remembers in step with the directory below:
// each directory of which it remembers names is watched, and what others change
// there it is told to ask for again. Changes of our own it has made itself.
type follower struct {
	watch *scope.Watch // nil: nothing is watched

	mu   sync.Mutex
	dirs map[string]*node // by the handle that the watch tells
}

// follow watches a directory before the first answer about a name in it.
func (v *View) follow(n *node, dir scope.Dir) {
	f := &v.follower
	if f.watch == nil || n.watched.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	key, err := f.watch.Add(dir)
	if err != nil {
		v.unwatched.Do(func() {
			v.opt.Logger.Warn("a directory cannot be watched: changes by others are seen there after a time", "err", err, "time", v.opt.Timeout)
		})
		return
	}
	n.handle = key
	f.dirs[key] = n
	n.watched.Store(true)
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
	if v.openDir(&p) == nil { // else it is gone, or not ours any more
		_ = f.watch.Remove(p.dir)
		p.dir.Close()
	}
}

// keepName is how long the kernel may remember what stands at a name.
func (v *View) keepName(dir *node) time.Duration {
	if dir.watched.Load() {
		return keepWatched
	}
	return v.opt.Timeout
}

// keepAttr is how long the kernel may remember what a node is.
func (v *View) keepAttr(n *node, st *scope.Stat) time.Duration {
	switch {
	case v.follower.watch == nil:
		return v.opt.Timeout
	case n.dir && n.watched.Load():
		return keepWatched
	case !n.dir && st.Nlink == 1 && n.muted.Load() == 0 && v.nodes.watched(n):
		return keepWatched
	}
	return min(keepBriefly, v.opt.Timeout)
}

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

func (v *View) changed(c scope.Change) {
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
		dir.noACL.Store(false)
		v.conn.dropAttr(dir.id, false)
	} else {
		// The name in any case: that waits for a lookup which is on its way
		// with what was so before, and which the kernel would keep.
		v.conn.dropName(dir.id, string(c.Name))
		if n := v.child(dir, string(c.Name)); n != nil {
			v.conn.dropAttr(n.id, true)
		}
	}
	if c.IsDir && !c.Names && !v.opt.Shared {
		v.dropNames() // who may search it is not asked of the kernel
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

// dropNames makes the kernel ask again for every name.
func (v *View) dropNames() {
	if v.conn.dropNames() {
		return
	}
	for _, at := range v.nodes.everyName() {
		v.conn.dropName(at.parent.id, at.name)
	}
}

// dropAll makes the kernel ask again for everything.
func (v *View) dropAll() {
	v.dropNames()
	for _, id := range v.nodes.everyID() {
		v.conn.dropAttr(id, true)
	}
}

// mute keeps the watch from telling of each write that the kernel does for the
// clients of the view; they know. What others write meanwhile is seen because
// the kernel asks what the file is again and again.
func (v *View) mute(h *handle, made bool) {
	if v.follower.watch == nil || !h.writes || !h.backed {
		return
	}
	h.muted = true
	if h.node.muted.Add(1) == 1 {
		_ = v.follower.watch.Mute(h.file)
		if !made { // of what was just made nothing is kept
			v.conn.dropAttr(h.node.id, false)
		}
	}
}

func (v *View) unmute(h *handle) {
	if h.muted && h.node.muted.Add(-1) == 0 {
		_ = v.follower.watch.Unmute(h.file)
	}
}
