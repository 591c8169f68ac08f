// Package ledger accounts for an agent's events in the log: it throttles, counts, completes and merges them.
package ledger

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/tools/limit"
)

// Paces throttle what an agent writes to the log, so that the agent cannot fill the disk. No event is dropped: its answer
// is late. They are those of an agent, over all its clients and its view. What an agent may cause in a day (log: agent_day) earns
// itself over a day: the agent may take it at once, and is then slowed down to that rate. A quarter of it is for denials
// alone, so that they are recorded when the calls have used up theirs.
type Paces struct {
	calls, denials *limit.Pace // of a day; a token is a byte
	flood          *limit.Pace // of denials
}

const day = 24 * 60 * 60 // seconds

// NewPaces returns the paces of an agent that may write so many bytes a day. It calls used when they are used up.
func NewPaces(agentDay int64, used func()) *Paces {
	daily := func(bytes int64) *limit.Pace { return limit.NewPace(float64(bytes)/day, int(bytes), used) }
	return &Paces{
		calls:   daily(agentDay - agentDay/4),
		denials: daily(agentDay / 4),
		flood:   limit.NewPace(64<<10, 256<<10, nil),
	}
}

// Wait returns when an event may be written: see limit.Pace.
func (p *Paces) Wait(ctx context.Context, hurry <-chan struct{}, e audit.Event) error {
	bytes := lineBytes(e)
	if e.Verdict != audit.Deny && e.Verdict != audit.Violation {
		return p.calls.Wait(ctx, hurry, bytes)
	}
	if err := p.flood.Wait(ctx, hurry, bytes); err != nil {
		return err
	}
	return p.denials.Wait(ctx, hurry, bytes)
}

// Settled returns when an event of either kind would not wait. Clients that disconnect do
// not wait, so a caller that starts new ones in their place calls Settled first.
func (p *Paces) Settled(ctx context.Context) error {
	for _, each := range []*limit.Pace{p.calls, p.flood, p.denials} {
		if err := each.Settled(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Spend takes the bytes of events that are no denials without waiting: see limit.Pace.
func (p *Paces) Spend(events ...audit.Event) (left float64) { return p.calls.Spend(size(events)) }

// WaitFor returns when several events that are no denials may be written.
func (p *Paces) WaitFor(ctx context.Context, events ...audit.Event) error {
	return p.calls.Wait(ctx, nil, size(events))
}

func size(events []audit.Event) (bytes int) {
	for _, e := range events {
		bytes += lineBytes(e)
	}
	return bytes
}

// Hourly limits a message to one an hour. The zero value is ready.
type Hourly struct {
	mu   sync.Mutex
	last time.Time
}

// Due reports whether an hour has passed since it last reported true.
func (h *Hourly) Due() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.last) <= time.Hour {
		return false
	}
	h.last = time.Now()
	return true
}

// lineBytes is about as long as the line of an event.
func lineBytes(e audit.Event) int {
	const rest = 256 // beside these
	return rest + written(e.Path, 4096) + written(e.Target, 4096) + written(e.Op, 256) + written(e.Rule, 256) + written(e.Detail, 256) +
		written(e.Trace, 64) + written(e.TraceState, 512)
}

// written is about as long as a string is in the log, which bounds it.
func written(s string, most int) int {
	s = audit.Escape(s)
	return min(len(s), most) + min(strings.Count(s, `\`)+strings.Count(s, `"`), most)
}
