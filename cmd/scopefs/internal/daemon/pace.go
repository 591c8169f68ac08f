package daemon

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
)

// pace slows an agent down that fills the log, so that it cannot fill the disk
// with it. Nothing is left out: its answers are late.
type pace struct {
	atOnce, rate int // bytes that are not slowed down, and bytes a second thereafter

	mu   sync.Mutex
	paid time.Time // when what was taken so far is earned
}

// wait returns when so many bytes may be written, or hurry is closed. That ctx
// has ended is an error, and then they are not taken.
func (p *pace) wait(ctx context.Context, hurry <-chan struct{}, size int) error {
	cost := time.Duration(size) * time.Second / time.Duration(p.rate)
	now := time.Now()
	p.mu.Lock()
	if p.paid.Before(now) {
		p.paid = now
	}
	p.paid = p.paid.Add(cost)
	late := p.paid.Sub(now) - time.Duration(p.atOnce)*time.Second/time.Duration(p.rate)
	p.mu.Unlock()
	if late <= 0 {
		return nil
	}
	timer := time.NewTimer(late)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-hurry:
	case <-ctx.Done():
		p.mu.Lock()
		p.paid = p.paid.Add(-cost)
		p.mu.Unlock()
		return ctx.Err()
	}
	return nil
}

// paces are those of an agent, over all its clients and its view.
type paces struct{ calls, denials pace }

func newPaces() *paces {
	return &paces{
		calls:   pace{atOnce: 64 << 20, rate: 1 << 20}, // some 50,000 calls, and 900 a second
		denials: pace{atOnce: 256 << 10, rate: 64 << 10},
	}
}

func (d *Daemon) pacesOf(id scope.ID) *paces {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.paces[id] == nil {
		d.paces[id] = newPaces()
	}
	return d.paces[id]
}

// lineBytes is about as long as the line of an event.
func lineBytes(e audit.Event) int {
	const rest = 256 // beside these
	return rest + written(e.Path, 4096) + written(e.Target, 4096) + written(e.Op, 256) + written(e.Rule, 256) + written(e.Detail, 256)
}

// written is about as long as a string is in the log, which bounds it.
func written(s string, most int) int {
	s = audit.Escape(s)
	return min(len(s), most) + min(strings.Count(s, `\`)+strings.Count(s, `"`), most)
}
