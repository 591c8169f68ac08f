// Package agent is one agent of a daemon: its view, its sockets and their clients,
// its sandboxes and MCP servers, and its limits.
//
// Lock order, outermost first: client.starting, Agent.turn, Agent.mu, view.mu. Nobody
// takes another lock while holding client.mu, servers.mu, group.mu or one in Shared. Nobody holds the mu of two agents. The daemon may hold the
// lock of its registry while it takes Agent.mu; of Registry, only Definition, Activities
// and Welcome are called while Agent.mu is held. Nothing is recorded, and no program or network is waited for, under any
// lock but client.starting, spool.mu and Agent.turn: TestNoEffectUnderLock.
package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/egress"
	"github.com/scopefs/scopefs/tools/limit"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Agent is one agent of a daemon. It lasts as long as the daemon, also while no
// definition of it loads.
type Agent struct {
	*Shared
	id scope.ID

	turn    chan struct{} // holds a value while the view goes up or down: see take
	slots   *limit.Slots  // of clients
	paces   *paces
	rates   *tools.Rates
	traffic *limit.Rates   // of its sandboxes
	doors   *egress.Bounds // what its sandboxes have under way in the network
	group   group
	renames renames

	refusals refusals
	tally    tally

	spool atomic.Pointer[spool] // of the view process; nil: none

	contexts limit.Budget // bytes of the contexts of clients' sessions

	mu       sync.Mutex
	closing  bool // the daemon ends
	view     *view
	starting bool  // waits for its first mount: see Expect
	tried    bool  // a mount was tried, or the operator has unmounted the agent
	failure  error // of the last mount
	granted  *agents.Grants
	sessions map[*sandbox.Session]*Sandbox
	socket   *socket // nil: the tools cannot be used
	clients  map[*client]struct{}
	web      *client  // the one client for all HTTP requests
	requests int      // HTTP requests in flight
	sick     []string // the errors of MCP servers that were logged last
}

// New returns an agent that has no view and no socket.
func New(shared *Shared, id scope.ID) *Agent {
	a := &Agent{
		Shared: shared, id: id,
		turn: make(chan struct{}, 1), slots: limit.NewSlots(maxClients),
		rates:    tools.NewRates(state.RatesOf(shared.Paths.State, id)),
		traffic:  &limit.Rates{Store: state.TrafficOf(shared.Paths.State, id)},
		doors:    egress.NewBounds(egress.Limits{}),
		sessions: map[*sandbox.Session]*Sandbox{}, clients: map[*client]struct{}{},
	}
	a.paces = newPaces(shared.Settings.Log.AgentDay, a.budgetUsed())
	return a
}

// ID returns the agent's id.
func (a *Agent) ID() scope.ID { return a.id }

// definition returns the agent's definition and grants, or why there are none. Each
// decision needs a call of its own: a reload replaces the result.
func (a *Agent) definition() (*agents.Agent, error) { return a.Registry.Definition(a.id) }

// ErrClosing is the error of requests to a daemon that ends.
var ErrClosing = errors.New("the daemon is ending")

// ErrDown is the error of a mount that the operator has not asked for, of an agent
// that the operator has unmounted.
var ErrDown = errors.New("the operator has taken it down")

// Refuse makes the agent refuse new views, sockets and clients from now on.
func (a *Agent) Refuse() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closing = true
}

// Up mounts the agent's view for the operator and returns the mount point. at is
// the mount point; "" is the present one, else the last one, else the agent's own
// directory below the run directory.
func (a *Agent) Up(ctx context.Context, at string) (string, error) {
	v, err := a.up(ctx, at, true)
	if err != nil {
		return "", err
	}
	return v.at, nil
}

// up reads the definition again if it has changed, and mounts the view. Without the
// operator it fails with ErrDown for an agent that the operator has unmounted.
func (a *Agent) up(ctx context.Context, at string, operator bool) (*view, error) {
	a.Registry.Refresh(a.id)
	return a.mount(ctx, at, operator)
}

// mount is up with the definition that is loaded.
func (a *Agent) mount(ctx context.Context, at string, operator bool) (*view, error) {
	def, err := a.definition()
	if err != nil {
		return nil, err
	}
	if at, err = a.target(at); err != nil {
		return nil, err
	}
	free, err := a.take(ctx)
	if err != nil {
		return nil, err
	}
	defer free()
	a.mu.Lock()
	old, tried, failure := a.view, a.tried, a.failure
	a.mu.Unlock()
	if old != nil {
		free() // Down must not wait until the view is mounted
		if old.at != at {
			return nil, fmt.Errorf("%q is mounted at %q: take it down first (scopefs down %s)", a.id, old.at, a.id)
		}
		return old, old.wait(ctx)
	}
	if tried && failure == nil && !operator {
		return nil, ErrDown
	}
	v, err := a.startView(ctx, def.Definition, at)
	a.mu.Lock()
	a.tried, a.failure = true, err
	a.mu.Unlock()
	if err != nil {
		a.Event(audit.Event{Event: audit.KindView, Agent: string(a.id), Outcome: "not mounted", Path: at, Detail: err.Error()})
		return nil, err
	}
	if err := a.openSocket(v.user()); err != nil {
		a.Logger.Error("tools", "agent", a.id, "err", err)
	}
	return v, a.keepMountPoint(at)
}

