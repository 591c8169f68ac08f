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
	k.mu.Lock()
	defer k.mu.Unlock()
	if n.kept != nil { // another request has opened it, too
		k.clear(n.kept)
	}
	if old := k.dirs[k.next]; old != nil {
		k.clear(old)
	}
	n.kept = &keptDir{Dir: dir, node: n, slot: k.next, users: 2}
	k.dirs[k.next] = n.kept
	k.next = (k.next + 1) % len(k.dirs)
	return n.kept
}

// give ends a use of a directory.
func (k *kept) give(d *keptDir) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.release(d)
}

// drop removes the directory of a node that the kernel has forgotten, or which is not in
// the scope any more.
func (k *kept) drop(n *node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n.kept != nil {
		k.clear(n.kept)
	}
}

// dropAll removes all directories.
func (k *kept) dropAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, d := range k.dirs {
		if d != nil {
			k.clear(d)
		}
	}
}

// clear removes a directory. The caller holds kept.mu.
func (k *kept) clear(d *keptDir) {
	d.node.kept = nil
	k.dirs[d.slot] = nil
	k.release(d)
}

func (k *kept) release(d *keptDir) {
	if d.users--; d.users == 0 {
		d.Close()
	}
}
