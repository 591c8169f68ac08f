package fs

import (
	"sync"
	"time"

	"github.com/scopefs/scopefs/scope"
)

// edition identifies what a directory lists. It changes with the names in the directory
// and with the policy.
type edition struct{ all, own uint32 }

func (v *View) edition(dir *node) edition {
	return edition{v.editions.Load(), dir.changes.Load()}
}

// listed describes the listing of a directory that the kernel may cache.
type listed struct {
	whole bool      // with the attributes of its entries
	since time.Time // when they were read
	drop  sync.Once // see dropListing
}

// cachesListings reports whether the kernel caches listings: see OpenDir.
func (v *View) cachesListings() bool {
	return v.follower.watch != nil && v.opt.Record < scope.RecordAll
}

// listed notes that the kernel may cache a listing from now on. It must run before the view
// reads the entries: a later change then drops the listing.
func (v *View) listed(dir *node, whole bool) {
	if !v.cachesListings() {
		return
	}
	dir.listed.Store(&listed{whole: whole, since: time.Now()})
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

// dropListings makes the kernel discard the listings that chosen accepts. It waits for
// requests in flight, up to dropTime.
func (v *View) dropListings(chosen func(*listed) bool) {
	dirs := v.nodes.everyListed(chosen)
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

// everyListed returns the directories whose listing the kernel may cache, if chosen accepts it.
func (t *tree) everyListed(chosen func(*listed) bool) (dirs []*node) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, n := range t.byID {
		if l := n.listed.Load(); l != nil && chosen(l) {
			dirs = append(dirs, n)
		}
	}
	return dirs
}

func all(*listed) bool { return true }

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

// missed counts lookups of files in directories whose listing the kernel caches without
// valid attributes. Every maxMissed of them discard all such listings: the next listing of
// each directory has attributes.
func (v *View) missed(dir *node) {
	if l := dir.listed.Load(); l == nil || !l.poor() || v.misses.Add(1)%maxMissed != 0 {
		return
	}
	if v.dropping.CompareAndSwap(false, true) {
		v.background.Go(func() {
			v.dropListings((*listed).poor)
			v.dropping.Store(false)
		})
	}
}

const maxMissed = 8

// poor reports whether the kernel has no attributes of the entries.
func (l *listed) poor() bool { return !l.whole || time.Since(l.since) > keepWatched }

// listers predicts for each thread that lists directories whether it will look up the
// entries: ls -l, rm and grep do, find and a shell's globs do not. Attributes that are
// not used cost the kernel an inode for each entry, and missing ones cost a request.
//
// The first listing of a thread has attributes. The next has none, and the lookups that
// follow decide about those after it. A second listing has attributes, too, if lookups have
// followed the last one without, of any thread: a program may list with several threads.
type listers struct {
	mu    sync.Mutex
	slots [64]lister
	last  bare // of all threads
}

type lister struct {
	pid   uint32 // the thread
	bare         // the last directory that it has listed without attributes
	known bool   // a listing without attributes, its own or another thread's, has decided
	whole int    // further listings with attributes until the next one without
}

// bare is a directory that was listed without attributes.
type bare struct {
	dir    *node  // nil: none
	looked uint32 // dir.looked when it was opened
}

// countLooked counts a GETATTR of a file as a lookup in its directories: the kernel has the
// name, and would have the attributes from a listing.
func (v *View) countLooked(n *node) {
	if !n.dir {
		v.nodes.everyParent(n, func(dir *node) bool { dir.looked.Add(1); return true })
	}
}

func (b bare) wasLooked() bool { return b.dir != nil && b.dir.looked.Load() != b.looked }

// probeEvery is how many listings with attributes follow the one after a lookup. A thread
// that looks entries up thus gets one listing in 34 without attributes.
const probeEvery = 32

// wantsPlus reports whether a thread that opens dir probably looks up its entries.
func (s *listers) wantsPlus(pid uint32, dir *node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.slots[pid%uint32(len(s.slots))]
	switch {
	case l.pid != pid:
		*l = lister{pid: pid}
		return true
	case l.whole > 0:
		l.whole--
		return true
	case l.wasLooked(), !l.known && s.last.wasLooked():
		l.whole, l.bare, l.known = probeEvery, bare{}, true
		return true
	}
	l.bare, l.known = bare{dir, dir.looked.Load()}, true
	s.last = l.bare
	return false
}
