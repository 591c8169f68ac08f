package session

import (
	"sync"

	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// groups is the host's control groups for agents, opened on first use.
type groups struct {
	mu   sync.Mutex
	host *sandbox.Groups
}

func (g *groups) open() (*sandbox.Groups, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.host == nil {
		host, err := sandbox.OpenGroups()
		if err != nil {
			return nil, err
		}
		g.host = host
	}
	return g.host, nil
}

// group is an agent's control group. It holds the agent's view and sandboxes, so that
// limits of memory and processors hold for both together.
type group struct {
	mu    sync.Mutex
	group *sandbox.Group // nil: not made, or there is nothing to limit
}

// of returns the group for a definition, and makes it on first use. It is nil where
// nothing is limited and no group can be made.
func (g *group) of(all *groups, def *agents.Definition) (*sandbox.Group, error) {
	host, err := all.open()
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.group != nil {
		return g.group, nil
	}
	g.group, err = host.Agent(def.Name, limitsOf(def))
	return g.group, err
}

// drop removes the group when no process of the agent is left. The next daemon
// removes one that cannot be removed now.
func (g *group) drop() {
	g.mu.Lock()
	old := g.group
	g.group = nil
	g.mu.Unlock()
	_ = old.Remove()
}

func limitsOf(def *agents.Definition) sandbox.Limits {
	l := def.Limits
	return sandbox.Limits{Memory: l.Memory, PIDs: l.PIDs, CPU: l.CPU, Timeout: l.Timeout}
}

// Limit moves the view's process to the agent's group: see view.Agent.
func (a *Agent) Limit(def *agents.Definition, pid int) (outOfMemory func() bool) {
	group, err := a.group.of(&a.groups, def)
	if err == nil {
		err = group.AddView(pid)
	}
	if err != nil { // no sandbox starts then, and others use the view as they do any directory
		a.Logger.Warn("the agent's limits do not hold for its view", "agent", a.id, "err", err)
	}
	before := group.ViewKills()
	return func() bool { return group.ViewKills() > before }
}

// DropGroup removes the agent's control group if no process is left in it.
func (a *Agent) DropGroup() { a.group.drop() }
