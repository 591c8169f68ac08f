// Package agent is the life of one agent of a daemon: its view goes up and down, and its definition changes. What happens
// on the view is its session.Agent.
//
// Lock order, outermost first: Agent.turn, Agent.homing, Agent.mu, then the locks of packages session and view. Nobody holds the mu of two
// agents. The daemon may hold the lock of its registry while it takes Agent.mu; of Registry, only Definition is called while
// Agent.mu is held. Nothing is recorded, and no program or network is waited for, under Agent.mu: TestNoEffectUnderLock.
package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools/limit"
)

// Agent is one agent of a daemon. It lasts as long as the daemon, also while no
// definition of it loads.
type Agent struct {
	*session.Agent
	shared *Shared

	requests *limit.Slots // by HTTP
	leaving  atomic.Bool  // see Leave
	remounts atomic.Bool  // see unused

	turn     chan struct{} // holds a value while the view goes up or down: see take
	freezing chan struct{} // holds a value while the view is frozen: see freeze

	homing sync.Mutex // guards home; held while its view starts, not until it is mounted
	home   *view.View // of the agent's HOME; nil: none

	mu       sync.Mutex
	closing  bool // the daemon ends
	view     *view.View
	starting bool  // waits for its first mount: see Expect
	tried    bool  // a mount was tried, or the operator has unmounted the agent
	failure  error // of the last mount

	lingering []<-chan struct{} // processes of former views: see view.View.Lingering
	granted   *agents.Grants
	offline   *offline
}

// New returns an agent that has no view and no socket.
func New(shared *Shared, id scope.ID) *Agent {
	a := &Agent{shared: shared, requests: limit.NewSlots(MaxRequests), turn: make(chan struct{}, 1), freezing: make(chan struct{}, 1)}
	a.Agent = session.New(&shared.Shared, requests{a}, shared.own(id))
	return a
}

// MaxRequests bounds the HTTP requests in flight of one agent: its 32 calls, and as
// many clients' streams.
const MaxRequests = 64

// BeginRequest counts an HTTP request in. ok is false when too many are in flight; else the caller calls end.
func (a *Agent) BeginRequest() (end func(), ok bool) { return a.requests.Try() }

// Event records what the daemon or an operator does with the agent: the agent's own channel does not take it. What its view has
// recorded before is in the log before.
func (a *Agent) Event(e audit.Event) {
	a.drain()
	a.Shared.Event(e)
}

// Record is Event for an action that must not happen unrecorded.
func (a *Agent) Record(ctx context.Context, e audit.Event) error {
	a.drain()
	return a.Shared.Record(ctx, e)
}

func (a *Agent) drain() {
	if v := a.currentView(); v != nil {
		_ = v.Drain() // after an error its channel tries again
	}
}

// Kill ends a session of the agent for an operator: see session.Agent.
func (a *Agent) Kill(ctx context.Context, name string, operator uint32) (bool, error) {
	return a.Agent.Kill(ctx, name, func() {
		a.Event(audit.Event{Event: audit.KindSandbox, Agent: string(a.ID()), Session: name, Op: audit.OpKill, Outcome: "killed", UID: &operator})
	})
}

// Ask implements view.Agent.
func (a *Agent) Ask(ctx context.Context, q view.Question) (view.Answer, error) {
	said, err := a.Agent.Ask(ctx, session.Question(q))
	return view.Answer(said), err
}

// Echo implements view.Agent.
func (a *Agent) Echo(ctx context.Context, v *view.View, e wire.Echo) ([]wire.EchoReply, error) {
	return a.Agent.Echo(ctx, viewOf(v), e)
}

// Refuse makes the agent refuse new views, sockets and clients from now on.
func (a *Agent) Refuse() {
	a.Agent.Refuse()
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
	return v.At(), nil
}

// up reads the definition again if it has changed, and mounts the view. Without the
// operator it fails with ErrDown for an agent that the operator has unmounted.
func (a *Agent) up(ctx context.Context, at string, operator bool) (*view.View, error) {
	a.shared.Registry.Refresh(a.ID())
	if def, err := a.Definition(); err == nil && a.currentView() == nil {
		if err := a.place(ctx, def.Definition, true); err != nil {
			return nil, err
		}
	}
	return a.mount(ctx, at, operator)
}

