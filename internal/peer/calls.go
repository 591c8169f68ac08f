package peer

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrStuck is the error of a cancelled request that was not replied to in time.
var ErrStuck = errors.New("a request did not end when it was cancelled")

// Calls are the requests in flight over one connection, whose replies are of type T. Ids
// start with 1 and are not used twice.
type Calls[T any] struct {
	slots  chan struct{} // nil: any number
	closed chan struct{}

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan T
	cause   error
}

// A Call is one request in flight.
type Call[T any] struct {
	ID    uint64
	Reply <-chan T // gets one value at most

	calls *Calls[T]
}

// NewCalls returns a table for at most max requests at a time; 0 is any number.
func NewCalls[T any](max int) *Calls[T] {
	c := &Calls[T]{closed: make(chan struct{}), waiting: map[uint64]chan T{}}
	if max > 0 {
		c.slots = make(chan struct{}, max)
	}
	return c
}

// NextID returns an id that no Call has, for a message that is not waited for.
func (c *Calls[T]) NextID() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	return c.last
}

// Begin adds a request. While max are in flight it waits until one ends, ctx ends or the
// table is closed. The caller must End the Call.
func (c *Calls[T]) Begin(ctx context.Context) (*Call[T], error) {
	if c.slots != nil {
		select {
		case c.slots <- struct{}{}:
		case <-c.closed:
			return nil, c.Err()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	reply := make(chan T, 1)
	c.mu.Lock()
	c.last++
	call := &Call[T]{ID: c.last, Reply: reply, calls: c}
	c.waiting[call.ID] = reply
	c.mu.Unlock()
	return call, nil
}

// End removes the request. A later reply has no request.
func (c *Call[T]) End() {
	c.calls.mu.Lock()
	delete(c.calls.waiting, c.ID)
	c.calls.mu.Unlock()
	if c.calls.slots != nil {
		<-c.calls.slots
	}
}

// Wait returns the reply. When ctx ends, it calls cancel and waits for the reply for at
// most grace, then returns [ErrStuck]. When the table is closed without a reply, it
// returns the error of Close.
func (c *Call[T]) Wait(ctx context.Context, cancel func(), grace time.Duration) (reply T, err error) {
	select {
	case reply = <-c.Reply:
		return reply, nil
	case <-c.calls.closed:
		return c.late()
	case <-ctx.Done():
	}
	cancel()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case reply = <-c.Reply:
		return reply, nil
	case <-c.calls.closed:
		return c.late()
	case <-timer.C:
		return reply, ErrStuck
	}
}

// late returns a reply that came before the table was closed.
func (c *Call[T]) late() (reply T, err error) {
	select {
	case reply = <-c.Reply:
		return reply, nil
	default:
		return reply, c.calls.Err()
	}
}

// Deliver gives a reply to its request. It reports false for an id that is not in
// flight: of no request, of a request that has its reply, or of one that was ended.
func (c *Calls[T]) Deliver(id uint64, reply T) bool {
	c.mu.Lock()
	ch, ok := c.waiting[id]
	delete(c.waiting, id)
	c.mu.Unlock()
	if ok {
		ch <- reply
	}
	return ok
}

// Waiting returns the number of requests without a reply.
func (c *Calls[T]) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting)
}

// Close ends all requests with an error. It reports whether it was the first Close,
// whose error counts.
func (c *Calls[T]) Close(cause error) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if first = c.cause == nil; first {
		c.cause = cause
		close(c.closed)
	}
	return first
}

// Closed returns a channel that is closed by Close.
func (c *Calls[T]) Closed() <-chan struct{} { return c.closed }

// Err returns the error of Close; nil before.
func (c *Calls[T]) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}
