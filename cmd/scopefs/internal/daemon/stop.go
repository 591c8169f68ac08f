package daemon

import (
	"errors"
	"os"
	"sync"

	"github.com/scopefs/scopefs/audit"
)

// enter counts a request in, so that close can wait for its last event.
func (d *Daemon) enter() (leave func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return nil, errClosing
	}
	d.requests.Add(1)
	return d.requests.Done, nil
}

var errClosing = errors.New("the daemon is ending")

// close ends sandboxes and views, then the log. What in a sandbox waits for its
// view ends only with that: the two go together.
func (d *Daemon) close() {
	d.mu.Lock()
	d.closing = true
	d.mu.Unlock()
	d.log.Hurry()
	d.closeDoors()
	d.sandboxMu.Lock()
	host := d.sandboxes
	d.sandboxMu.Unlock()
	var wg sync.WaitGroup
	if host != nil {
		wg.Go(func() {
			if err := host.Close(); err != nil {
				d.logger.Error("sandboxes", "err", err)
			}
		})
	}
	d.notify("STOPPING=1")
	views := d.allViews()
	down := &progress{d: d, what: "views unmounted", all: len(views)}
	for _, v := range views {
		wg.Go(func() {
			v.down()
			down.step()
		})
	}
	wg.Wait()
	d.groups.dropAll()
	d.unmountLeft()
	d.requests.Wait()
	d.warnings.close()
	d.event(audit.Event{Event: audit.KindDaemon, Outcome: "stopped", PID: os.Getpid()})
	if err := d.log.Close(); err != nil {
		d.logger.Error("audit", "err", err)
	}
	if err := d.unfinished.Close(); err != nil {
		d.logger.Error("state", "err", err)
	}
	if d.guard != nil {
		d.guard.Close()
	}
	d.control.Close()
	os.Remove(d.paths.Socket())
	d.lock.Close()
	if d.base != nil {
		d.base.Close()
	}
}
