package sql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sql/engine"
)

const (
	startTimeout = 20 * time.Second // until a process is confined and has opened its database
	sendTimeout  = 10 * time.Second // for one request
	grace        = 2 * time.Second  // to interrupt a statement and roll it back
	endTimeout   = 5 * time.Second  // of a process whose input has ended
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

// place is where an agent's process is.
type place struct {
	turn chan struct{} // held by the goroutine that uses the process
	idle *time.Timer
	p    *running // nil: none; guarded by turn
	gone bool     // it is not in Engines.agents any more; guarded by turn

	ending atomic.Bool            // no process starts any more
	kill   atomic.Pointer[func()] // ends the process that is now in use
}

// NewEngines returns Engines whose processes start starts.
func NewEngines(start Start, limits Limits) *Engines {
	l := limits.complete()
	return &Engines{start: start, limits: l, agents: map[scope.ID]*place{}, cfg: engine.Config{
		FileBytes: l.FileBytes, ValueBytes: l.ValueBytes, SQLBytes: maxSQL, PageBytes: l.PageBytes, Memory: l.Memory, Timeout: l.Timeout,
	}}
}

// Close ends all processes. Later calls fail.
func (e *Engines) Close() error {
	e.mu.Lock()
	e.closed = true
	places := e.agents
	e.agents = map[scope.ID]*place{}
	e.mu.Unlock()
	var all sync.WaitGroup
	for _, at := range places {
		all.Go(at.end)
	}
	all.Wait()
	return nil
}

// End ends an agent's process, with the statement that it runs. The next call starts
// another.
func (e *Engines) End(agent scope.ID) {
	e.mu.Lock()
	at := e.agents[agent]
	delete(e.agents, agent)
	e.mu.Unlock()
	if at != nil {
		at.end()
	}
}

// Running returns the number of agents with a process, or that start one.
func (e *Engines) Running() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.agents)
}

// take returns the place of an agent and its turn.
func (e *Engines) take(ctx context.Context, agent scope.ID) (*place, error) {
	for {
		at, err := e.place(agent)
		if err != nil {
			return nil, err
		}
		select {
		case at.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if !at.gone {
			return at, nil
		}
		<-at.turn // it was ended meanwhile
	}
}

func (e *Engines) place(agent scope.ID) (*place, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, unavailable("the store is closed", nil)
	}
	at := e.agents[agent]
	if at == nil {
		at = &place{turn: make(chan struct{}, 1)}
		at.idle = time.AfterFunc(time.Hour, func() { e.expire(agent, at) })
		at.idle.Stop()
		e.agents[agent] = at
	}
	return at, nil
}

// expire ends an idle process. A call that has the turn sets the timer again.
func (e *Engines) expire(agent scope.ID, at *place) {
	select {
	case at.turn <- struct{}{}:
	default:
		return
	}
	e.mu.Lock()
	if e.agents[agent] == at {
		delete(e.agents, agent)
	}
	e.mu.Unlock()
	at.stop()
	<-at.turn
}

// end ends the process. A statement that runs is killed with it.
func (at *place) end() {
	at.ending.Store(true) // before kill is read: whoever sets kill then sees it
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

// stop ends the process of a place for good. The caller has the turn.
func (at *place) stop() {
	at.gone = true
	at.idle.Stop()
	if at.p != nil {
		at.p.close()
		at.p = nil
	}
}

// do sends a request to the agent's process and returns its reply. One request of an
// agent runs at a time.
func (e *Engines) do(ctx context.Context, agent scope.ID, r engine.Request) (reply engine.Reply, err error) {
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
			if at.p, err = e.begin(ctx, agent); err != nil {
				return reply, err
			}
		}
		at.kill.Store(&at.p.Kill)
		if at.ending.Load() {
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
		at.p.end()
		at.p = nil
		harmless := !sent || r.Op == engine.Query || r.Op == engine.Tables
		if ctx.Err() == nil && !at.ending.Load() && old && harmless && tries == 0 && !errors.Is(err, os.ErrDeadlineExceeded) {
			continue // it died while it was idle
		}
		return reply, lost(ctx, err, e.limits.Timeout)
	}
}

// lost returns the error of a request whose process was killed or died.
func lost(ctx context.Context, err error, timeout time.Duration) error {
	const look = "of a change, look first whether it was made"
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		e := tools.Errorf(tools.TooLarge, "the statement ran longer than %v and was ended", timeout)
		e.Hint = "make it smaller; " + look
		return e.Because(err)
	}
	e := tools.Errorf(tools.Unavailable, "the database's process ended")
	e.Hint = "call again; " + look
	return e.Because(err)
}

func unavailable(message string, cause error) error {
	return tools.Errorf(tools.Unavailable, "%s", message).Because(cause)
}

// check checks a reply, whose process runs hostile statements. One that no engine gives
// ends the process.
func (e *Engines) check(at *place, r *engine.Request, reply engine.Reply) (engine.Reply, error) {
	err := error(nil)
	switch {
	case reply.Error != nil:
		if err = e.errorOf(reply.Error); err != nil {
			return engine.Reply{}, err
		}
		err = fmt.Errorf("unknown code %.40q", reply.Error.Code)
	case len(reply.Rows) > r.Limit || len(reply.Tables) > r.Limit:
		err = errors.New("too many rows")
	}
	for _, row := range reply.Rows {
		if len(row) != len(reply.Columns) {
			err = errors.New("a row with too few or many values")
		}
	}
	if err == nil {
		return reply, nil
	}
	at.p.end()
	at.p = nil
	return engine.Reply{}, unavailable("the database's process answered nonsense and was ended", err)
}

// errorOf returns the agent's form of an engine's error; nil for an unknown code.
func (e *Engines) errorOf(from *engine.Error) error {
	codes := map[engine.Code]tools.Code{engine.Invalid: tools.Invalid, engine.Conflict: tools.Conflict, engine.TooLarge: tools.TooLarge, engine.Busy: tools.Unavailable}
	message, hint := tools.Clip(tools.Clean(from.Message), 500), tools.Clip(tools.Clean(from.Hint), 200)
	switch from.Code {
	case engine.Denied:
		return denied(message, hint)
	case engine.Failed:
		return unavailable("the database cannot be used", errors.New(from.Message))
	}
	code, ok := codes[from.Code]
	if !ok {
		return nil
	}
	err := tools.Errorf(code, "%s", message)
	err.Hint = hint
	return err
}

// running is a process that is confined.
type running struct {
	*Process
	w *peer.Writer
	r *peer.Reader
}

// begin starts a process and waits until it is confined.
func (e *Engines) begin(ctx context.Context, agent scope.ID) (*running, error) {
	process, err := e.start(ctx, agent)
	if err != nil {
		return nil, unavailable("the database's process does not start", err)
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
	p.end()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, unavailable("the database's process does not start", err)
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

// end ends the process at once.
func (p *Process) end() {
	p.Kill()
	p.In.Close()
	p.Out.Close()
	_ = p.Wait()
}

// close ends the process by the end of its input.
func (p *running) close() {
	p.In.Close()
	timer := time.AfterFunc(endTimeout, p.Kill)
	_ = p.Wait()
	timer.Stop()
	p.Out.Close()
}
