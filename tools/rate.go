package tools

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/scopefs/scopefs/scope"
)

// Rates counts an agent's calls, in all its sessions. The zero value is ready;
// a nil one has no limits.
type Rates struct {
	held    atomic.Int64 // bytes of arguments
	unread  atomic.Int64 // and of answers
	running atomic.Int64 // calls

	mu     sync.Mutex
	bucket map[scope.Rate]*rate.Limiter
}

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

// take counts a call against every limit that matches. Where one is reached it
// returns its rule and for how long; nothing is counted then.
func (r *Rates) take(limits []scope.Rate, tool string) (rule string, wait time.Duration) {
	if r == nil || len(limits) == 0 {
		return "", 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bucket == nil {
		r.bucket = map[scope.Rate]*rate.Limiter{}
	}
	now := time.Now()
	var taken []*rate.Reservation
	for _, l := range limits {
		if !scope.MatchTool(l.Pattern, tool) {
			continue
		}
		b := r.bucket[l]
		if b == nil {
			b = rate.NewLimiter(rate.Limit(float64(l.N)/l.Per.Seconds()), l.N)
			r.bucket[l] = b
		}
		got := b.ReserveN(now, 1)
		taken = append(taken, got)
		if delay := got.DelayFrom(now); delay > 0 {
			for _, t := range taken {
				t.CancelAt(now)
			}
			return fmt.Sprintf("rate_limits: %s: %d per %v", l.Pattern, l.N, l.Per), delay
		}
	}
	return "", 0
}
