package limit

import (
	"context"
	"time"
)

// Share bounds the processor time that input of one owner takes before a bound of its own holds for it: what comes is
// read, parsed or refused when its estimated time is earned. A nil Share has no bound.
type Share struct {
	pace *Pace  // a token is a microsecond
	next *Slots // the turn to wait for pace: one takes tokens, the others can leave
}

// NewShare returns a share: each is its time in a second, and burst what it has at once.
func NewShare(each, burst time.Duration) *Share {
	return &Share{NewPace(float64(each.Microseconds()), int(burst.Microseconds()), nil), NewSlots(1)}
}

// Wait takes time and returns when it is earned. Callers wait in the order in which they came. If ctx ends first, Wait returns
// ctx's error, and has taken nothing, or of more than the burst what was earned meanwhile.
func (s *Share) Wait(ctx context.Context, time time.Duration) error {
	if s == nil {
		return ctx.Err()
	}
	done, err := s.next.Take(ctx)
	if err != nil {
		return err
	}
	defer done()
	most := s.pace.bucket.Burst()
	for n := int(time.Microseconds()); ; n -= most {
		if err := s.pace.Wait(ctx, nil, n); err != nil || n <= most {
			return err
		}
	}
}

// Spend takes time for what was done already, and returns how much is left. Less than none is a debt, which the
// next caller of Wait waits for.
func (s *Share) Spend(spent time.Duration) (left time.Duration) {
	if s == nil {
		return 0
	}
	most := s.pace.bucket.Burst()
	n := int(spent.Microseconds())
	for ; n > most; n -= most {
		s.pace.Spend(most)
	}
	return time.Duration(s.pace.Spend(n) * float64(time.Microsecond))
}
