package upstream

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/scopefs/scopefs/tools/limit"
)

// server is an MCP server of an agent, across its restarts.
type server struct {
	name      string
	spec      Spec
	sandboxes Sandboxes
	timeout   time.Duration // of a start
	pause     time.Duration // before the first delayed restart
	changed   func()
	share     *limit.Share

	mu       sync.Mutex
	conn     *conn         // nil: not connected
	starting chan struct{} // closed at the end of the current start; nil: no start
	cancel   func()        // cancels the current start
	missed   bool          // a listing gave up during the current start
	failures int           // in a row
	next     time.Time     // earliest next start
	err      error         // of the last failure
	closed   bool
}

// PauseError is the error of a server that failed and may not be started again
// yet. The pause after failures is a second, and doubles up to a minute.
type PauseError struct {
	Err  error         // the server's failure
	Wait time.Duration // until the next start is allowed
}

func (e *PauseError) Error() string {
	return fmt.Sprintf("%v; it may be started again in %v", e.Err, e.Wait.Round(time.Second/10))
}

// Unwrap returns the server's failure.
func (e *PauseError) Unwrap() error { return e.Err }

// connect returns the connection, and starts the server if it is not connected.
// The start outlives ctx. With notify, changed is called if the server starts after
// ctx has ended.
func (s *server) connect(ctx context.Context, notify bool) (*conn, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, fmt.Errorf("MCP server %q: %w", s.name, os.ErrClosed)
	}
	s.reap()
	if c := s.conn; c != nil {
		s.mu.Unlock()
		return c, nil
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
	case s.conn != nil:
		return s.conn, nil
	case s.starting == started:
		s.missed = s.missed || notify
		return nil, fmt.Errorf("MCP server %q is still starting: %w", s.name, ctx.Err())
	case s.err == nil: // close was called
		return nil, fmt.Errorf("MCP server %q: %w", s.name, os.ErrClosed)
	}
	return nil, s.err
}

// startError is the error of a server that did not start. It may name what the operator has written: the program, its
// directory, what the sandbox shows.
type startError struct {
	server string
	err    error
}

func (e *startError) Error() string { return fmt.Sprintf("start MCP server %q: %v", e.server, e.err) }
func (e *startError) Unwrap() error { return e.err }

// start starts the server in a goroutine. The caller holds s.mu.
func (s *server) start(ctx context.Context) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	started := make(chan struct{})
	s.starting, s.cancel, s.err = started, cancel, nil
	go func() {
		c, err := s.open(ctx)
		s.mu.Lock()
		if err == nil && s.closed {
			c.end()
		} else if err == nil {
			s.conn = c
		} else {
			s.failed(&startError{s.name, err})
			cancel()
		}
		s.starting = nil
		notify := s.missed && s.conn != nil
		s.missed = false
		s.mu.Unlock()
		close(started)
		if notify {
			s.changed()
		}
	}()
}

// reap removes a connection that has ended and records the failure. The caller
// holds s.mu.
func (s *server) reap() {
	if s.conn == nil {
		return
	}
	select {
	case <-s.conn.done:
	default:
		return
	}
	if s.conn.lived >= steady {
		s.failures = 0
	}
	s.failed(fmt.Errorf("MCP server %q ended: %w", s.name, s.conn.err))
	s.conn = nil
}

// failed records a failure. The first failure delays no start; each further one in
// a row doubles the pause. The caller holds s.mu.
func (s *server) failed(err error) {
	s.err = err
	s.failures++
	if n := s.failures - 2; n >= 0 {
		s.next = time.Now().Add(min(s.pause<<min(n, 16), longestPause))
	}
}

// close stops the server, rejects later starts and waits until it has exited.
func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	started, c := s.starting, s.conn
	if started != nil {
		s.cancel()
	}
	s.mu.Unlock()
	if started != nil {
		<-started
	}
	if c != nil {
		c.end()
	}
}
