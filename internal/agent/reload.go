package agent

import (
	"reflect"

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
	a.hurryOffline() // it has the rules with which it was started
	a.mu.Lock()
	last, v := a.granted, a.view
	a.granted = def.Grants
	tried := a.tried
	a.mu.Unlock()
	switch {
	case v == nil && !tried:
		return Added, nil // the operator mounts one that was unmounted or has failed
	case last == def.Grants && (v == nil || v.Definition() == def.Definition):
		return Unchanged, nil
	}
	changed := last != nil && !last.Equal(def.Grants)
	if v != nil {
		ruled, err := v.SetRules(def.View.PolicySpec())
		if err != nil {
			return Restarted, err
		}
		if !sameButRules(v.Definition(), def.Definition) {
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
