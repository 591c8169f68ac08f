package sql

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sql/engine"
)

const (
	diskTimeout  = 5 * time.Second  // to open an agent's files, and for a killed process to end
	startTimeout = 20 * time.Second // until a process is confined and has opened its database
	sendTimeout  = 10 * time.Second // for one request
	grace        = 2 * time.Second  // to interrupt a statement and roll it back
)

// Process is an engine process and the daemon's ends of its pipes, which must not block:
// deadlines and Close end a Read or Write.
type Process struct {
	In, Out *os.File
	Kill    func()
	Wait    func() error // returns how the process ended
}

// Start starts an agent's engine process. The process outlives ctx.
type Start func(ctx context.Context, agent scope.ID) (*Process, error)

// Engines are the engine processes of the agents. Methods are safe for concurrent use.
type Engines struct {
	start  Start
	limits Limits
	cfg    engine.Config

	mu     sync.Mutex
	agents map[scope.ID]*place
	closed bool
}

// place is where an agent's process is. It lasts as long as the Engines.
type place struct {
	turn chan struct{} // held by the goroutine that uses the process
	idle *time.Timer
	p    *running        // nil: none; guarded by turn
	gone <-chan struct{} // closed when the process before p has ended; guarded by turn

	ending atomic.Int32           // not 0: no process starts
	kill   atomic.Pointer[func()] // ends the process that is now in use
}

// NewEngines returns Engines whose processes start starts.
func NewEngines(start Start, limits Limits) *Engines {
	l := limits.complete()
	return &Engines{start: start, limits: l, cfg: l.Config(), agents: map[scope.ID]*place{}}
}

// Close ends all processes. Later calls fail. It takes 15 s at most, even if a disk does
// not answer.
func (e *Engines) Close() error {
	e.mu.Lock()
	e.closed = true
	places := slices.Collect(maps.Values(e.agents))
	e.mu.Unlock()
	var all sync.WaitGroup
	for _, at := range places {
		all.Go(at.end)
	}
	all.Wait()
	return nil
}

// End ends an agent's process, with the statement that it runs. The next call starts
// another. It takes 15 s at most.
func (e *Engines) End(agent scope.ID) {
	e.mu.Lock()
	at := e.agents[agent]
	e.mu.Unlock()
	if at != nil {
		at.end()
	}
}

// take returns the place of an agent and its turn.
func (e *Engines) take(ctx context.Context, agent scope.ID) (*place, error) {
	at := e.place(agent)
	select {
	case at.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		<-at.turn
		return nil, unavailable("the store is closed", nil)
	}
	return at, nil
}

func (e *Engines) place(agent scope.ID) *place {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := e.agents[agent]
	if at == nil {
		gone := make(chan struct{})
		close(gone)
		at = &place{turn: make(chan struct{}, 1), gone: gone}
		at.idle = time.AfterFunc(time.Hour, at.expire)
		at.idle.Stop()
		e.agents[agent] = at
	}
	return at
}

// expire ends an idle process. A call that has the turn sets the timer again.
func (at *place) expire() {
	select {
	case at.turn <- struct{}{}:
		at.stop()
		<-at.turn
	default:
	}
}

// end ends the process. A statement that runs is killed with it.
func (at *place) end() {
	at.ending.Add(1) // before kill is read: whoever sets kill then sees it
	defer at.ending.Add(-1)
	select {
	case at.turn <- struct{}{}:
	default:
		if kill := at.kill.Load(); kill != nil {
			(*kill)()
		}
		at.turn <- struct{}{} // bounded: every step of do has a deadline
	}
	at.stop()
	<-at.turn
}

// stop ends the process by the end of its input. The caller has the turn.
func (at *place) stop() {
	at.idle.Stop()
	if at.p == nil {
		return
	}
	p := at.p
	at.p = nil
	p.In.Close()
	timer := time.AfterFunc(diskTimeout, p.Kill)
	at.gone = p.wait()
	select {
	case <-at.gone:
	case <-time.After(2 * diskTimeout): // it waits for a disk: see left
	}
	timer.Stop()
}

// drop kills the process, and reports whether it has ended. The caller has the turn.
func (at *place) drop() bool {
	at.p.Kill()
	at.p.In.Close()
	at.gone = at.p.wait()
	at.p = nil
	return at.left()
}

// left reports whether the process before has ended. One that waits for a disk does not,
// though it was killed. Until it has, no other one starts: an agent has at most one.
func (at *place) left() bool {
	select {
	case <-at.gone:
		return true
	case <-time.After(diskTimeout):
		return false
	}
}

