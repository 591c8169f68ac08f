package egress

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
	"github.com/scopefs/scopefs/tools/egress/tunnel"
)

// A Carrier moves the bytes of the tunnels of one proxy, perhaps in another process, with which the next daemon goes on.
type Carrier interface {
	// Carry begins to move bytes. It owns the sockets of the load, also after an error.
	Carry(Load) (Moving, error)

	// Limit sets where the bytes come from that the tunnels may move. nil: there is no limit.
	Limit(Lease)
}

// A Load is a tunnel that begins.
type Load struct {
	In, Up tunnel.Socket // to the client, and to the host
	Idle   time.Duration // see Limits
	Sent   int64         // bytes that have moved to the host already
	Began  time.Time
	Meta   json.RawMessage // for Left
}

// Lease returns a number of bytes that tunnels may move, or why they may move no more. It may wait for a disk.
type Lease func() (n int64, err error)

// Moving is a tunnel of a Carrier.
type Moving interface {
	// Wait returns when both sides have ended, one has failed, or End was called; with ErrLeft after Leave.
	Wait() (tunnel.Moved, error)

	End()      // ends the tunnel
	Leave()    // leaves the tunnel to the next daemon: End has no effect from then on
	Recorded() // says that the end of the tunnel is in the log
}

// ErrLeft is the error of a tunnel that is left to the next daemon.
var ErrLeft = errors.New("the tunnel is left to the next daemon")

// left is the refusal for ErrLeft: nothing has ended.
var left = &refusal{Message: ErrLeft.Error()}

// carry lets the carrier move the bytes of a tunnel, and waits for its end.
func (p *Proxy) carry(a *access, up socket) *refusal {
	r := p.sendAhead(a, up)
	if r == nil {
		r = p.load(a, up)
	}
	if r != nil {
		a.in.Close()
		return r
	}
	a.in.carried(a.moving)
	return p.await(a)
}

// sendAhead sends the host what was read from the client already.
func (p *Proxy) sendAhead(a *access, up socket) *refusal {
	if len(a.in.ahead) == 0 {
		return nil
	}
	_ = up.SetWriteDeadline(time.Now().Add(p.Limits.Speak))
	n, err := up.Write(a.in.ahead)
	a.in.ahead = nil
	a.sent.Add(int64(n))
	if r := p.spend(int64(n)); r != nil {
		return r
	}
	if err != nil {
		return broken(err)
	}
	return nil
}

func (p *Proxy) load(a *access, up socket) *refusal {
	// A tunnel has no deadlines.
	_, _ = a.in.SetDeadline(time.Time{}), up.SetDeadline(time.Time{})
	text, err := json.Marshal(p.metaOf(a))
	if err == nil {
		a.moving, err = p.Carrier.Carry(Load{In: a.in.socket, Up: up, Idle: p.Limits.Idle, Sent: a.sent.Load(), Began: a.began, Meta: text})
	}
	if err != nil {
		return broken(err)
	}
	return nil
}

// await waits for the end of a tunnel.
func (p *Proxy) await(a *access) *refusal {
	moved, err := a.moving.Wait()
	if errors.Is(err, ErrLeft) {
		return left
	}
	a.in.Close()
	a.sent.Store(moved.Sent)
	a.got.Store(moved.Got)
	a.took = moved.Took
	var stopped *refusal
	switch {
	case errors.As(err, &stopped):
		return stopped
	case err != nil:
		return broken(err)
	}
	return nil
}

func broken(err error) *refusal { return &refusal{Message: "the tunnel broke", cause: err} }

// limitTunnels has the carrier limit tunnels by the current rules.
func (p *Proxy) limitTunnels() {
	if _, bytes := p.limits(); len(bytes) > 0 {
		p.Carrier.Limit(p.lease)
	} else {
		p.Carrier.Limit(nil)
	}
}

// lease is the Lease of the proxy's tunnels: what the meter has, or else as much as it would take.
func (p *Proxy) lease() (n int64, err error) {
	p.meter.mu.Lock()
	defer p.meter.mu.Unlock()
	_, bytes := p.limits()
	switch {
	case len(bytes) == 0: // the rules have changed: Recheck follows
		return maxCharge, nil
	case p.meter.credit > 0:
		n, p.meter.credit = p.meter.credit, 0
		return n, nil
	}
	n, r := p.charge(bytes, 0)
	if r != nil {
		return 0, r
	}
	return n, nil
}

