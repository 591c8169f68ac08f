package fs

import (
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// edition identifies what a directory lists. It changes with the names in the directory
// and with the policy.
type edition struct{ all, own uint32 }

func (v *View) edition(dir *node) edition {
	return edition{v.editions.Load(), dir.changes.Load()}
}

// listed describes the last listing of a directory.
type listed struct {
	edition
	cached bool      // the kernel caches it
	whole  bool      // the kernel has the attributes of its entries as well
	since  time.Time // the first open of the directory that may have filled the cache
}

// cacheListing returns the flags for OPENDIR. They let the kernel cache the listing of a
// watched directory (linux fs/fuse/readdir.c) from the second time on, because a cached
// listing costs a GETATTR after each change by clients. The kernel keeps a listing of the
// same edition for up to keepWatched.
//
// The edition of l is older than the entries in the cache. A change after that either
// is a request of this view or arrives as an event of the watch, and the next open
// discards the cache.
func (v *View) cacheListing(dir *node, l *listing) uint32 {
	if dir.watched.Load() == 0 {
		return 0
	}
	old := dir.listed.Load()
	switch {
	case old == nil || old.edition != l.edition:
		dir.listed.Store(&listed{edition: l.edition})
		return 0
	case old.cached && (old.whole || !l.whole) && time.Since(old.since) < keepWatched:
		return fuse.FOPEN_CACHE_DIR | fuse.FOPEN_KEEP_CACHE
	}
	dir.listed.Store(&listed{l.edition, true, l.whole, time.Now()})
	return fuse.FOPEN_CACHE_DIR
}

// everyListed returns the ids of the directories of which the kernel caches a listing.
func (t *tree) everyListed() (ids []uint64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for id, n := range t.byID {
		if l := n.listed.Load(); l != nil && l.cached {
			ids = append(ids, id)
		}
	}
	return ids
}

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