// mount is up with the definition that is loaded.
func (a *Agent) mount(ctx context.Context, at string, operator bool) (*view.View, error) {
	def, err := a.Definition()
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
	if old != nil && (old.At() != at || !a.unused(old)) {
		free() // Down must not wait until the view is mounted
		if old.At() != at {
			return nil, fmt.Errorf("%q is mounted at %q: take it down first (scopefs down %s)", a.ID(), old.At(), a.ID())
		}
		return old, old.Wait(ctx)
	}
	if old == nil && tried && failure == nil && !operator {
		return nil, session.ErrDown
	}
	var v *view.View
	if !a.shared.Views.IsLeft(a.ID(), at) || def.Placement != agents.PlacementOne { // else it ends by itself, or with keepPlace
		err = a.place(ctx, def.Definition, false)
	}
	if err == nil {
		v, err = a.startView(ctx, def.Definition, at)
		a.resumeHome(ctx, def.Definition)
	}
	a.mu.Lock()
	a.tried, a.failure = true, err
	a.mu.Unlock()
	if err != nil {
		a.Event(audit.Event{Event: audit.KindView, Agent: string(a.ID()), Outcome: "not mounted", Path: at, Detail: err.Error()})
		return nil, err
	}
	if err := a.OpenSocket(v.User()); err != nil {
		a.Logger.Error("tools", "agent", a.ID(), "err", err)
	}
	if def.Placement == agents.PlacementOne {
		_ = a.place(ctx, def.Definition, false) // of a view that was left
		go a.keepPlace(v)
	}
	return v, a.KeepMountPoint(a.ID(), at)
}

// take waits for the agent's turn: mounts and unmounts of one agent happen one after
// another. Calling free twice is calling it once.
func (a *Agent) take(ctx context.Context) (free func(), err error) {
	a.hurryOffline()
	return a.wait(ctx)
}

