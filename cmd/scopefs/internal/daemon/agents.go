package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/control"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// Up mounts an agent's view at a directory; "" is where it is, was last, or else
// its own below the run directory.
func (d *Daemon) Up(ctx context.Context, id scope.ID, at string) (*view, error) {
	return d.bring(ctx, id, at, true)
}

var errDown = errors.New("the operator has taken it down")

// bring is Up, for the operator or for what agents do: these do not bring back
// whom he took down.
func (d *Daemon) bring(ctx context.Context, id scope.ID, at string, operator bool) (*view, error) {
	d.loadFor(id)
	return d.mount(ctx, id, at, operator)
}

// mount is bring by the definitions that are loaded.
func (d *Daemon) mount(ctx context.Context, id scope.ID, at string, operator bool) (*view, error) {
	agent, err := d.defined(id)
	if err != nil {
		return nil, err
	}
	if at, err = d.mountPlace(id, at); err != nil {
		return nil, err
	}
	free, err := d.take(ctx, id)
	if err != nil {
		return nil, err
	}
	defer free()
	if old := d.view(id); old != nil {
		free() // who takes it down need not wait until it is up again
		if old.at != at {
			return nil, fmt.Errorf("%q is mounted at %q: take it down first (scopefs down %s)", id, old.at, id)
		}
		return old, old.wait(ctx)
	}
	d.mu.Lock()
	failure, known := d.failed[id]
	d.mu.Unlock()
	if known && failure == nil && !operator {
		return nil, errDown
	}
	v, err := d.up(ctx, agent.Definition, at)
	d.mu.Lock()
	d.failed[id] = err
	d.mu.Unlock()
	if err != nil {
		d.event(audit.Event{Event: audit.KindView, Agent: string(id), Outcome: "not mounted", Path: at, Detail: err.Error()})
		return nil, err
	}
	if err := d.openDoor(id, v.user()); err != nil {
		d.logger.Error("tools", "agent", id, "err", err)
	}
	return v, d.place(id, at)
}

// take waits for an agent's turn: its ups and downs happen one after another.
// To give it back twice is to give it back once.
func (d *Daemon) take(ctx context.Context, id scope.ID) (free func(), err error) {
	d.mu.Lock()
	turn := d.turns[id]
	if turn == nil {
		turn = make(chan struct{}, 1)
		d.turns[id] = turn
	}
	d.mu.Unlock()
	select {
	case turn <- struct{}{}:
		return sync.OnceFunc(func() { <-turn }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (d *Daemon) view(id scope.ID) *view {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.views[id]
}

// mountPlace says where a view goes that was asked to be at a directory. A view
// within a scope would hide files of it, or be the scope of the next one.
func (d *Daemon) mountPlace(id scope.ID, at string) (string, error) {
	if at == "" {
		if v := d.view(id); v != nil {
			return v.at, nil
		}
		if at = d.placeOf(id); at == "" {
			at = filepath.Join(d.paths.Views(), string(id))
		}
		return at, nil
	}
	// Without links, as the kernel will tell it: proc_pid_mountinfo(5).
	if real, err := filepath.EvalSymlinks(at); err == nil {
		at = real
	} else if dir, err := filepath.EvalSymlinks(filepath.Dir(at)); err == nil {
		at = filepath.Join(dir, filepath.Base(at))
	}
	agents := filepath.Join(d.paths.Base, "agents")
	if real, err := filepath.EvalSymlinks(agents); err == nil {
		agents = real
	}
	if strings.HasPrefix(at+"/", agents+"/") {
		return "", invalidError{fmt.Errorf("mount point %q is where the agents' files are: choose another with --at", at)}
	}
	return at, nil
}

// Down ends an agent's sandboxes and unmounts its view.
func (d *Daemon) Down(ctx context.Context, id scope.ID) error {
	if d.view(id) == nil {
		if _, err := d.defined(id); err != nil {
			return err
		}
	}
	free, err := d.take(ctx, id)
	if err != nil {
		return err
	}
	defer free()
	v := d.view(id)
	if v == nil {
		if d.unexpect(id) {
			return nil
		}
		return fmt.Errorf("%q is not mounted", id)
	}
	d.closeDoor(id)
	if err := d.approvals.Forget(id); err != nil {
		d.logger.Error("approvals", "agent", id, "err", err)
	}
	v.down()
	d.mu.Lock()
	delete(d.views, id)
	d.mu.Unlock()
	d.event(audit.Event{Event: audit.KindView, Agent: string(id), Outcome: "unmounted", Path: v.at})
	return d.place(id, "")
}

// defined returns what an agent is and may do now, or why there is none. Ask
// again for each decision: a reload replaces it.
func (d *Daemon) defined(id scope.ID) (*agents.Agent, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if agent := d.rules.Agents[id]; agent != nil {
		return agent, nil
	}
	var own []error
	for _, err := range d.bad {
		bad, ok := errors.AsType[*agents.DefinitionError](err)
		if !ok || bad.Agent == id { // agents.d itself, or the agent
			own = append(own, err)
		}
	}
	if own != nil {
		return nil, errors.Join(own...)
	}
	return nil, fmt.Errorf("%w %q: define it in %s", control.ErrUnknown, id, filepath.Join(d.paths.Base, "agents.d", string(id)+".md"))
}

// stateOf is how an agent is. The caller holds the lock.
func (d *Daemon) stateOf(id scope.ID) control.Agent {
	a := control.Agent{ID: id, State: control.Down}
	if v := d.views[id]; v != nil {
		v.mu.Lock()
		a.State, a.Mount, a.ViewPID, a.Hidden = v.state, v.at, v.pid, v.hidden
		if v.err != nil {
			a.Error = v.err.Error()
		}
		v.mu.Unlock()
	} else if d.starting[id] {
		a.State = control.Starting
	} else if err := d.failed[id]; err != nil {
		a.State, a.Error = control.Failed, err.Error()
	}
	for s := range d.sessions[id] {
		a.Sandboxes = append(a.Sandboxes, s.PID())
	}
	slices.Sort(a.Sandboxes)
	return a
}

// Agents lists what is defined, or mounted still, by name; what does not load is
// there as failed.
func (d *Daemon) Agents() []control.Agent {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := []control.Agent{}
	for id := range d.rules.Agents {
		list = append(list, d.stateOf(id))
	}
	for id := range d.views {
		if d.rules.Agents[id] == nil {
			a := d.stateOf(id)
			a.Error = strings.TrimSuffix(reloadGone+"; "+a.Error, "; ")
			list = append(list, a)
		}
	}
	for _, err := range d.bad {
		a := control.Agent{State: control.Failed, Error: err.Error()}
		if bad, ok := errors.AsType[*agents.DefinitionError](err); ok {
			a.ID = bad.Agent
		}
		list = slices.DeleteFunc(list, func(b control.Agent) bool {
			same := b.ID == a.ID && a.ID != ""
			if same {
				a.State, a.Mount, a.ViewPID, a.Hidden, a.Sandboxes = b.State, b.Mount, b.ViewPID, b.Hidden, b.Sandboxes
			}
			return same
		})
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b control.Agent) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return list
}
