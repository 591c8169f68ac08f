package daemon

import (
	"context"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/usage"
)

// quotaTime is how late the event of an agent that comes near a limit of its disk may be.
const quotaTime = time.Second

// watchQuotas records which agents come near a limit of their disk, from the first limit on.
func (d *Daemon) watchQuotas(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-d.limited:
	}
	tick := time.NewTicker(quotaTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for id, q := range d.Views.Quotas.Alarms() {
			outcome := "has room"
			if q.Part() >= usage.HighPart {
				outcome = "nearly full"
				d.Logger.Warn("an agent comes near a limit of its disk", "agent", id, "disk", q.String())
			}
			if a := d.agent(id); a != nil {
				a.Event(audit.Event{Event: audit.KindAgent, Agent: string(id), Op: "disk", Outcome: outcome, Detail: q.String()})
			}
		}
	}
}
