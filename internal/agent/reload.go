package agent

import (
	"maps"
	"reflect"
	"slices"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/hosts"
)

// Change is what a reload means for an agent.
type Change int

// The changes, from the least to the greatest.
const (
	Unchanged Change = iota
	Added            // the agent has no view and never had one
	NewRules         // the agent's new rules hold
	Restarted        // they hold in a new process of the view
	Remount          // more than the rules has changed: that needs Down and Up
)

// Reload makes the agent's view decide by a definition that was loaded. Its grants
// hold since then. The error says why the view was restarted.
func (a *Agent) Reload(def *agents.Agent) (Change, error) {
	a.mu.Lock()
	last, v := a.granted, a.view
	a.granted = def.Grants
	tried := a.tried
	a.mu.Unlock()
	switch {
	case v == nil && !tried:
		return Added, nil // the operator mounts one that was unmounted or has failed
	case last == def.Grants && (v == nil || v.def == def.Definition):
		return Unchanged, nil
	}
	changed := last != nil && !last.Equal(def.Grants)
	if v != nil {
		ruled, err := v.setRules(def.View.PolicySpec())
		if err != nil {
			return Restarted, err
		}
		if !sameButRules(v.def, def.Definition) {
			return Remount, nil
		}
		changed = changed || ruled
	}
	if changed {
		return NewRules, nil
	}
	return Unchanged, nil
}

// Grant sets the grants that the next Reload compares with.
func (a *Agent) Grant(g *agents.Grants) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.granted = g
}

// sameButRules reports whether two definitions differ at most in the rules that a
// mounted view can take, or in keys that do not concern the view, such as grants.
func sameButRules(a, b *agents.Definition) bool {
	x, y := *a, *b
	for _, def := range []*agents.Definition{&x, &y} {
		def.View.Access, def.View.Paths, def.View.Hardlinks, def.View.Protect, def.View.Git = 0, nil, "", nil, nil
		def.DisplayName, def.Description, def.Prompt, def.Reach, def.Durable = "", "", "", agents.Reach{}, nil
		def.Network = hosts.Network{} // see recheck
		def.Keep, def.Env = agents.Keep{}, nil
	}
	return reflect.DeepEqual(x, y)
}

// DeclareActivities updates the tools that the operator has declared, of every client.
func (a *Agent) DeclareActivities() {
	a.mu.Lock()
	all := slices.Collect(maps.Keys(a.clients))
	a.mu.Unlock()
	for _, c := range all {
		if err := c.set.Declare(c.activities()); err != nil {
			a.Logger.Error("activities", "agent", a.id, "err", err)
		}
		c.face.Refresh()
	}
}

// RefreshClients updates the advertised tools of the agent's clients that work for
// one of ids, and ends sandboxes that may do more than the callers may now. Each
// call is authorised on its own.
func (a *Agent) RefreshClients(ids []scope.ID) {
	a.mu.Lock()
	var all []*client
	for c := range a.clients {
		if slices.ContainsFunc(c.callers(), func(id scope.ID) bool { return slices.Contains(ids, id) }) {
			all = append(all, c)
		}
	}
	a.mu.Unlock()
	if len(ids) > 0 {
		a.recheck()
	}
	for _, c := range all {
		c.face.Refresh()
		c.beside(c.narrow)
		c.beside(func() { c.servers.refresh(c.life) }) // servers may take their time
	}
}
