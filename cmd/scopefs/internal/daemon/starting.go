package daemon

import (
	"context"
	"errors"
	"runtime"
	"sync"

	"github.com/scopefs/scopefs/scope"
)

// expect makes agents that are neither mounted nor down "starting" and opens their
// sockets: a client that connects early waits for the view. The caller hands what
// expect returns to mountExpected.
func (d *Daemon) expect(ids []scope.ID) (expected []scope.ID) {
	for _, id := range ids {
		d.mu.Lock()
		_, known := d.failed[id]
		free := !known && d.views[id] == nil && !d.starting[id]
		if free {
			d.starting[id] = true
			expected = append(expected, id)
		}
		d.mu.Unlock()
	}
	for _, id := range expected {
		agent, err := d.defined(id)
		if err != nil {
			continue // and mount says so
		}
		root, owner, err := openScope(d.paths.Base, id, agent.User)
		if err != nil {
			continue
		}
		root.Close()
		if err := d.openDoor(id, owner); err != nil {
			d.logger.Error("tools", "agent", id, "err", err)
		}
	}
	return expected
}

// mountExpected mounts agents' views, several at a time, and returns when all are
// mounted or have failed. It calls done for each, from several goroutines. One
// that the operator takes down meanwhile stays down.
func (d *Daemon) mountExpected(ctx context.Context, ids []scope.ID, done func(scope.ID, error)) {
	queue := make(chan scope.ID)
	var wg sync.WaitGroup
	for range min(len(ids), mountsAtOnce()) {
		wg.Go(func() {
			for id := range queue {
				err := ctx.Err()
				if err == nil {
					_, err = d.mount(ctx, id, "", false)
				}
				d.mu.Lock()
				delete(d.starting, id)
				d.mu.Unlock()
				if err != nil {
					d.closeUnused(ctx, id)
				}
				if !errors.Is(err, errDown) {
					done(id, err)
				}
			}
		})
	}
	for _, id := range ids {
		queue <- id
	}
	close(queue)
	wg.Wait()
}

// closeUnused closes the socket of an agent that has no view.
func (d *Daemon) closeUnused(ctx context.Context, id scope.ID) {
	free, err := d.take(ctx, id)
	if err != nil {
		return // the daemon ends, and closes all
	}
	defer free()
	if d.view(id) == nil {
		d.closeDoor(id)
	}
}

// mountsAtOnce bounds the views that start side by side. To start one is work for
// a processor, in the daemon, in the kernel and in the view, in turns.
func mountsAtOnce() int { return 2 * runtime.GOMAXPROCS(0) }

// unexpect has an agent that waits for its first mount stay down, and reports
// whether it did wait. The caller has the agent's turn.
func (d *Daemon) unexpect(id scope.ID) bool {
	d.mu.Lock()
	waits := d.starting[id]
	if waits {
		delete(d.starting, id)
		d.failed[id] = nil // as of one that has been up: see mount
	}
	d.mu.Unlock()
	if waits {
		d.closeDoor(id)
	}
	return waits
}
