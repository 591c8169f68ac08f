package session

import (
	"errors"
	"io/fs"

	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// groupOf returns the agent's control group for a definition, and makes it on first use. It holds the agent's view and sandboxes, so
// that limits of memory and processors hold for both together. It is nil where nothing is limited and no group can be made.
func (a *Agent) groupOf(def *agents.Definition) (*sandbox.Group, error) {
	host, err := a.groups.get(sandbox.OpenGroups)
	if err != nil {
		return nil, err
	}
	return a.group.get(func() (*sandbox.Group, error) { return host.Agent(a.id, limitsOf(def)) })
}

func limitsOf(def *agents.Definition) sandbox.Limits {
	return sandbox.Limits{Memory: def.Limits.Memory, PIDs: def.Limits.PIDs, CPU: def.Limits.CPU, Timeout: def.Limits.Timeout}
}

// prepareGroups finds where groups can be made, and makes moves to them fast for a moment. groupOf returns the error.
func (s *Shared) prepareGroups() {
	if host, err := s.groups.get(sandbox.OpenGroups); err == nil {
		host.Prepare()
	}
}

// prepareMove is prepareGroups, where bubblewrap will wait for its move to the agent's group.
func (a *Agent) prepareMove() {
	if !a.group.now().Quiet() {
		a.prepareGroups()
	}
}

// PrepareLimit makes the agent's group, or continues with the one that the last daemon has made: see view.Agent.
func (a *Agent) PrepareLimit(def *agents.Definition, was *sandbox.KeptGroup) {
	if group := was.Adopt(limitsOf(def)); group != nil {
		_, _ = a.group.get(func() (*sandbox.Group, error) { return group, nil })
		return
	}
	_, _ = a.groupOf(def) // Limit logs the error
	a.prepareGroups()
}

// KeepLimit returns the agent's group, for the next daemon: see view.Agent.
func (a *Agent) KeepLimit(def *agents.Definition) *sandbox.KeptGroup {
	group, _ := a.groupOf(def)
	return group.Keep()
}

// Limit moves the view's process to the agent's group: see view.Agent.
func (a *Agent) Limit(def *agents.Definition, pid int) (outOfMemory func() bool) {
	group, err := a.groupOf(def)
	if err == nil {
		err = group.AddView(pid)
	}
	if errors.Is(err, fs.ErrNotExist) { // a daemon that died has made it: others remove it when no process is in it
		a.DropGroup()
		if group, err = a.groupOf(def); err == nil {
			err = group.AddView(pid)
		}
	}
	if err != nil { // no sandbox starts then, and others use the view as they do any directory
		a.Logger.Warn("the agent's limits do not hold for its view", "agent", a.id, "err", err)
	}
	before := group.ViewKills()
	return func() bool { return group.ViewKills() > before }
}

// limitProcess moves the agent's process to the agent's group, which its sandboxes have made.
func (a *Agent) limitProcess(pid int) {
	if err := a.group.now().AddView(pid); err != nil {
		a.Logger.Warn("the agent's limits do not hold for the process of its network", "agent", a.id, "err", err)
	}
}

// DropGroup removes the agent's control group if no process is left in it. The next daemon removes one that cannot be removed now.
func (a *Agent) DropGroup() {
	a.Networks.Rest(string(a.id))
	_ = a.group.drop().Remove()
}
