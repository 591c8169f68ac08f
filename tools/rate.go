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
	held atomic.Int64 // bytes of arguments

	mu     sync.Mutex
	bucket map[scope.Rate]*rate.Limiter
}

// maxHeld bounds the arguments of all calls of an agent that are under way, in
// bytes: each session alone may have 32 of 8 MiB.
const maxHeld = 64 << 20

// hold makes room for the arguments of a call, if there is any.
func (r *Rates) hold(size int) (release func(), ok bool) {
	if r == nil {
		return func() {}, true
	}
	release = func() { r.held.Add(-int64(size)) }
	if r.held.Add(int64(size)) > maxHeld {
		release()
		return nil, false
	}
	return release, true
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
