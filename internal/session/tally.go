package session

import (
	"context"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
)

// tally counts an agent's events of the last minute, and its calls that run.
type tally struct {
	mu      sync.Mutex
	slot    int64             // the number of the present part of a minute
	denials [tallySlots]int64 // by part, modulo tallySlots
	calls   [tallySlots]int64
	running map[string]string // the tool, by the call's id
}

const (
	tallySlots = 12
	tallyTime  = time.Minute / tallySlots
)

// count counts an event.
func (t *tally) count(e audit.Event, now time.Time) {
	denied := e.Verdict == audit.Deny || e.Verdict == audit.Violation
	call := e.Event == audit.KindCall
	if !denied && !call {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.turn(now)
	if denied {
		t.denials[at] += 1 + e.Unrecorded
		if e.Outcome == "repeated" {
			t.denials[at]--
		}
	}
	switch _, begun := t.running[e.Call]; {
	case !call:
	case e.Outcome == audit.OutcomeBegin:
		t.calls[at]++
		if t.running == nil {
			t.running = map[string]string{}
		}
		t.running[e.Call] = e.Op
	case begun:
		delete(t.running, e.Call)
	default:
		t.calls[at]++ // it was refused
	}
}

// turn drops the parts that are older than a minute, and returns the present one. The
// caller holds the lock.
func (t *tally) turn(now time.Time) int {
	slot := now.UnixNano() / int64(tallyTime)
	for i := max(t.slot+1, slot-tallySlots+1); i <= slot; i++ {
		t.denials[i%tallySlots], t.calls[i%tallySlots] = 0, 0
	}
	t.slot = max(t.slot, slot)
	return int(t.slot % tallySlots)
}

// Counts are events of an agent.
type Counts struct{ Denials, Calls, Running int64 }

// Counts returns the denials and calls of the last minute, and the calls that run.
func (a *Agent) Counts() Counts {
	t := &a.tally
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(time.Now())
	c := Counts{Running: int64(len(t.running))}
	for i := range tallySlots {
		c.Denials += t.denials[i]
		c.Calls += t.calls[i]
	}
	return c
}

// Event is Shared.Event for an event of the agent. What its view has recorded before is in
// the log before.
func (a *Agent) Event(e audit.Event) {
	a.drainView()
	a.tally.count(e, time.Now())
	a.Shared.Event(e)
}

// Record is Shared.Record for an event of the agent, in order as Event. Only what is recorded counts.
func (a *Agent) Record(ctx context.Context, e audit.Event) error {
	a.drainView()
	err := a.Shared.Record(ctx, e)
	if err == nil {
		a.tally.count(e, time.Now())
	}
	return err
}

// drainView appends what the view has recorded so far to the log. After an error the view's
// channel tries again.
func (a *Agent) drainView() {
	if v := a.View(); v != nil {
		_ = v.Drain()
	}
}