// wait is take without an end of the process that answers requests about the history.
func (a *Agent) wait(ctx context.Context) (free func(), err error) {
	select {
	case a.turn <- struct{}{}:
		return sync.OnceFunc(func() { <-a.turn }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (a *Agent) currentView() *view.View {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.view
}

// startView keeps a view mounted from now on, and waits until it is mounted or cannot
// be. The caller has the agent's turn.
func (a *Agent) startView(ctx context.Context, def *agents.Definition, at string) (*view.View, error) {
	if err := account.MakeScope(a.Paths.Base, def); err != nil {
		return nil, fmt.Errorf("mount %q: %w", a.ID(), err)
	}
	hidden := 0
	if !a.shared.Views.IsLeft(a.ID(), at) { // else it is mounted there
		var err error
		if hidden, err = a.PrepareMountPoint(a.ID(), at); err != nil {
			return nil, err
		}
	}
	if hidden > 0 {
		a.Logger.Warn("the view hides what is in its mount point: move it to the scope, or remove it", "agent", a.ID(),
			"at", at, "entries", hidden)
	}
	var v *view.View
	var err error
	a.mu.Lock()
	closing := a.closing
	if !closing {
		// A reload stores the definitions before it looks for views under a.mu: it
		// updates this view, or the definition here is the new one.
		if now, err := a.Definition(); err == nil {
			def = now.Definition
		}
		v = view.Start(ctx, &a.shared.Views, a, def, at, hidden)
		a.view = v
	}
	a.mu.Unlock()
	if closing {
		err = session.ErrClosing
	} else if err = v.Wait(ctx); err != nil {
		v.End()
		a.mu.Lock()
		a.view = nil
		a.mu.Unlock()
	}
	if err != nil {
		a.Release(at)
	}
	return v, err
}

// target returns the mount point for a request. A view within a scope would hide
// files of that scope, or be the scope of the next view.
func (a *Agent) target(at string) (string, error) {
	if at == "" {
		if v := a.currentView(); v != nil {
			return v.At(), nil
		}
		if at = account.KeptMountPoint(a.Paths, a.ID()); at == "" {
			at = filepath.Join(a.Paths.Views(), string(a.ID()))
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
	for _, def := range a.Definitions() {
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
		if _, err := a.Definition(); err != nil {
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
		waited := a.shared.Views.Placement.Wanted(a.ID())
		a.GiveBack()
		if a.unexpect() || waited && a.forget() {
			return nil
		}
		return fmt.Errorf("%q is not mounted", a.ID())
	}
	a.end(v, "")
	a.GiveBack()
	return a.KeepMountPoint(a.ID(), "")
}

// Unused calls f while the agent has no view and no session, and none starts. It returns an error if it has one.
func (a *Agent) Unused(ctx context.Context, f func() error) error {
	free, err := a.take(ctx)
	if err != nil {
		return err
	}
	defer free()
	if s := a.State(); a.currentView() != nil || s.State == api.Starting || len(s.Sessions)+len(s.Sandboxes) > 0 {
		return fmt.Errorf("%s is in use (%s): scopefs down %s ends that", a.ID(), s.State, a.ID())
	}
	return f()
}

// Unmount ends the sandboxes and the view of an agent whose daemon ends.
func (a *Agent) Unmount() {
	a.hurryOffline()
	if v := a.currentView(); v != nil {
		a.down(v)
	}
	a.endHome()
}

// Leave leaves the agent's views to the next daemon, and the sandboxes that outlive this one. It reports whether that is
// possible. The agent's other sandboxes have ended.
func (a *Agent) Leave() bool {
	if o := a.hurryOffline(); o != nil { // the view is frozen meanwhile
		select {
		case <-o.gone:
		case <-time.After(thawTime):
		}
	}
	v := a.currentView()
	a.leaving.Store(true)
	left := v != nil && a.leaveHome() && v.Leave()
	if left {
		for _, s := range a.Outliving() {
			s.Leave()
		}
	} else {
		a.leaving.Store(false)
	}
	return left
}

// thawTime bounds the wait for a request about held changes, which the daemon's end has cancelled.
const thawTime = 2 * time.Second

// EndSandboxes implements view.Agent: sandboxes are left with their view.
func (a *Agent) EndSandboxes() (wait func()) {
	if a.leaving.Load() {
		return func() {}
	}
	return a.Agent.EndSandboxes()
}

// MountPoint returns where the agent's view is; "" when it has none.
func (a *Agent) MountPoint() string {
	if v := a.currentView(); v != nil {
		return v.At()
	}
	return ""
}

// IsOf reports whether the agent runs as a user: the view that is mounted, else the one
// that would be.
func (a *Agent) IsOf(uid uint32) bool {
	if v := a.currentView(); v != nil {
		if served, owner := v.Served(); served != 0 {
			return owner.UID == uid
		}
	}
	owner, _, err := a.User()
	return err == nil && owner == uid
}

// State returns the agent's state.
func (a *Agent) State() api.Agent {
	s := a.state()
	s.Sandboxes = a.Sandboxes()
	for _, session := range a.Sessions() {
		s.Sessions = append(s.Sessions, session.ID)
	}
	return s
}

func (a *Agent) state() api.Agent {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := api.Agent{ID: a.ID(), State: api.Down, Lease: a.shared.Views.Placement.State(a.ID())}
	switch {
	case a.view != nil:
		a.view.Status(&s)
		if def, err := a.Definition(); err == nil {
			s.Waits = waiting(a.view, def.Definition)
		}
	case a.starting:
		s.State = api.Starting
	case a.failure != nil:
		s.State, s.Error = api.Failed, a.failure.Error()
	}
	return s
}

// Responsive returns when the locks of the agent, its sessions and its view are free.
func (a *Agent) Responsive() {
	a.Agent.Unlocked()
	if v := a.currentView(); v != nil {
		v.Responsive()
	}
}

// Unlocked returns when the locks are free that requests of the agent need: see view.Agent.
func (a *Agent) Unlocked() {
	a.shared.Registry.Responsive()
	a.Agent.Unlocked()
	a.mu.Lock()
	defer a.mu.Unlock()
}

// UpdateLog sends the view whether the log can be written.
func (a *Agent) UpdateLog() {
	if v := a.currentView(); v != nil {
		v.UpdateLog()
	}
	a.drain()
}