// Do sends a request to the agent's process and returns its reply. One request of an
// agent runs at a time.
func (e *Engines) Do(ctx context.Context, agent scope.ID, r engine.Request) (reply engine.Reply, err error) {
	at, err := e.take(ctx, agent)
	if err != nil {
		return reply, err
	}
	defer func() { <-at.turn }()
	at.idle.Stop()
	defer at.idle.Reset(e.limits.Idle)
	if err := tools.Still(ctx); err != nil {
		return reply, err
	}
	for tries := 0; ; tries++ {
		old := at.p != nil
		if !old {
			if at.p, err = e.begin(ctx, at, agent); err != nil {
				return reply, err
			}
		}
		at.kill.Store(&at.p.Kill)
		if at.ending.Load() > 0 {
			return reply, unavailable("the database's process was ended", nil)
		}
		var sent bool
		reply, sent, err = at.p.exchange(ctx, &r, e.limits.Timeout+grace)
		if err == nil {
			return e.check(at, &r, reply)
		}
		if errors.Is(err, peer.ErrTooLarge) && !sent {
			return reply, tools.Errorf(tools.TooLarge, "the statement and its values have more than %d bytes", engine.MaxFrame)
		}
		if !at.drop() {
			return reply, stuck(err)
		}
		harmless := !sent || r.Op == engine.Query || r.Op == engine.Tables
		if ctx.Err() == nil && at.ending.Load() == 0 && old && harmless && tries == 0 && !errors.Is(err, os.ErrDeadlineExceeded) {
			continue // it died while it was idle
		}
		return reply, lost(ctx, err, e.limits.Timeout)
	}
}

// stuck is the error of a call whose files or process wait for the disk.
func stuck(cause error) error {
	return tools.Errorf(tools.Unavailable, "the database's disk does not answer").
		Suggest("try again later; of a change, look first whether it was made").Because(cause)
}

// lost returns the error of a request whose process was killed or died.
func lost(ctx context.Context, err error, timeout time.Duration) error {
	const look = "of a change, look first whether it was made"
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return tools.Errorf(tools.TooLarge, "the statement ran longer than %v and was ended", timeout).
			Suggest("make it smaller; " + look).Because(err)
	}
	return tools.Errorf(tools.Unavailable, "the database's process ended").Suggest("call again; " + look).Because(err)
}

func unavailable(message string, cause error) error {
	return tools.Errorf(tools.Unavailable, "%s", message).Because(cause)
}

// check checks a reply, whose process runs hostile statements. One that no engine gives
// ends the process.
func (e *Engines) check(at *place, r *engine.Request, reply engine.Reply) (engine.Reply, error) {
	reply, err := Check(r, reply)
	if errors.Is(err, errNonsense) {
		at.drop()
	}
	return reply, err
}

// running is a process that is confined.
type running struct {
	*Process
	w *peer.Writer
	r *peer.Reader
}

// begin starts a process and waits until it is confined.
func (e *Engines) begin(ctx context.Context, at *place, agent scope.ID) (*running, error) {
	process, err := e.launch(ctx, at, agent)
	if err != nil {
		return nil, err
	}
	p := &running{process, peer.NewWriter(process.In, engine.MaxFrame, sendTimeout), peer.NewReader(process.Out, engine.MaxFrame)}
	stop := context.AfterFunc(ctx, p.Kill)
	defer stop()
	_ = p.Out.SetReadDeadline(time.Now().Add(startTimeout))
	var ready engine.Reply
	if err = engine.Send(p.w, e.cfg); err == nil {
		err = engine.Receive(p.r, &ready)
	}
	switch {
	case err != nil:
	case ready.Error != nil:
		err = ready.Error
	case len(ready.Means) == 0:
		err = errors.New("it is not confined")
	}
	if err == nil {
		return p, nil
	}
	at.p = p
	switch ended := at.drop(); {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case !ended:
		return nil, stuck(err)
	}
	return nil, unavailable("the database's process does not start", err)
}

// launch starts a process when the one before has ended.
func (e *Engines) launch(ctx context.Context, at *place, agent scope.ID) (*Process, error) {
	if !at.left() {
		return nil, stuck(errors.New("the process before has not ended"))
	}
	type result struct {
		*Process
		err error
	}
	started, gone := make(chan result, 1), make(chan struct{})
	go func() {
		p, err := e.start(ctx, agent) // blocks as long as the disk does
		started <- result{p, err}
	}()
	err := stuck(errors.New("its files cannot be opened"))
	select {
	case r := <-started:
		if r.err != nil {
			return nil, unavailable("the database's process does not start", r.err)
		}
		return r.Process, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(diskTimeout):
	}
	at.gone = gone
	go func() {
		defer close(gone)
		if r := <-started; r.err == nil {
			r.Kill()
			<-r.wait()
		}
	}()
	return nil, err
}

// exchange sends a request and reads its reply. When ctx ends, it kills the process:
// SQLite rolls the statement back when the database is next opened. sent reports whether
// the process may have the request.
func (p *running) exchange(ctx context.Context, r *engine.Request, wait time.Duration) (reply engine.Reply, sent bool, err error) {
	stop := context.AfterFunc(ctx, p.Kill)
	defer stop()
	if err := engine.Send(p.w, r); err != nil {
		return reply, false, err
	}
	_ = p.Out.SetReadDeadline(time.Now().Add(wait))
	err = engine.Receive(p.r, &reply)
	if errors.Is(err, io.EOF) {
		err = errors.Join(errors.New("it closed its output"), err)
	}
	return reply, true, err
}

// wait waits for the process beside the caller, and then closes the pipes.
func (p *Process) wait() (gone <-chan struct{}) {
	ended := make(chan struct{})
	go func() {
		_ = p.Wait()
		p.In.Close()
		p.Out.Close()
		close(ended)
	}()
	return ended
}