// meta is what the next daemon needs of a tunnel.
type meta struct {
	Agent    scope.ID      `json:"agent"`
	Session  string        `json:"session"`
	Host     string        `json:"host"`
	Port     uint16        `json:"port"`
	Way      Way           `json:"way,omitempty"`
	At       uint16        `json:"at,omitempty"` // see Port
	Rule     string        `json:"rule"`
	Kind     scope.Kind    `json:"kind"`
	Route    network.Route `json:"route"`
	Question *Question     `json:"question,omitempty"` // that the operator has approved
	Call     string        `json:"call,omitempty"`
	Remote   string        `json:"remote"`
	Began    time.Time     `json:"began"`
}

func (p *Proxy) metaOf(a *access) meta {
	m := meta{
		Agent: p.tenant.Agent, Session: p.tenant.Session, Host: a.host, Port: a.port, Way: a.way, At: a.at,
		Rule: a.decision.Rule, Kind: a.decision.Kind,
		Route: a.route, Call: a.in.call, Remote: a.remote, Began: a.began,
	}
	if a.asked.Load() {
		m.Question = &a.question
	}
	return m
}

// Left is a tunnel that an earlier daemon has left.
type Left struct {
	Moving
	Meta json.RawMessage
	Seen bool // it has ended, and that daemon may have recorded its end
}

func (l Left) access(m meta) *access {
	a := &access{
		in: &incoming{call: m.Call}, op: "connect", host: m.Host, port: m.Port, route: m.Route, remote: m.Remote, began: m.Began,
		moving: l.Moving, seen: l.Seen,
	}
	if m.Way != "" {
		a.op, a.way, a.at = string(m.Way), m.Way, m.At
	}
	a.decision.Rule, a.decision.Kind = m.Rule, m.Kind
	if m.Question != nil {
		a.question = *m.Question
		a.asked.Store(true)
	}
	a.in.carried(l.Moving)
	return a
}

// Adopt continues with tunnels that an earlier daemon has left. When it returns, those that the current rules do not allow have
// ended. A proxy that adopts tunnels does not serve.
func (p *Proxy) Adopt(ctx context.Context, all []Left) {
	var denied []chan struct{}
	for _, l := range all {
		var m meta
		_ = json.Unmarshal(l.Meta, &m) // after an error it has no host, which no rule allows
		a, over := l.access(m), make(chan struct{})
		if release, free := p.bounds.connections.Try(); free {
			a.in.hold(release)
		}
		done := p.track(ctx, a, func() { a.in.Close() })
		begun := p.begin(func() {
			defer close(over)
			defer done()
			p.end(ctx, a, p.await(a))
		})
		if begun && a.in.isClosed() {
			denied = append(denied, over)
		}
	}
	for _, over := range denied {
		<-over
	}
}

// EndLeft ends tunnels that an earlier daemon has left of a tenant that is gone, and has that tenant record their ends.
func EndLeft(ctx context.Context, all []Left, gone Tenant) {
	for _, l := range all {
		var m meta
		_ = json.Unmarshal(l.Meta, &m) // as in Adopt
		gone.Agent, gone.Session, gone.Rules = m.Agent, m.Session, func() Rules { return nil }
		New(Options{}, gone).Adopt(ctx, []Left{l})
	}
}

// local moves the bytes of tunnels in this process.
type local struct {
	pipes tunnel.Pipes

	mu    sync.Mutex
	purse *tunnel.Purse
	lease Lease
}

// Limit implements Carrier.
func (l *local) Limit(lease Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.purse == nil {
		l.purse = tunnel.NewPurse(func() { go l.fill() })
	}
	l.lease = lease
	l.purse.Free(lease == nil)
}

// fill answers the purse.
func (l *local) fill() {
	l.mu.Lock()
	lease := l.lease
	l.mu.Unlock()
	if lease == nil {
		return // the purse is free
	}
	if n, err := lease(); err != nil {
		l.purse.Refuse(err)
	} else {
		l.purse.Give(n)
	}
}

// Carry implements Carrier.
func (l *local) Carry(load Load) (Moving, error) {
	m := &localMoving{Tunnel: tunnel.New(load.In, load.Up, load.Idle, l.purse, &l.pipes), ended: make(chan struct{}), began: load.Began}
	m.Sent.Store(load.Sent)
	go func() {
		defer close(m.ended)
		m.err = m.Run()
	}()
	return m, nil
}

// localMoving is a tunnel of this process, with which it ends.
type localMoving struct {
	*tunnel.Tunnel
	began time.Time
	ended chan struct{}
	err   error // when ended is closed
}

// Wait implements Moving.
func (m *localMoving) Wait() (tunnel.Moved, error) {
	<-m.ended
	return tunnel.Moved{Sent: m.Sent.Load(), Got: m.Got.Load(), Took: time.Since(m.began)}, m.err
}

// Leave implements Moving: nothing is left of this process.
func (m *localMoving) Leave() {}

// Recorded implements Moving.
func (m *localMoving) Recorded() {}
