package driver

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/scopefs/scopefs/tools"
)

// openTime bounds the wait of a call for a store that opens.
const openTime = 5 * time.Second

// Lazy opens a store when a call first needs it, and again at the next call if that
// failed. Its methods are safe for concurrent use.
type Lazy[T io.Closer] struct {
	Open func() (T, error) // may block for as long as the disk does

	Gone func(T) bool // whether it must be opened again; nil: never

	mu     sync.Mutex
	now    *attempt[T] // the last one; nil: none, or it failed
	closed bool
}

// attempt is one call of open.
type attempt[T io.Closer] struct {
	done  chan struct{} // closed when store and err are set
	store T
	err   error
}

// Get returns the open store. It waits 5 s at most. The error is for an agent; its
// cause is for the operator.
func (l *Lazy[T]) Get(ctx context.Context) (none T, _ error) {
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	a := l.attempt()
	if a == nil {
		return none, tools.Errorf(tools.Unavailable, "the store is closed")
	}
	err := error(nil)
	select {
	case <-a.done:
		if a.err == nil {
			return a.store, nil
		}
		err = a.err
	case <-ctx.Done():
		err = errors.New("it does not open: the disk does not answer")
	}
	return none, tools.Errorf(tools.Unavailable, "the store cannot be opened").
		Suggest("ask the operator: scopefs stores has the reason").Because(err)
}

// attempt returns the attempt that callers wait for, and starts one if there is none. It
// returns nil after Close.
func (l *Lazy[T]) attempt() *attempt[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone() {
		l.now = nil
	}
	if l.now == nil && !l.closed {
		l.now = &attempt[T]{done: make(chan struct{})}
		go l.try(l.now)
	}
	return l.now
}

// gone reports whether the store was open and is of no more use. The caller holds mu.
func (l *Lazy[T]) gone() bool {
	if l.now == nil || l.Gone == nil {
		return false
	}
	select {
	case <-l.now.done:
		return l.Gone(l.now.store)
	default:
		return false
	}
}

// try opens the store.
func (l *Lazy[T]) try(a *attempt[T]) {
	a.store, a.err = l.Open()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed && a.err == nil {
		a.err = errors.Join(errors.New("the store is closed"), a.store.Close())
	}
	if a.err != nil {
		l.now = nil
	}
	close(a.done)
}

// Opened returns the store if it is open.
func (l *Lazy[T]) Opened() (store T, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now == nil || l.gone() {
		return store, false
	}
	select {
	case <-l.now.done:
		return l.now.store, true
	default:
		return store, false
	}
}

// Close closes the store if it is open. It does not wait for one that opens; that is
// closed when it has opened.
func (l *Lazy[T]) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	a := l.now
	if l.now = nil; a == nil {
		return nil
	}
	select {
	case <-a.done:
		return a.store.Close()
	default:
		return nil
	}
}
