package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file/message"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Tag is the tag of the process in its sandbox.
const Tag = sandbox.FileTag

const (
	// startedTimeout is how long the first request of a process waits for Worker.Started.
	startedTimeout = time.Second
	// causeTimeout bounds the wait for the exit status of a process that has closed its
	// streams.
	causeTimeout = time.Second
	// longest is Worker.Longest.
	longest = 2 * time.Minute
)

var errLongest = errors.New("the file worker took too long")

// Worker is the daemon's end of the worker process. The first request starts the
// process, and a request after its death starts it again. Methods are safe for
// concurrent use.
type Worker struct {
	// Started, if not nil, is called with each new process, with a function that sends it
	// requests. The first request waits for it for at most a second. Set it before the
	// first request.
	Started func(send func(message.Request) error)
	// Beat is the time between two pings of a process with requests in flight; 0 is a
	// second. Set it before the first request.
	Beat time.Duration
	// Longest bounds a request whose process answers pings; 0 is two minutes. Set it before
	// the first request.
	Longest time.Duration

	start Start

	starting chan struct{} // held by the goroutine that starts the process
	mu       sync.Mutex
	conn     *conn
	closed   bool
}

// Start starts a worker process, which outlives ctx.
type Start func(ctx context.Context) (Pipes, error)

// New returns a Worker whose processes start starts.
func New(start Start) *Worker {
	return &Worker{start: start, starting: make(chan struct{}, 1)}
}

// Place is where the worker process runs: a sandbox.
type Place interface {
	Exec(ctx context.Context, c sandbox.Command) (*sandbox.Process, error)
}

// In returns a Start for a place, with the directories that it has at the start.
func In(place Place, dirs func() message.Dirs) Start {
	return func(ctx context.Context) (Pipes, error) {
		life, end := context.WithCancel(context.WithoutCancel(ctx))
		stop := context.AfterFunc(ctx, end)
		command := sandbox.Command{Argv: append([]string{sandbox.FileWorker}, dirs().Args()...), Tag: Tag, Lasting: true}
		p, err := place.Exec(life, command)
		if errors.Is(err, sandbox.ErrEnded) && ctx.Err() == nil {
			p, err = place.Exec(life, command) // the sandbox has ended; the place starts another
		}
		if err == nil && !stop() {
			p.Close()
			err = ctx.Err()
		}
		if err != nil {
			end()
			return Pipes{}, err
		}
		return Pipes{In: p.Stdin, Out: p.Stdout, Err: p.Stderr, Kill: func() { p.Close(); end() }, Why: func() error { return causeOf(p) }}, nil
	}
}

// causeOf returns why a process whose streams are closed ended; nil when it is not known.
func causeOf(p *sandbox.Process) error {
	ended := make(chan error, 1)
	go func() {
		exit, err := p.Wait()
		if err == nil && exit.OutOfMemory {
			err = sandbox.ErrOutOfMemory
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-time.After(causeTimeout): // it has closed its streams and lives
		return nil
	}
}

// Start starts the process, if none runs, so that the first request finds it.
func (w *Worker) Start(ctx context.Context) error {
	_, err := w.connect(ctx)
	return err
}

// Close ends the process and waits until its pipes are closed. Later requests fail.
func (w *Worker) Close() error {
	w.mu.Lock()
	c := w.conn
	w.conn, w.closed = nil, true
	w.mu.Unlock()
	if c == nil {
		return nil
	}
	return c.close()
}

// current returns the running process, or nil.
func (w *Worker) current() (*conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, fmt.Errorf("file worker: %w", sandbox.ErrEnded)
	}
	if w.conn != nil && w.conn.alive() {
		return w.conn, nil
	}
	return nil, nil
}

// connect returns the running process. One caller at a time starts it.
func (w *Worker) connect(ctx context.Context) (*conn, error) {
	if c, err := w.current(); c != nil || err != nil {
		return c, err
	}
	select {
	case w.starting <- struct{}{}:
		defer func() { <-w.starting }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c, err := w.current(); c != nil || err != nil {
		return c, err
	}
	p, err := w.start(ctx)
	if err != nil {
		return nil, fmt.Errorf("start file worker: %w", err)
	}
	c := newConn(p, w.Beat)
	w.started(c)
	return c, w.adopt(c)
}

func (w *Worker) started(c *conn) {
	if w.Started == nil {
		return
	}
	done := make(chan struct{})
	c.done.Go(func() {
		defer close(done)
		w.Started(func(r message.Request) error {
			_, err := c.exchange(context.Background(), r)
			return err
		})
	})
	select {
	case <-done:
	case <-time.After(startedTimeout):
	}
}

// adopt makes a process the current one.
func (w *Worker) adopt(c *conn) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		go c.close()
		return fmt.Errorf("file worker: %w", sandbox.ErrEnded)
	}
	w.conn = c
	return nil
}

// Do sends a request and calls read with its result. With again, a request whose
// process died is sent once more. When read fails, the result is not one that a worker
// may give, and the process is killed. answered reports whether the worker replied.
func (w *Worker) Do(ctx context.Context, r message.Request, again bool, read func(message.Reply) error) (answered bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(w.Longest, longest), errLongest)
	defer cancel()
	for tries := 0; ; tries++ {
		c, err := w.connect(ctx)
		if err != nil {
			return false, unavailable(ctx, err)
		}
		a, err := c.exchange(ctx, r)
		if context.Cause(ctx) == errLongest && (err != nil || a.Error != nil) {
			e := tools.Errorf(tools.Unavailable, "the files did not answer in time: their disk may be frozen")
			e.Hint = "call again later, or for less; of a change, look first whether it was made"
			return err == nil, e.Because(errLongest)
		}
		if errors.Is(err, ErrDied) && again && tries == 0 && ctx.Err() == nil {
			continue
		}
		switch {
		case errors.Is(err, ErrSilent):
			e := tools.Errorf(tools.Unavailable, "the file worker did not answer and was replaced")
			e.Hint = "call again; of a change, look first whether it was made"
			return false, e.Because(err)
		case errors.Is(err, sandbox.ErrOutOfMemory):
			e := tools.Errorf(tools.Unavailable, "out of memory: the process of the call was killed")
			e.Hint = "use less memory at a time, or end other processes; of a change, look first whether it was made"
			return false, e.Because(err)
		case err != nil:
			return false, unavailable(ctx, err)
		}
		return true, accept(c, a, read)
	}
}

// unavailable is the error of a request whose process has ended or cannot be started, as that of a view that is
// being replaced.
func unavailable(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*tools.Error](err); ok || ctx.Err() != nil {
		return err
	}
	e := tools.Errorf(tools.Unavailable, "the process of the call has ended or cannot be started")
	e.Hint = "call again; of a change, look first whether it was made"
	return e.Because(err)
}

// accept checks a reply. One that a worker may not give kills the process.
func accept(c *conn, a message.Reply, read func(message.Reply) error) error {
	err := errors.New("neither result nor error")
	switch {
	case a.Error != nil && len(a.Result) == 0:
		err = trusted(a.Error)
		if _, ok := errors.AsType[*tools.Error](err); ok {
			return err
		}
	case a.Error == nil && len(a.Result) > 0:
		err = read(a)
	}
	if err != nil {
		c.fail(err)
		return fmt.Errorf("file worker: %w", err)
	}
	return nil
}
