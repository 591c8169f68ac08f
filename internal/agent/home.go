package agent

import (
	"context"
	"path/filepath"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// homePrefix begins the names of the views that count what is in a HOME.
const homePrefix = "home-"

// homeView returns the view that serves the agent's HOME, which it mounts if need be.
func (a *Agent) homeView(ctx context.Context, def *agents.Definition) (*view.View, error) {
	v, err := a.startHome(ctx, def)
	if err != nil {
		return nil, err
	}
	return v, v.Wait(ctx)
}

func (a *Agent) startHome(ctx context.Context, def *agents.Definition) (*view.View, error) {
	a.homing.Lock()
	defer a.homing.Unlock()
	if a.home != nil {
		return a.home, nil
	}
	name, at := a.homeID(), a.HomePoint()
	if !a.shared.Views.IsLeft(name, at) {
		if _, err := a.PrepareMountPoint(name, at); err != nil {
			return nil, err
		}
	}
	own := *def
	own.Name = def.HomeID()
	a.home = view.Start(ctx, &a.shared.Views, homeAgent{a}, agents.HomeOf(&own, name, a.Paths.Home(own.Name)), at, 0)
	return a.home, nil
}

func (a *Agent) homeID() scope.ID { return scope.ID(homePrefix + string(a.ID())) }

// HomePoint returns where the view of the HOME is mounted, if there is one.
func (a *Agent) HomePoint() string { return filepath.Join(a.Paths.Views(), string(a.homeID())) }

// WithoutHome calls f if the HOME has no view, which does not start meanwhile.
func (a *Agent) WithoutHome(f func()) {
	a.homing.Lock()
	defer a.homing.Unlock()
	if a.home == nil {
		f()
	}
}

// resumeHome takes over the view of the HOME that the last daemon has left.
func (a *Agent) resumeHome(ctx context.Context, def *agents.Definition) {
	if bytes, files := def.Limits.Quota(); bytes+files > 0 && a.shared.Views.IsLeft(a.homeID(), "") {
		if _, err := a.startHome(ctx, def); err != nil {
			a.Logger.Warn("home", "agent", a.ID(), "err", err)
		}
	}
}

// endHome unmounts the view of the HOME. The agent's sandboxes have ended.
func (a *Agent) endHome() {
	a.homing.Lock()
	v := a.home
	a.home = nil
	a.homing.Unlock()
	if v != nil {
		v.Down()
	}
}

// leaveHome leaves the view of the HOME, if there is one, to the next daemon. It reports false if that is not possible.
func (a *Agent) leaveHome() bool {
	a.homing.Lock()
	v := a.home
	a.homing.Unlock()
	return v == nil || v.Leave()
}

// homeAgent is whose view a HOME has.
type homeAgent struct{ *Agent }

var _ view.Agent = homeAgent{}

// Spools implements view.Agent: the view's name is not the agent's.
func (h homeAgent) Spools() bool { return false }

// Event implements view.Agent.
func (h homeAgent) Event(e audit.Event) { h.Agent.Event(h.own(e)) }

// RecordFile implements view.Agent.
func (h homeAgent) RecordFile(alive context.Context, hurry <-chan struct{}, e audit.Event, before func() error) error {
	return h.Agent.RecordFile(alive, hurry, h.own(e), before)
}

func (h homeAgent) own(e audit.Event) audit.Event {
	e.Agent = string(h.ID())
	return e
}

// EndSandboxes implements view.Agent: those with another HOME go on, and so do those that are left with their views.
func (h homeAgent) EndSandboxes() (wait func()) {
	if h.leaving.Load() {
		return func() {}
	}
	return h.EndHomed()
}
