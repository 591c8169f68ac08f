package daemon

import (
	"maps"
	"slices"
	"sync"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// groups are the control groups of agents: one holds an agent's view and its sandboxes, so
// that limits of memory and processors hold for both together.
type groups struct {
	mu     sync.Mutex
	host   *sandbox.Groups
	groups map[scope.ID]*sandbox.Group
}

// of returns an agent's group, made when it is first needed. It is nil where nothing is
// limited and no group can be made.
func (g *groups) of(def *agents.Definition) (*sandbox.Group, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if group := g.groups[def.Name]; group != nil {
		return group, nil
	}
	if g.host == nil {
		host, err := sandbox.OpenGroups()
		if err != nil {
			return nil, err
		}
		g.host, g.groups = host, map[scope.ID]*sandbox.Group{}
	}
	group, err := g.host.Agent(def.Name, limitsOf(def))
	if group != nil {
		g.groups[def.Name] = group
	}
	return group, err
}

// drop removes the group of an agent of which nothing runs any more. One that cannot be
// removed is left to the next daemon.
func (g *groups) drop(id scope.ID) {
	g.mu.Lock()
	group := g.groups[id]
	delete(g.groups, id)
	g.mu.Unlock()
	_ = group.Remove()
}

func (g *groups) dropAll() {
	g.mu.Lock()
	ids := slices.Collect(maps.Keys(g.groups))
	g.mu.Unlock()
	for _, id := range ids {
		g.drop(id)
	}
}

// outcomeMemory is the outcome of events of what the kernel killed.
const outcomeMemory = "out of memory"

func limitsOf(def *agents.Definition) sandbox.Limits {
	l := def.Limits
	return sandbox.Limits{Memory: l.Memory, PIDs: l.PIDs, CPU: l.CPU, Timeout: l.Timeout}
}

// limit puts the view's process into its agent's group, when it is ready and before any
// client is served: what it needs to start is not the agent's. It returns what tells later
// whether the kernel killed the process because the agent had no memory left.
func (v *view) limit(pid int) (outOfMemory func() bool) {
	group, err := v.d.groups.of(v.def)
	if err == nil {
		err = group.AddView(pid)
	}
	if err != nil { // no sandbox starts then, and others use the view as they do any directory
		v.d.logger.Warn("the agent's limits do not hold for its view", "agent", v.def.Name, "err", err)
	}
	before := group.ViewKills()
	return func() bool { return group.ViewKills() > before }
}
