package agents

import (
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
)

// IDs is an operator's list of agents: ids, and patterns of them.
type IDs []string

// Holds reports whether an entry matches an agent. No entry matches an agent that a repository names.
func (l IDs) Holds(p scope.Principal) bool {
	return p.Origin == scope.FromOperator && catalog.AnyOf(l, string(p.ID))
}

// Principal returns the agent as an operator's list sees it.
func (d *Definition) Principal() scope.Principal {
	if d.TeamOf != "" {
		return scope.Principal{ID: d.Name}
	}
	return scope.Principal{ID: d.Name, Origin: scope.FromOperator}
}

// Principal returns the agent as an operator's list sees it. That of the nil and the zero Grants is in no list.
func (g *Grants) Principal() scope.Principal {
	g = g.orZero()
	return scope.Principal{ID: g.id, Origin: g.origin}
}