// take waits for the agent's turn: mounts and unmounts of one agent happen one after
// another. Calling free twice is calling it once.
func (a *Agent) take(ctx context.Context) (free func(), err error) {
	select {
	case a.turn <- struct{}{}:
		return sync.OnceFunc(func() { <-a.turn }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (a *Agent) currentView() *view {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.view
}

// setView replaces the agent's view. The caller holds a.mu.
func (a *Agent) setView(v *view) {
	switch {
	case a.view == nil && v != nil:
		a.views.Add(1)
	case a.view != nil && v == nil:
		a.views.Add(-1)
	}
	a.view = v
}

// target returns the mount point for a request. A view within a scope would hide
// files of that scope, or be the scope of the next view.
func (a *Agent) target(at string) (string, error) {
	if at == "" {
		if v := a.currentView(); v != nil {
			return v.at, nil
		}
		if at = KeptMountPoint(a.Paths, a.id); at == "" {
			at = filepath.Join(a.Paths.Views(), string(a.id))
		}
		return at, nil
	}
	// Without links, as the kernel reports it: proc_pid_mountinfo(5).
	if real, err := filepath.EvalSymlinks(at); err == nil {
		at = real
	} else if dir, err := filepath.EvalSymlinks(filepath.Dir(at)); err == nil {
		at = filepath.Join(dir, filepath.Base(at))
	}
	scopes := filepath.Join(a.Paths.Base, "agents")
	if real, err := filepath.EvalSymlinks(scopes); err == nil {
		scopes = real
	}
	inside := strings.HasPrefix(at+"/", scopes+"/")
	for _, def := range a.Registry.Definitions() {
		inside = inside || def.Dir != "" && strings.HasPrefix(at+"/", def.Dir+"/")
	}
	if inside {
		return "", &api.Error{Kind: api.Invalid, Text: fmt.Sprintf("mount point %q is where the agents' files are: choose another with --at", at)}
	}
	return at, nil
}

// Down ends the agent's clients and sandboxes and unmounts its view.
func (a *Agent) Down(ctx context.Context) error {
	if a.currentView() == nil {
		if _, err := a.definition(); err != nil {
			return err
		}
	}
	free, err := a.take(ctx)
	if err != nil {
		return err
	}
	defer free()
	v := a.currentView()
	if v == nil {
		if a.unexpect() {
			return nil
		}
		return fmt.Errorf("%q is not mounted", a.id)
	}
	a.CloseSocket()
	if err := a.Approvals.Forget(a.id); err != nil {
		a.Logger.Error("approvals", "agent", a.id, "err", err)
	}
	v.down()
	a.Stores.End(a.id)
	a.mu.Lock()
	a.setView(nil)
	a.mu.Unlock()
	a.Event(audit.Event{Event: audit.KindView, Agent: string(a.id), Outcome: "unmounted", Path: v.at})
	return a.keepMountPoint("")
}

// Unmount ends the sandboxes and the view of an agent whose daemon ends.
func (a *Agent) Unmount() {
	if v := a.currentView(); v != nil {
		v.down()
	}
}

// RemoveGroup removes the control group of an agent without processes.
func (a *Agent) RemoveGroup() { a.group.drop() }

// MountPoint returns where the agent's view is; "" when it has none.
func (a *Agent) MountPoint() string {
	if v := a.currentView(); v != nil {
		return v.at
	}
	return ""
}

// State returns the agent's state.
func (a *Agent) State() api.Agent {
	s := a.state()
	for _, session := range a.Sessions() {
		s.Sessions = append(s.Sessions, session.ID)
	}
	return s
}

func (a *Agent) state() api.Agent {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := api.Agent{ID: a.id, State: api.Down}
	switch v := a.view; {
	case v != nil:
		v.mu.Lock()
		s.State, s.Mount, s.ViewPID, s.Hidden = v.state, v.at, v.pid, v.hidden
		if v.err != nil {
			s.Error = v.err.Error()
		}
		v.mu.Unlock()
	case a.starting:
		s.State = api.Starting
	case a.failure != nil:
		s.State, s.Error = api.Failed, a.failure.Error()
	}
	for session := range a.sessions {
		s.Sandboxes = append(s.Sandboxes, session.PID())
	}
	slices.Sort(s.Sandboxes)
	return s
}

// Responsive returns when the locks of the agent and of its view are free.
func (a *Agent) Responsive() {
	if v := a.currentView(); v != nil {
		v.mu.Lock()
		defer v.mu.Unlock()
	}
}

// UpdateLog sends the view whether the log can be written.
func (a *Agent) UpdateLog() {
	v := a.currentView()
	if v == nil {
		return
	}
	v.mu.Lock()
	w := v.wire
	v.mu.Unlock()
	if w != nil {
		_ = v.sendLog(w)
	}
	a.drainSpool()
}
