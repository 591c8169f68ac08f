package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/api"
)

// patience is how much longer a service manager waits after each progress. The daemon
// sends the states of sd_notify(3).
const patience = time.Minute

// extend makes the service manager wait longer.
func (d *Daemon) extend() {
	d.notify(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", patience.Microseconds()))
}

// progress reports to the service manager how much of something is done, and makes it
// wait for the rest. Work without progress gets no more time.
type progress struct {
	d    *Daemon
	what string

	mu        sync.Mutex
	done, all int
	sent      time.Time
}

const sendPause = 500 * time.Millisecond // between two messages about progress

func (p *progress) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	if p.done < p.all && time.Since(p.sent) < sendPause {
		return
	}
	p.sent = time.Now()
	p.d.notify(fmt.Sprintf("STATUS=%s: %d of %d\nEXTEND_TIMEOUT_USEC=%d", p.what, p.done, p.all, patience.Microseconds()))
}

// watchdog reports to the service manager that the daemon is alive, three times in each
// period, while the daemon is healthy. The service manager restarts a daemon without a
// report for a period: WatchdogSec in systemd.service(5).
func (d *Daemon) watchdog(ctx context.Context, period time.Duration) {
	self := api.NewClient(d.Paths)
	tick := time.NewTicker(period / 3)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := self.Health(ctx, period/3); err == nil {
			d.notify("WATCHDOG=1")
		} else if ctx.Err() == nil {
			d.Logger.Error("the daemon is not healthy: the service manager may restart it", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// checkHealth returns when the locks of the daemon, of its agents and views, and of the
// log are free. A log that cannot be written is healthy: a restart does not empty a
// disk, and would end every sandbox.
func (d *Daemon) checkHealth() {
	for _, a := range d.all() {
		a.Responsive()
	}
	_ = d.Log.Err()
}
