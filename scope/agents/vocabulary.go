package agents

import (
	"maps"
	"slices"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
)

// Vocabulary is the patterns and names that Grants know, by what they are of. What none of them matches, is decided alike.
type Vocabulary struct {
	Tools, Servers, Skills, Members, Contexts []string

	grants []*Grants
}

// Vocabulary returns the patterns and names of the grants and of others.
func (g *Grants) Vocabulary(others ...*Grants) (v Vocabulary) {
	for _, g := range append(others, g) {
		for g = g.orZero(); g != nil; g = g.caller {
			v.grants = append(v.grants, g)
			v.Skills = append(v.Skills, g.known.skills...)
			v.Members = append(v.Members, g.known.ids...)
			for _, n := range []struct {
				list *nameList
				into *[]string
			}{{g.skills, &v.Skills}, {g.members, &v.Members}, {g.mcps, &v.Servers}, {g.serversAllowed, &v.Servers}, {g.contexts, &v.Contexts}} {
				if n.list != nil {
					*n.into = append(*n.into, n.list.patterns...)
				}
			}
			v.Members = append(v.Members, g.reach.Widened...)
			v.Contexts = slices.Concat(v.Contexts, g.reach.Contexts.Ask, g.reach.Contexts.Set)
			v.Servers = slices.Concat(v.Servers, g.reach.Rules.ExcludedServer, g.reach.Rules.Trusted, slices.Sorted(maps.Keys(g.servers)))
			for _, p := range g.patterns() {
				if p.Server == "" {
					v.Tools = append(v.Tools, p.Name)
				} else {
					v.Servers = append(v.Servers, p.Server)
				}
			}
		}
	}
	return v
}

// ServerTools returns the patterns for the tools of one server.
func (v Vocabulary) ServerTools(server string) (names []string) {
	for _, g := range v.grants {
		names = slices.Concat(names, g.servers[server].Include, g.servers[server].Exclude)
		for _, p := range g.patterns() {
			if p.Server != "" && catalog.Wild(p.Server, server) {
				names = append(names, p.Name)
			}
		}
	}
	return names
}

// patterns returns all patterns of tools that decide.
func (g *Grants) patterns() (all []catalog.Pattern) {
	for _, l := range []*toolList{g.tools, g.allowed} {
		if l != nil {
			all = append(all, l.patterns...)
		}
	}
	return slices.Concat(all, g.exclude, g.ask)
}

// Sees reports whether the agent sees a server: a definition names one.
func (g *Grants) Sees(server string) bool {
	_, ok := g.orZero().servers[server]
	return ok
}

// Among returns the grants as they would be if a server, a skill and an agent of some name existed, which the operator has
// defined. "" is none.
func (g *Grants) Among(server, skill string, id scope.ID) *Grants {
	if g.allowNothing() {
		return g
	}
	more := *g
	if server != "" && !g.Sees(server) {
		more.servers = maps.Clone(g.servers)
		if more.servers == nil {
			more.servers = Servers{}
		}
		more.servers[server] = Server{}
	}
	if skill != "" {
		more.known.skills = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(g.known.skills), skill))))
	}
	if id != "" {
		more.known = g.known.with([]string{string(id)})
	}
	if g.caller != nil {
		more.caller = g.caller.Among(server, skill, id)
	}
	return &more
}
