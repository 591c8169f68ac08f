package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/placement"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/scope/agents"
)

// place has this host be the one that changes the agent's files, if its definition has placement: one. With patience it waits until
// another host has ended.
func (a *Agent) place(ctx context.Context, def *agents.Definition, patience bool) error {
	if def.Placement != agents.PlacementOne {
		a.GiveBack()
		return nil
	}
	err := a.shared.Views.Placement.Check(a.ID())
	if err != nil && patience {
		err = a.shared.Views.Placement.Acquire(ctx, a.ID())
	}
	if err != nil {
		err = fmt.Errorf("agents.d/%s.md: %w", a.ID(), err)
	}
	return err
}

// GiveBack gives the lease of an agent without a view back.
func (a *Agent) GiveBack() {
	a.mu.Lock()
	a.lingering = slices.DeleteFunc(a.lingering, func(ended <-chan struct{}) bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	dead := len(a.lingering) == 0
	a.mu.Unlock()
	a.shared.Views.Placement.Release(a.ID(), dead)
}

// down unmounts a view.
func (a *Agent) down(v *view.View) {
	v.Down()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lingering = append(a.lingering, v.Lingering()...)
}

// placed reports whether a mount failed for want of the lease, which this host has now.
func (a *Agent) placed() bool {
	a.mu.Lock()
	elsewhere, waits := errors.AsType[*placement.ElsewhereError](a.failure)
	waits = waits && a.view == nil
	a.mu.Unlock()
	return waits && a.shared.Views.Placement.Wanted(elsewhere.Agent) && a.shared.Views.Placement.Check(elsewhere.Agent) == nil
}

// keepPlace sends the view each new end of its lease, and ends the view when another host has the lease.
func (a *Agent) keepPlace(v *view.View) {
	for sent := time.Duration(0); ; {
		changed := a.shared.Views.Placement.Changed()
		until, lost := a.shared.Views.Placement.Until(a.ID())
		if until > 0 && until != sent {
			v.SetLease(until)
			sent = until
		}
		if lost {
			v.SetLease(1) // nanosecond after the host's start
			a.lose(v)
			return
		}
		select {
		case <-changed:
		case <-v.Ended():
			return
		}
	}
}

// lose unmounts a view whose lease another host has. The agent waits for the lease: see Appear.
func (a *Agent) lose(v *view.View) {
	free, err := a.take(context.Background())
	if err != nil {
		return
	}
	defer free()
	if a.currentView() != v {
		return
	}
	err = a.place(context.Background(), v.Definition(), false)
	if err == nil { // the host has it again, and the other one may have changed files: the sandboxes end all the same
		err = &placement.ElsewhereError{Agent: a.ID()}
	}
	a.mu.Lock()
	a.failure = err
	a.mu.Unlock()
	a.end(v, "its lease is lost: "+err.Error())
}

// end unmounts the agent's view. The caller has the agent's turn.
func (a *Agent) end(v *view.View, why string) {
	a.CloseSocket()
	if err := a.shared.Approvals.Forget(a.ID()); err != nil {
		a.Logger.Error("approvals", "agent", a.ID(), "err", err)
	}
	a.down(v)
	a.endHome()
	a.shared.Stores.End(a.ID())
	a.mu.Lock()
	a.view = nil
	a.mu.Unlock()
	a.Event(audit.Event{Event: audit.KindView, Agent: string(a.ID()), Outcome: "unmounted", Path: v.At(), Detail: why})
}
