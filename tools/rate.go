package tools

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/scope"
)

// Rates counts an agent's calls, in all its sessions. The zero value is ready
// and counts in memory; a nil one has no limits.
type Rates struct {
	held    atomic.Int64 // bytes of arguments
	unread  atomic.Int64 // and of answers
	running atomic.Int64 // calls

	store RateStore // nil: what is counted ends with the process

	mu   sync.Mutex
	full Refills // without a store
}

// Refills has, for each limit that is not full, the time when it will be. The key
// is the limit as a definition writes it, or lostKey.
type Refills map[string]time.Time

// lostKey is no limit: its time is that when the kept limits were lost. Each limit
// was reached then.
const lostKey = ""

// RateStore keeps the limits of an agent for the next daemon, and for other
// processes that serve it.
type RateStore interface {
	// Update calls change with what is kept, and keeps what change makes of it.
	// lost reports that what was kept cannot be read. Updates happen one after
	// another, also those of other processes.
	Update(change func(kept Refills, lost bool)) error
}

// NewRates returns rates that a store keeps.
func NewRates(store RateStore) *Rates { return &Rates{store: store} }

// maxHeld bounds the arguments of all calls of an agent that are under way, and
// the answers that wait to be read, in bytes: each session alone may have 32 of
// 8 MiB.
const maxHeld = 64 << 20

// maxAgentRunning bounds the calls of an agent that run at the same time, in all
// its sessions.
const maxAgentRunning = 128

// hold makes room for a call with its arguments, if there is any.
func (r *Rates) hold(size int) (release func(), full string) {
	if r == nil {
		return func() {}, ""
	}
	arguments, ok := room(&r.held, size, maxHeld)
	if !ok {
		return nil, fmt.Sprintf("the arguments of calls under way have %d bytes already", maxHeld)
	}
	running, ok := room(&r.running, 1, maxAgentRunning)
	if !ok {
		arguments()
		return nil, fmt.Sprintf("%d calls are running already", maxAgentRunning)
	}
	return func() { arguments(); running() }, ""
}

// HoldAnswer makes room for an answer of so many bytes, from when it is there
// until its client has read it. It is not ok when the agent's clients have read
// too little of what they got.
func (s *Set) HoldAnswer(size int) (release func(), ok bool) {
	if s.gate.Rates == nil {
		return func() {}, true
	}
	return room(&s.gate.Rates.unread, size, maxHeld)
}

// room adds to what is held, unless it becomes more than the limit.
func room(held *atomic.Int64, size int, limit int64) (release func(), ok bool) {
	if held.Add(int64(size)) > limit {
		held.Add(-int64(size))
		return nil, false
	}
	return func() { held.Add(-int64(size)) }, true
}

// take counts a call against every limit. Where one is reached it returns its
// rule and for how long; nothing is counted then.
func (r *Rates) take(limits []scope.Rate) (rule string, wait time.Duration, err error) {
	if r == nil || len(limits) == 0 {
		return "", 0, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.store == nil {
		if r.full == nil {
			r.full = Refills{}
		}
		rule, wait = r.full.take(limits, time.Now())
		return rule, wait, nil
	}
	err = r.store.Update(func(kept Refills, lost bool) {
		now := time.Now()
		if lost { // how much was used is unknown: all of it
			kept[lostKey] = now
		}
		rule, wait = kept.take(limits, now)
	})
	return rule, wait, err
}

// take is the generic cell rate algorithm (ITU-T I.371): each call puts off by
// Per/N the time when the limit is full again, and a limit that would not be full
// within Per is reached. It is not golang.org/x/time/rate: a Limiter exports no
// state, and a RateStore keeps the state across processes.
func (f Refills) take(limits []scope.Rate, now time.Time) (rule string, wait time.Duration) {
	for limit, full := range f {
		if !full.After(now) && limit != lostKey {
			delete(f, limit)
		}
	}
	next := Refills{}
	for _, l := range limits {
		full := now
		if lost, ok := f[lostKey]; ok && lost.Add(l.Per).After(now) {
			full = lost.Add(l.Per)
		}
		if kept, ok := f[l.String()]; ok {
			full = kept
		}
		if most := now.Add(l.Per); full.After(most) { // the clock was set back
			full = most
		}
		full = full.Add(l.Per / time.Duration(l.N))
		if wait := full.Sub(now.Add(l.Per)); wait > 0 {
			return fmt.Sprintf("rate_limits: %s: %d per %v", l.Pattern, l.N, l.Per), wait
		}
		next[l.String()] = full
	}
	maps.Copy(f, next)
	return "", 0
}
