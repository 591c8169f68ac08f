package agents

import (
	"slices"
	"strings"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
)

// IDs is an operator's list of agents: ids, and patterns of them. EXTENSION/ID is an agent that an extension defines.
type IDs []string

// Holds reports whether an entry matches an agent. An asterisk stands for no slash: an entry without an extension is about agents
// that the operator defines, and none about an agent that a repository names.
func (l IDs) Holds(p scope.Principal) bool {
	of, id, brought := strings.Cut(p.Listed(), "/")
	return of != "" && slices.ContainsFunc(l, func(entry string) bool {
		from, pattern, extends := strings.Cut(entry, "/")
		return brought == extends && catalog.Wild(from, of) && (!brought || catalog.Wild(pattern, id))
	})
}

// Principal returns the agent as an operator's list sees it.
func (d *Definition) Principal() scope.Principal {
	switch {
	case d.TeamOf != "":
		return scope.Principal{ID: d.Name}
	case d.Extension != "":
		return scope.Principal{ID: d.Name, Origin: scope.FromExtension, Extension: d.Extension}
	}
	return scope.Principal{ID: d.Name, Origin: scope.FromOperator}
}

// Principal returns the agent as an operator's list sees it. That of the nil and the zero Grants is in no list.
func (g *Grants) Principal() scope.Principal {
	g = g.orZero()
	return g.principal
}
