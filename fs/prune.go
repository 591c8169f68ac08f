package fs

import (
	"sync/atomic"
	"syscall"
	"time"
)

// pruneBatch is the number of inodes in one notification.
const pruneBatch = 1024

// pruning is the state of prune.
type pruning struct {
	running atomic.Bool
	stuck   atomic.Bool // all remaining nodes are in use
}

const (
	pruneStep  = 20 * time.Millisecond  // between two looks at what the kernel's FORGET requests have freed
	pruneStuck = 500 * time.Millisecond // without any: all nodes are in use
	pruneRest  = time.Second            // before the next attempt then
	pruneWait  = time.Second            // the longest that an operation waits for room
)

// prune starts a goroutine that makes the kernel forget unused nodes, until the table is
// half full. The caller may hold the table's lock.
func (v *View) prune() {
	if !v.pruning.running.CompareAndSwap(false, true) {
		return
	}
	v.background.Go(func() {
		defer v.pruning.running.Store(false)
		for {
			ids, over := v.nodes.crowded()
			if !over {
				return
			}
			before := len(ids)
			for len(ids) > 0 {
				n := min(len(ids), pruneBatch)
				v.forgetSome(ids[:n])
				ids = ids[n:]
			}
			// The kernel forgets a directory only after the files in it.
			forgotten := func() bool { return v.nodes.count() <= before*9/10 }
			for end := time.Now().Add(pruneStuck); !forgotten() && time.Now().Before(end); {
				if !v.pause(pruneStep) {
					return
				}
			}
			if !forgotten() {
				v.pruning.stuck.Store(true)
				v.pause(pruneRest)
				v.pruning.stuck.Store(false)
				return
			}
		}
	})
}

// pause waits, and reports false when the view has ended.
func (v *View) pause(d time.Duration) bool {
	select {
	case <-v.ended:
		return false
	case <-time.After(d):
		return true
	}
}

// roomy waits up to pruneWait while the node table is full and prune makes progress. It
// fails with ENOMEM.
func (v *View) roomy() error {
	for end := time.Now().Add(pruneWait); v.nodes.full(); time.Sleep(pruneStep / 4) {
		if v.prune(); v.pruning.stuck.Load() || time.Now().After(end) {
			return syscall.ENOMEM
		}
	}
	return nil
}

// forgetSome is one step of prune. Before Linux 6.18 it invalidates the dentries of
// files that are not open.
func (v *View) forgetSome(ids []uint64) {
	if v.conn.Prune(ids) {
		return
	}
	for _, id := range ids {
		if n := v.nodes.get(id); n != nil && !n.dir && !v.files.holds(n, false) {
			if at, ok := v.nodes.onlyName(n); ok {
				v.conn.InvalidateEntry(at.parent.id, at.name, false)
			}
		}
	}
}

// crowded returns the ids of all nodes if the table is more than half full.
func (t *tree) crowded() (ids []uint64, over bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.size <= t.limit/2 {
		return nil, false
	}
	ids = make([]uint64, 0, len(t.byID))
	for id := range t.byID {
		if id != t.root.id {
			ids = append(ids, id)
		}
	}
	return ids, true
}

func (t *tree) count() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.byID)
}

// onlyName returns the name of a node that has exactly one.
func (t *tree) onlyName(n *node) (at nameIn, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if len(n.names.list) != 1 {
		return nameIn{}, false
	}
	return n.names.list[0], true
}
