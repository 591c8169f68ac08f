package file

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// stopTimeout is how long a request that was cancelled may take to end. One that
// takes longer ends the worker: after a call's end nothing of it happens.
const stopTimeout = 5 * time.Second

// Place is where the worker runs.
type Place interface {
	Exec(ctx context.Context, c sandbox.Command) (*sandbox.Process, error)
}

// Worker is the process in the sandbox that does an agent's file work, as the
// daemon has it. It is started by the first call, and again when it has died.
// Its methods may be called from any goroutine.
type Worker struct {
	// Quick reports whether the changes of a call need not be on the disk before
	// it is answered; nil is no. It is set before the first call.
	Quick func() bool
	// RefusedFrom reports whether the view refused a call's rename for the old name;
	// nil reports no.
	RefusedFrom func(call string) bool
	// Unfinished is for what killed calls leave; nil keeps nothing.
	Unfinished Unfinished

	place     Place
	beatPause time.Duration

	starting chan struct{} // held by who starts it
	mu       sync.Mutex
	conn     *conn
	closed   bool
}

// NewWorker returns a worker that will run in a place.
func NewWorker(place Place) *Worker {
	return &Worker{place: place, beatPause: beatPause, starting: make(chan struct{}, 1)}
}

// Start starts the process, if there is none, so that the first call finds it.
func (w *Worker) Start(ctx context.Context) error {
	_, err := w.connect(ctx)
	return err
}

// Close ends the process and waits until its pipes are closed. Calls fail from
// now on.
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

// current is the process, or nil when there is none that lives.
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

// connect returns the process, started if need be, by one caller at a time.
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
	// The process lives longer than the call that starts it.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	command := sandbox.Command{Argv: []string{sandbox.Self, WorkerArg}, Tag: WorkerArg, Lasting: true}
	p, err := w.place.Exec(life, command)
	if errors.Is(err, sandbox.ErrEnded) && ctx.Err() == nil {
		p, err = w.place.Exec(life, command) // the sandbox ended under it: in the next
	}
	if err == nil && !stop() {
		p.Close()
		err = ctx.Err()
	}
	if err != nil {
		end()
		return nil, fmt.Errorf("start file worker: %w", err)
	}
	c := newConn(pipes{in: p.Stdin, out: p.Stdout, err: p.Stderr, kill: func() { p.Close(); end() }, why: func() error { return causeOf(p) }})
	c.beatPause = w.beatPause
	w.sweep(c)
	return c, w.adopt(c)
}

// causeOf returns what ended a process of whose streams nobody has the other end any more.
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
	case <-time.After(causeTime): // it has closed its streams and lives
		return nil
	}
}

const causeTime = time.Second

// adopt takes a process for the current one.
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

// An operation is one thing that the worker can do.
type operation struct {
	name   string
	repeat bool // may be asked again when the worker died under it
}

// do has the worker do something, for the call of that id.
func do[In, Out any](ctx context.Context, w *Worker, call string, op operation, in In) (out Out, err error) {
	temp, end := w.note(in)
	answered := false
	defer func() { end(answered) }()
	var blob []byte
	if c, ok := any(&in).(carrier); ok {
		blob = c.detach()
	}
	for tries := 0; ; tries++ {
		c, err := w.connect(ctx)
		if err != nil {
			return out, err
		}
		a, err := c.exchange(ctx, request{Call: call, Op: op.name, Args: in, Approved: tools.Approved(ctx), Quick: w.Quick != nil && w.Quick(), Temp: temp}, blob)
		answered = err == nil
		if errors.Is(err, errDied) && op.repeat && tries == 0 && ctx.Err() == nil {
			continue
		}
		if errors.Is(err, errSilent) {
			e := tools.Errorf(tools.Unavailable, "the file worker did not answer and was replaced")
			e.Hint = "call again; of a change, look first whether it was made"
			return out, e.Because(err)
		}
		if errors.Is(err, sandbox.ErrOutOfMemory) {
			e := tools.Errorf(tools.Unavailable, "out of memory: the process of the call was killed")
			e.Hint = "use less memory at a time, or end other processes; of a change, look first whether it was made"
			return out, e.Because(err)
		}
		if err != nil {
			return out, err
		}
		return out, read(c, a, &out)
	}
}

// read takes the result out of an answer. One that is not of its type ends the worker.
func read[Out any](c *conn, a answer, out *Out) error {
	err := errors.New("neither result nor error")
	switch {
	case a.Error != nil && a.Result == nil:
		err = told(a.Error)
		if _, ok := errors.AsType[*tools.Error](err); ok {
			return err
		}
	case a.Error == nil && a.Result != nil:
		if err = strict(a.Result, out); err == nil {
			if b, ok := any(out).(carrier); ok {
				err = b.attach(a.blob)
			} else if len(a.blob) > 0 {
				err = errFrame
			}
		}
	}
	if err != nil {
		*out = *new(Out)
		c.fail(err)
		return fmt.Errorf("file worker: %w", err)
	}
	return nil
}
