package fs

import (
	"sync"
	"time"

	"github.com/scopefs/scopefs/fs/listing"
	"github.com/scopefs/scopefs/scope"
)

// edition identifies what a directory lists.
func (v *View) edition(dir *node) listing.Edition {
	return listing.Edition{All: v.editions.Load(), Own: dir.changes.Load()}
}

// listed is the listing of a directory that the kernel may cache.
type listed struct{ drop sync.Once }

// cachesListings reports whether the kernel caches listings: see OpenDir.
func (v *View) cachesListings() bool {
	return v.follower.watch != nil && v.opt.Record < scope.RecordAll
}

// listed notes that the kernel may cache a listing from now on. It must run before the view
// reads the entries: a later change then drops the listing.
func (v *View) listed(dir *node) {
	if !v.cachesListings() {
		return
	}
	dir.listed.Store(&listed{})
	watched := func(n *node) bool { return n.watched.Load() != 0 }
	if !watched(dir) || !v.policy.Load().Uniform() && !v.nodes.everyAncestor(dir, watched) {
		v.briefly(dir) // the host may change it, or move it to where other rules hold, without an event
	}
}

// dropListing makes the kernel discard its listing of a directory: its cached pages. The
// kernel reads a directory, and caches what it reads, under a lock that InvalidateEntry
// takes, whatever the name is. InvalidateEntry thus waits for a READDIR in flight, whose
// answer may be older. A reader that continues its listing after that cannot complete the
// kernel's: the first page is missing. It must not run on a reader: it could deadlock.
//
// Linux 6.19 and newer take the lock only for a name that they cache. There a READDIR in
// flight can fill the cache once more, so the view discards the listing again after
// Options.Timeout.
func (v *View) dropListing(dir *node) {
	l := dir.listed.Load()
	if l == nil {
		return
	}
	l.drop.Do(func() { // another call must not return while this one waits
		v.conn.InvalidateEntry(dir.id, anyName, true)
		v.conn.InvalidateInode(dir.id, true)
		dir.listed.CompareAndSwap(l, nil)
		v.briefly(dir)
	})
}

const anyName = "\x7f"

// dropListings makes the kernel discard all listings. It waits for requests in flight, up to
// dropTime.
func (v *View) dropListings() {
	dirs := v.nodes.everyListed()
	for _, dir := range dirs {
		v.conn.InvalidateInode(dir.id, true)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, dir := range dirs {
			v.dropListing(dir)
		}
	}()
	select {
	case <-done:
	case <-time.After(dropTime):
	}
}

const dropTime = time.Second

// everyListed returns the directories whose listing the kernel may cache.
func (t *tree) everyListed() (dirs []*node) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, n := range t.byID {
		if n.listed.Load() != nil {
			dirs = append(dirs, n)
		}
	}
	return dirs
}

// brief holds directories whose listings the view discards after Options.Timeout: those without
// a watch on them or above them, and those of dropListing.
type brief struct {
	mu      sync.Mutex
	dirs    map[*node]bool
	running bool
	ended   bool // the view is unmounted
}

// end makes briefly do nothing.
func (b *brief) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
}

func (v *View) briefly(dir *node) {
	b := &v.brief
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return
	}
	if b.dirs == nil {
		b.dirs = map[*node]bool{}
	}
	b.dirs[dir] = true
	if !b.running {
		b.running = true
		v.background.Go(v.dropBrief)
	}
}

func (v *View) dropBrief() {
	b := &v.brief
	for {
		select {
		case <-v.ended:
			return
		case <-time.After(v.opt.Timeout):
		}
		b.mu.Lock()
		dirs := b.dirs
		b.dirs = nil
		b.running = len(dirs) > 0
		b.mu.Unlock()
		if len(dirs) == 0 {
			return
		}
		for dir := range dirs {
			v.dropListing(dir)
			v.conn.InvalidateInode(dir.id, true) // dropListing may have done nothing
		}
	}
}
