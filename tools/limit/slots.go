package limit

import (
	"context"
	"sync"
	"sync/atomic"
)

// Slots bounds how many hold a slot at the same time. A nil Slots has no bound.
type Slots struct{ taken chan struct{} }

// NewSlots returns n free slots.
func NewSlots(n int) *Slots { return &Slots{make(chan struct{}, n)} }

// Take waits for a slot. release frees it and may be called again. The error is
// ctx's.
func (s *Slots) Take(ctx context.Context) (release func(), err error) {
	if s == nil {
		return func() {}, nil
	}
	select {
	case s.taken <- struct{}{}:
		return s.release(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Try is Take without the wait. ok is false when no slot is free.
func (s *Slots) Try() (release func(), ok bool) {
	if s == nil {
		return func() {}, true
	}
	select {
	case s.taken <- struct{}{}:
		return s.release(), true
	default:
		return nil, false
	}
}

func (s *Slots) release() func() { return sync.OnceFunc(func() { <-s.taken }) }

// Budget bounds an amount that is held. The zero value holds nothing.
type Budget struct{ held atomic.Int64 }

// Hold adds n to the sum in use, unless the sum would exceed most. release
// subtracts n again; it is called once.
func (b *Budget) Hold(n int, most int64) (release func(), ok bool) {
	if b.held.Add(int64(n)) > most {
		b.held.Add(-int64(n))
		return nil, false
	}
	return func() { b.held.Add(-int64(n)) }, true
}

// Held returns the amount that is held.
func (b *Budget) Held() int64 { return b.held.Load() }
