package ledger

import (
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
)

// Tally counts an agent's events of the last minute, and its calls that run.
type Tally struct {
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

// Count counts an event.
func (t *Tally) Count(e audit.Event, now time.Time) {
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
func (t *Tally) turn(now time.Time) int {
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
func (t *Tally) Counts() Counts {
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
