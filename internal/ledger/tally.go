package ledger

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
)

// Tally counts an agent's events of the last minute, its calls that run, and its open connections.
type Tally struct {
	mu      sync.Mutex
	slot    int64             // the number of the present part of a minute
	denials [tallySlots]int64 // by part, modulo tallySlots
	calls   [tallySlots]int64
	running map[string]Call // by the call's id
	open    int64           // connections
}

const (
	tallySlots = 12
	tallyTime  = time.Minute / tallySlots
)

// Count counts an event.
func (t *Tally) Count(e audit.Event, now time.Time) {
	if e.Event == audit.KindNetwork {
		t.connection(e)
	}
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
		t.run(Call{ID: e.Call, Session: e.Session, Tool: e.Op, Chain: e.Chain, Since: now})
	case begun:
		delete(t.running, e.Call)
	default:
		t.calls[at]++ // it was refused
	}
}

// Resume notes a call that goes on, and whose beginning an earlier daemon has counted.
func (t *Tally) Resume(c Call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.run(c)
}

// run notes a call that runs. The caller holds the lock.
func (t *Tally) run(c Call) {
	if t.running == nil {
		t.running = map[string]Call{}
	}
	t.running[c.ID] = c
}

// connection counts a connection that begins or ends.
func (t *Tally) connection(e audit.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Outcome {
	case audit.OutcomeBegin:
		t.open++
	case "end":
		t.open = max(t.open-1, 0)
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

// Call is a call that runs.
type Call struct {
	ID, Session, Tool, Chain string
	Since                    time.Time
}

// maxCalls limits the calls of Counts.
const maxCalls = 64

// Counts are events of an agent.
type Counts struct {
	Denials, Calls, Running int64
	Open                    int64  // connections
	InFlight                []Call // the oldest first
}

// Counts returns the denials and calls of the last minute, and what runs.
func (t *Tally) Counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(time.Now())
	c := Counts{Running: int64(len(t.running)), Open: t.open, InFlight: slices.SortedFunc(maps.Values(t.running), func(a, b Call) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID))
	})}
	c.InFlight = c.InFlight[:min(len(c.InFlight), maxCalls)]
	for i := range tallySlots {
		c.Denials += t.denials[i]
		c.Calls += t.calls[i]
	}
	return c
}
