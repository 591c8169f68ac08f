package session

import (
	"maps"
	"slices"

	"github.com/scopefs/scopefs/scope"
)

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
