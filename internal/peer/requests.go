package peer

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrStuck is the error of a cancelled request that was not replied to in time.
var ErrStuck = errors.New("a request did not end when it was cancelled")

// Requests are the requests in flight over one connection, whose replies are of type T. Ids
// start with 1 and are not used twice.
type Requests[T any] struct {
	slots  chan struct{} // nil: any number
	closed chan struct{}

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan T
	cause   error
}

// A Pending is one request in flight.
type Pending[T any] struct {
	ID    uint64
	Reply <-chan T // gets one value at most

	of *Requests[T]
}

// NewRequests returns a table for at most max requests at a time; 0 is any number.
func NewRequests[T any](max int) *Requests[T] {
	r := &Requests[T]{closed: make(chan struct{}), waiting: map[uint64]chan T{}}
	if max > 0 {
		r.slots = make(chan struct{}, max)
	}
	return r
}

// NextID returns an id that no Pending has, for a message that is not waited for.
func (r *Requests[T]) NextID() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	return r.last
}

// Begin adds a request. While max are in flight it waits until one ends, ctx ends or the
// table is closed. The caller must End the Pending.
func (r *Requests[T]) Begin(ctx context.Context) (*Pending[T], error) {
	if r.slots != nil {
		select {
		case r.slots <- struct{}{}:
		case <-r.closed:
			return nil, r.Err()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	reply := make(chan T, 1)
	r.mu.Lock()
	r.last++
	p := &Pending[T]{ID: r.last, Reply: reply, of: r}
	r.waiting[p.ID] = reply
	r.mu.Unlock()
	return p, nil
}

// End removes the request. A later reply has no request.
func (p *Pending[T]) End() {
	p.of.mu.Lock()
	delete(p.of.waiting, p.ID)
	p.of.mu.Unlock()
	if p.of.slots != nil {
		<-p.of.slots
	}
}

// graceTicks is the number of ticks by which Wait counts grace. Time that this process was stopped is at most one of them.
const graceTicks = 20

// Wait returns the reply. When ctx ends, it calls cancel and waits for the reply for at
// most grace of this process's time, then returns [ErrStuck]. When the table is closed
// without a reply, it returns the error of Close.
func (p *Pending[T]) Wait(ctx context.Context, cancel func(), grace time.Duration) (reply T, err error) {
	select {
	case reply = <-p.Reply:
		return reply, nil
	case <-p.of.closed:
		return p.late()
	case <-ctx.Done():
	}
	cancel()
	tick := time.NewTicker(grace/graceTicks + 1) // NewTicker panics for 0
	defer tick.Stop()
	for left := graceTicks; left > 0 && grace > 0; left-- {
		select {
		case reply = <-p.Reply:
			return reply, nil
		case <-p.of.closed:
			return p.late()
		case <-tick.C: // it drops those that nobody has taken
		}
	}
	select {
	case reply = <-p.Reply:
		return reply, nil
	default:
		return reply, ErrStuck
	}
}

// late returns a reply that came before the table was closed.
func (p *Pending[T]) late() (reply T, err error) {
	select {
	case reply = <-p.Reply:
		return reply, nil
	default:
		return reply, p.of.Err()
	}
}

// Deliver gives a reply to its request. It reports false for an id that is not in
// flight: of no request, of a request that has its reply, or of one that was ended.
func (r *Requests[T]) Deliver(id uint64, reply T) bool {
	r.mu.Lock()
	ch, ok := r.waiting[id]
	delete(r.waiting, id)
	r.mu.Unlock()
	if ok {
		ch <- reply
	}
	return ok
}

// Waiting returns the number of requests without a reply.
func (r *Requests[T]) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting)
}

// Close ends all requests with an error. It reports whether it was the first Close,
// whose error counts.
func (r *Requests[T]) Close(cause error) (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first = r.cause == nil; first {
		r.cause = cause
		close(r.closed)
	}
	return first
}

// Closed returns a channel that is closed by Close.
func (r *Requests[T]) Closed() <-chan struct{} { return r.closed }

// Err returns the error of Close; nil before.
func (r *Requests[T]) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cause
}
