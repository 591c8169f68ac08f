package agent

import (
	"slices"

	"github.com/scopefs/scopefs/internal/view"
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
	Remounted        // Redefine has mounted the view again
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
		if len(waiting(v, def.Definition)) > 0 {
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

// Pending returns the keys of the current definition that hold only after Down and Up, sorted: those by which the view was
// mounted otherwise.
func (a *Agent) Pending() []string {
	v := a.currentView()
	def, err := a.Definition()
	if v == nil || err != nil {
		return nil
	}
	return waiting(v, def.Definition)
}

// waiting compares the definition with which a view was mounted, but for the keys that a mounted view takes or that do not
// concern it, with another one.
func waiting(v *view.View, now *agents.Definition) []string {
	x, y := *v.Definition(), *now
	var holds []string
	if !v.Holding() && !x.View.PolicySpec().Holds() { // a view opens the place for what rules hold when it is mounted
		holds = holding(y.View)
	}
	y.View.Closed = y.View.Closed || x.View.Closed // what is mounted with a gate can be open
	for _, def := range []*agents.Definition{&x, &y} {
		def.View.Access, def.View.Paths, def.View.Hardlinks, def.View.Protect, def.View.Git = 0, nil, "", nil, nil
		def.DisplayName, def.Description, def.Prompt, def.Reach, def.Durable = "", "", "", agents.Reach{}, nil
		def.View.Roots = nil          // the next sandbox gets the present ones
		def.Network = hosts.Network{} // see recheck
		def.Keep, def.Env = agents.Keep{}, nil
		def.Model = agents.Model{}                               // a task has that of its start
		if bytes, files := def.Limits.Quota(); bytes+files > 0 { // Quotas.Define: a view that counts has the current limits
			def.Limits.Disk, def.Limits.Files = 1, 1
		}
	}
	return slices.Sorted(slices.Values(append(x.Differs(&y), holds...)))
}

// holding returns the keys whose rules hold changes.
func holding(spec agents.ViewSpec) (keys []string) {
	if slices.ContainsFunc(spec.Protect, func(p scope.Protect) bool { return p.Hold }) {
		keys = append(keys, "protect")
	}
	if slices.ContainsFunc(spec.Paths, func(r scope.PathRule) bool { return r.Access == scope.Hold }) {
		keys = append(keys, "view.paths")
	}
	return keys
}
