package session

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/tools/limit"
)

// paces throttle what an agent writes to the log, so that the agent cannot fill the disk. No event is dropped: its answer
// is late. They are those of an agent, over all its clients and its view. What an agent may cause in a day (log: agent_day) earns
// itself over a day: the agent may take it at once, and is then slowed down to that rate. A quarter of it is for denials
// alone, so that they are recorded when the calls have used up theirs.
type paces struct {
	calls, denials *limit.Pace // of a day; a token is a byte
	flood          *limit.Pace // of denials
}

const day = 24 * 60 * 60 // seconds

func newPaces(agentDay int64, used func()) *paces {
	daily := func(bytes int64) *limit.Pace { return limit.NewPace(float64(bytes)/day, int(bytes), used) }
	return &paces{
		calls:   daily(agentDay - agentDay/4),
		denials: daily(agentDay / 4),
		flood:   limit.NewPace(64<<10, 256<<10, nil),
	}
}

// wait returns when an event may be written: see limit.Pace.
func (p *paces) wait(ctx context.Context, hurry <-chan struct{}, e audit.Event) error {
	size := lineBytes(e)
	if e.Verdict != audit.Deny && e.Verdict != audit.Violation {
		return p.calls.Wait(ctx, hurry, size)
	}
	if err := p.flood.Wait(ctx, hurry, size); err != nil {
		return err
	}
	return p.denials.Wait(ctx, hurry, size)
}

// settled returns when an event of either kind would not wait. Clients that disconnect do
// not wait, so a caller that starts new ones in their place calls settled first.
func (p *paces) settled(ctx context.Context) error {
	for _, each := range []*limit.Pace{p.calls, p.flood, p.denials} {
		if err := each.Settled(ctx); err != nil {
			return err
		}
	}
	return nil
}

// budgetUsed returns a function that logs and records, at most once an hour, that the agent has used up what it may write
// to the log.
func (a *Agent) budgetUsed() func() {
	var mu sync.Mutex
	var told time.Time
	return func() {
		mu.Lock()
		late := time.Since(told) > time.Hour
		if late {
			told = time.Now()
		}
		mu.Unlock()
		if late {
			a.Logger.Warn("agent has used up what it may write to the log in a day and is slowed down: see log: agent_day in scopefs.yaml", "agent", a.id)
			a.Event(audit.Event{Event: audit.KindAgent, Agent: string(a.id), Outcome: "log budget used up", Detail: "its calls and denials are slowed down"})
		}
	}
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
