package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// register makes an agent for each definition that has none yet.
func (d *Daemon) register(now *agents.Snapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range now.Agents {
		if d.agents[id] == nil {
			a := agent.New(&d.Shared, id)
			if d.closing {
				a.Refuse()
			}
			d.agents[id] = a
		}
	}
}

// agent returns the agent of an id; nil when no definition of it has ever loaded.
func (d *Daemon) agent(id scope.ID) *agent.Agent {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.agents[id]
}

// Agent returns the agent of an id, or why there is none. It reads the definitions again
// for an agent that it does not know.
func (d *Daemon) Agent(id scope.ID) (*agent.Agent, error) {
	if a := d.agent(id); a != nil {
		return a, nil
	}
	d.Refresh(id)
	if a := d.agent(id); a != nil {
		return a, nil
	}
	_, err := d.Definition(id)
	return nil, err
}

// all returns all agents.
func (d *Daemon) all() []*agent.Agent {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.agents))
}

// Responsive returns when the lock of the registry is free.
func (d *Daemon) Responsive() {
	d.mu.Lock()
	defer d.mu.Unlock()
}

// Agents lists the agents that are defined, or mounted still, by name; definitions that
// do not load are there as failed, and so, without a name, are addresses at which it cannot serve.
func (d *Daemon) Agents() []api.Agent {
	now := d.loaded.Load()
	list := []api.Agent{}
	for _, err := range d.listening.failures() {
		list = append(list, api.Agent{State: api.Failed, Error: err.Error()})
	}
	failing := d.Log.Err()
	for _, a := range d.all() {
		s := a.State()
		if failing != nil && s.State == api.Mounted {
			s.Error = strings.TrimSuffix(fmt.Sprintf("changes are refused: the audit log cannot be written: %v; %s", failing, s.Error), "; ")
		}
		switch def := now.Agents[a.ID()]; {
		case def != nil && def.Lent && s.State == api.Down:
		case def != nil:
			list = append(list, s)
		case s.Mount != "":
			s.Error = strings.TrimSuffix(reloadGone+"; "+s.Error, "; ")
			list = append(list, s)
		}
	}
	for _, err := range now.failed {
		s := api.Agent{ID: fields.AgentOf(err), State: api.Failed, Error: err.Error(), NotLoaded: true}
		list = slices.DeleteFunc(list, func(b api.Agent) bool {
			same := b.ID == s.ID && s.ID != ""
			if same {
				s.State, s.Mount, s.ViewPID, s.Program, s.Hidden, s.Sandboxes = b.State, b.Mount, b.ViewPID, b.Program, b.Hidden, b.Sandboxes
			}
			return same
		})
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b api.Agent) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return list
}

// expect makes the agents that have no view yet "starting", and returns them. The caller hands them to openExpected,
// and then to mountExpected.
func (d *Daemon) expect(ids []scope.ID) (expected []*agent.Agent) {
	for _, id := range ids {
		if def := d.Definitions()[id]; def != nil && def.Lent && !d.Views.IsLeft(id, "") {
			continue // the sandbox that has it mounts it
		}
		if a := d.agent(id); a.Expect() {
			expected = append(expected, a)
		}
	}
	return expected
}

// openExpected opens the sockets of agents, whose clients wait for the view.
func (d *Daemon) openExpected(expected []*agent.Agent) {
	for _, a := range expected {
		a.OpenExpected()
	}
}

// mountExpected mounts agents' views, several at a time, and returns when all are
// mounted or have failed. It calls done for each but those that the operator unmounts
// meanwhile, from several goroutines.
func (d *Daemon) mountExpected(ctx context.Context, expected []*agent.Agent, done func(scope.ID, error)) {
	queue := make(chan *agent.Agent)
	var wg sync.WaitGroup
	// The daemon, the kernel and the view take turns on a processor to start one.
	for range min(len(expected), 2*runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for a := range queue {
				if err := a.MountExpected(ctx); !errors.Is(err, session.ErrDown) {
					done(a.ID(), err)
				}
			}
		})
	}
	for _, a := range expected {
		queue <- a
	}
	close(queue)
	wg.Wait()
}

// mountAppeared mounts the views of agents whose dir: was missing, once it exists.
func (d *Daemon) mountAppeared(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		leave, err := d.Enter()
		if err != nil {
			return
		}
		for _, a := range d.all() {
			switch tried, err := a.Appear(ctx); {
			case tried && err != nil:
				d.Logger.Error("mount", "agent", a.ID(), "err", err)
			case tried:
				d.Logger.Info("mounted: what it waited for is there", "agent", a.ID())
			}
		}
		leave()
	}
}
