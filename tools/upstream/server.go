package upstream

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"
)

// server is one server of an agent, through all its lives.
type server struct {
	name    string
	spec    Spec
	place   Place
	timeout time.Duration // of a start
	pause   time.Duration // the first
	changed func()

	mu       sync.Mutex
	link     *link         // nil: none
	starting chan struct{} // closed when the start under way is over; nil: none
	cancel   func()        // ends the start under way
	missed   bool          // somebody went away while it started
	failures int           // since it was steady
	next     time.Time     // not to be started before
	err      error         // why there is none
	closed   bool
}

// PauseError is the error of a server that failed and is not started again yet.
type PauseError struct {
	Err  error         // why the server failed
	Wait time.Duration // until the next start
}

func (e *PauseError) Error() string {
	return fmt.Sprintf("%v; it may be started again in %v", e.Err, e.Wait.Round(time.Second/10))
}

// Unwrap returns why the server failed.
func (e *PauseError) Unwrap() error { return e.Err }

// connect returns the connection, and starts the server if there is none. The
// start outlives ctx. patient: who asks is told by changed when it is there
// though ctx has ended.
func (s *server) connect(ctx context.Context, patient bool) (*link, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, fmt.Errorf("MCP server %q: %w", s.name, os.ErrClosed)
	}
	s.bury()
	if l := s.link; l != nil {
		s.mu.Unlock()
		return l, nil
	}
	if s.starting == nil {
		if wait := time.Until(s.next); wait > 0 {
			err := &PauseError{Err: s.err, Wait: wait}
			s.mu.Unlock()
			return nil, err
		}
		s.start(ctx)
	}
	started := s.starting
	s.mu.Unlock()
	select {
	case <-started:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.link != nil:
		return s.link, nil
	case s.starting == started:
		s.missed = s.missed || patient
		return nil, fmt.Errorf("MCP server %q still starts: %w", s.name, ctx.Err())
	case s.err == nil: // closed meanwhile
		return nil, fmt.Errorf("MCP server %q: %w", s.name, os.ErrClosed)
	}
	return nil, s.err
}

// start begins a start. The caller holds s.mu.
func (s *server) start(ctx context.Context) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	started := make(chan struct{})
	s.starting, s.cancel, s.err = started, cancel, nil
	go func() {
		l, err := s.open(ctx)
		s.mu.Lock()
		if err == nil && s.closed {
			l.end()
		} else if err == nil {
			s.link = l
		} else {
			s.failed(fmt.Errorf("start MCP server %q: %w", s.name, err))
			cancel()
		}
		s.starting = nil
		tell := s.missed && s.link != nil
		s.missed = false
		s.mu.Unlock()
		close(started)
		if tell {
			s.changed()
		}
	}()
}

// bury forgets a connection that has ended. The caller holds s.mu.
func (s *server) bury() {
	if s.link == nil {
		return
	}
	select {
	case <-s.link.done:
	default:
		return
	}
	if s.link.lived >= steady {
		s.failures = 0
	}
	s.failed(fmt.Errorf("MCP server %q ended: %w", s.name, s.link.err))
	s.link = nil
}

// failed notes why there is no connection. The first failure costs no pause,
// the next ones more and more. The caller holds s.mu.
func (s *server) failed(err error) {
	s.err = err
	s.failures++
	if n := s.failures - 2; n >= 0 {
		s.next = time.Now().Add(min(s.pause<<min(n, 16), longestPause))
	}
}

// close ends the server for good and waits until it is gone.
func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	started, l := s.starting, s.link
	if started != nil {
		s.cancel()
	}
	s.mu.Unlock()
	if started != nil {
		<-started
	}
	if l != nil {
		l.end()
	}
}
