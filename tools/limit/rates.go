package limit

import (
	"maps"
	"sync"
	"time"

	"github.com/scopefs/scopefs/scope"
)

// Rates counts events against rates. The zero value counts in memory. A nil Rates
// has no limits.
type Rates struct {
	Store Store // keeps the counts; nil: they end with the process

	mu   sync.Mutex
	full Refills // without a store
}

// Refills has, for each limit that is not full, the time when it will be. The key
// is the limit as a definition writes it, or lostKey.
type Refills map[string]time.Time

// lostKey is no limit: its time is that when the kept limits were lost. Each limit
// was reached then.
const lostKey = ""

// Store keeps the limits of an agent for the next daemon, and for other
// processes that serve it.
type Store interface {
	// Update calls change with the stored state, and stores the state that change
	// leaves. lost reports that the stored state cannot be read. Updates happen one after
	// another, also those of other processes.
	Update(change func(kept Refills, lost bool)) error
}

// Take counts one event against every limit. If a limit is reached, it counts
// nothing and returns that limit and the time until there is room.
func (r *Rates) Take(limits []scope.Rate) (reached *scope.Rate, wait time.Duration, err error) {
	return r.TakeN(limits, 1)
}

// TakeN is Take for n events at once. More than a limit's N never fit.
func (r *Rates) TakeN(limits []scope.Rate, n int64) (reached *scope.Rate, wait time.Duration, err error) {
	if r == nil || len(limits) == 0 {
		return nil, 0, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Store == nil {
		if r.full == nil {
			r.full = Refills{}
		}
		reached, wait = r.full.take(limits, n, time.Now())
		return reached, wait, nil
	}
	err = r.Store.Update(func(kept Refills, lost bool) {
		now := time.Now()
		if lost { // how much was used is unknown: all of it
			kept[lostKey] = now
		}
		reached, wait = kept.take(limits, n, now)
	})
	return reached, wait, err
}

// take is the generic cell rate algorithm (ITU-T I.371): each event puts off by
// Per/N the time when the limit is full again, and a limit that would not be full
// within Per is reached. It is not golang.org/x/time/rate: a Limiter exports no
// state, and a RateStore keeps the state across processes.
func (f Refills) take(limits []scope.Rate, n int64, now time.Time) (reached *scope.Rate, wait time.Duration) {
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
		full = full.Add(time.Duration(float64(l.Per) * float64(n) / float64(l.N)))
		if wait := full.Sub(now.Add(l.Per)); wait > 0 {
			return &l, wait
		}
		next[l.String()] = full
	}
	maps.Copy(f, next)
	return nil, 0
}
