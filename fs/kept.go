package fs

import (
	"sync"

	"github.com/scopefs/scopefs/scope/beneath"
)

// keptDirs is the number of directories in kept. Clients that run in parallel, such as
// make -j, use a few at a time.
const keptDirs = 8

// kept holds descriptors of the directories that were used last. A request that finds its
// directory there checks with one Root.Stat that the node's path leads to it now, which
// takes less than half of a walk that opens it. The descriptor itself grants nothing: a
// directory that was moved out of the scope fails the check. An idle view keeps none.
type kept struct {
	mu   sync.Mutex
	dirs [keptDirs]*keptDir
	next int // the slot that the next directory gets
}

// keptDir is an open directory, which its last user closes.
type keptDir struct {
	beneath.Dir
	node  *node
	users int // requests, and one while it is in kept; guarded by kept.mu
}

// take returns the directory of a node, or nil. The caller must check it and call give.
func (k *kept) take(n *node) *keptDir {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, d := range k.dirs {
		if d != nil && d.node == n {
			d.users++
			return d
		}
	}
	return nil
}

// add keeps a directory that the caller has opened and uses. The caller must call give.
func (k *kept) add(n *node, dir beneath.Dir) *keptDir {
	d := &keptDir{Dir: dir, node: n, users: 2}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.clear(k.next)
	k.dirs[k.next] = d
	k.next = (k.next + 1) % keptDirs
	return d
}

// give ends a use of a directory.
func (k *kept) give(d *keptDir) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.release(d)
}

// drop removes the directory of a node, which is not where it was.
func (k *kept) drop(n *node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, d := range k.dirs {
		if d != nil && d.node == n {
			k.clear(i)
		}
	}
}

// dropAll removes all directories.
func (k *kept) dropAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.dirs {
		k.clear(i)
	}
}

// clear empties a slot. The caller holds kept.mu.
func (k *kept) clear(i int) {
	if d := k.dirs[i]; d != nil {
		k.dirs[i] = nil
		k.release(d)
	}
}

func (k *kept) release(d *keptDir) {
	if d.users--; d.users == 0 {
		d.Close()
	}
}
