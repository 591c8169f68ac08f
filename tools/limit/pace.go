package limit

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// Pace is a token bucket that delays and never refuses: what does not fit into the
// bucket waits until it is earned.
type Pace struct {
	bucket *rate.Limiter
	empty  func() // called when a caller has to wait; nil: nothing
}

// NewPace returns a full bucket of burst tokens that earns perSecond. empty is
// called each time a caller has to wait; nil calls nothing.
func NewPace(perSecond float64, burst int, empty func()) *Pace {
	return &Pace{rate.NewLimiter(rate.Limit(perSecond), burst), empty}
}

// Wait takes n tokens, at most a full bucket, and returns when they are earned or
// hurry is closed. If ctx ends first, Wait puts them back and returns ctx's error.
func (p *Pace) Wait(ctx context.Context, hurry <-chan struct{}, n int) error {
	taken := p.bucket.ReserveN(time.Now(), min(n, p.bucket.Burst()))
	late := taken.Delay()
	if late == 0 {
		return nil
	}
	if p.empty != nil {
		p.empty()
	}
	timer := time.NewTimer(late)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-hurry:
	case <-ctx.Done():
		taken.Cancel()
		return ctx.Err()
	}
	return nil
}

// Settled returns when all tokens that were taken are earned.
func (p *Pace) Settled(ctx context.Context) error { return p.Wait(ctx, nil, 0) }

// Spend takes n tokens without waiting, and returns how many are left. Fewer than none
// are a debt, which the next caller of Wait waits for.
func (p *Pace) Spend(n int) (left float64) {
	p.bucket.ReserveN(time.Now(), min(n, p.bucket.Burst()))
	return p.bucket.Tokens()
}
