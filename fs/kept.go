package fs

import (
	"sync"

	"github.com/scopefs/scopefs/scope/beneath"
)

// keptDirs is the most directories in kept.
const keptDirs = 1024

// fewer returns most, or less if the process may have few descriptors: see HandlesWithin.
func (l Limits) fewer(most int) int {
	if l.Handles > 0 {
		most = max(1, min(most, l.Handles/16))
	}
	return most
}

// kept holds descriptors of the directories that were opened last. A request that finds its
// directory there checks with one Root.Stat that the node's path leads to it now, which
// takes less than half of a walk that opens it. The descriptor itself grants nothing: a
// directory that was moved out of the scope fails the check. If the host has moved it within
// the scope, relocate finds it by the descriptor.
type kept struct {
	mu   sync.Mutex
	dirs []*keptDir // a ring
	next int        // the slot that the next directory gets
}

// keptDir is an open directory, which its last user closes.
type keptDir struct {
	beneath.Dir
	node  *node
	slot  int
	users int // requests, and one while it is in kept; guarded by kept.mu
}

// take returns the directory of a node, or nil. The caller must check it and call give.
func (k *kept) take(n *node) *keptDir {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n.kept != nil {
		n.kept.users++
	}
	return n.kept
}

// add keeps a directory that the caller has opened and uses. The caller must call give.
func (k *kept) add(n *node, dir beneath.Dir) *keptDir {
	d := &keptDir{Dir: dir, node: n, users: 2}
	k.mu.Lock()
	same := k.clear(n.kept) // another request has opened it, too
	oldest := k.clear(k.dirs[k.next])
	n.kept, k.dirs[k.next], d.slot = d, d, k.next
	k.next = (k.next + 1) % len(k.dirs)
	k.mu.Unlock()
	same.close()
	oldest.close()
	return d
}

// give ends a use of a directory.
func (k *kept) give(d *keptDir) {
	k.mu.Lock()
	d = d.release()
	k.mu.Unlock()
	d.close()
}

// drop removes the directory of a node that the kernel has forgotten, or whose descriptor is
// stale.
func (k *kept) drop(n *node) {
	k.mu.Lock()
	d := k.clear(n.kept)
	k.mu.Unlock()
	d.close()
}

// dropAll removes all directories.
func (k *kept) dropAll() {
	for i := range k.dirs {
		k.mu.Lock()
		d := k.clear(k.dirs[i])
		k.mu.Unlock()
		d.close()
	}
}

// clear removes a directory, and returns it if the caller must close it. The caller holds
// kept.mu.
func (k *kept) clear(d *keptDir) *keptDir {
	if d == nil {
		return nil
	}
	d.node.kept = nil
	k.dirs[d.slot] = nil
	return d.release()
}

// release ends a use, and returns the directory after the last. The caller holds kept.mu.
func (d *keptDir) release() *keptDir {
	if d.users--; d.users > 0 {
		return nil
	}
	return d
}

// close closes what clear or release has returned. The caller must not hold kept.mu: the last
// close(2) of a removed directory frees its blocks, which takes ext4 50 ms after 100,000 long
// names.
func (d *keptDir) close() {
	if d != nil {
		d.Close()
	}
}
