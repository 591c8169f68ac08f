package session

import (
	"context"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/ledger"
)

// Counts returns the denials and calls of the last minute, and the calls that run.
func (a *Agent) Counts() ledger.Counts { return a.tally.Counts() }

// Event is Shared.Event for what the agent does, over its own channel. What its view has recorded before is in the log before.
func (a *Agent) Event(e audit.Event) {
	a.drainView()
	a.tally.Count(e, time.Now())
	a.event(a.channel(), e)
}

// Record is Shared.Record for what the agent does, in order as Event. Only what is recorded counts.
func (a *Agent) Record(ctx context.Context, e audit.Event) error {
	a.drainView()
	err := record(ctx, a.channel(), e)
	if err == nil {
		a.tally.Count(e, time.Now())
	}
	return err
}

// drainView appends what the view has recorded so far to the log. After an error the view's channel tries again.
func (a *Agent) drainView() {
	if v := a.View(); v != nil {
		_ = v.Drain()
	}
}

// budgetUsed returns a function that logs and records, at most once an hour, that the agent has used up what it may write to the log.
func (a *Agent) budgetUsed() func() {
	var hourly ledger.Hourly
	return func() {
		if hourly.Due() {
			a.Logger.Warn(
				"agent has used up what it may write to the log in a day and is slowed down: see log: agent_day in scopefs.yaml", "agent", a.id)
			a.Event(audit.Event{Event: audit.KindAgent, Agent: string(a.id), Outcome: audit.OutcomeBudget,
				Detail: "its calls and denials are slowed down"})
		}
	}
}
