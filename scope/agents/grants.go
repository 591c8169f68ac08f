package agents

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/hosts"
)

// Grants decides about everything except files: tools, skills, MCP servers,
// delegation to agents, and contexts. It is immutable and safe for concurrent
// use. The nil and the zero Grants allow nothing.
//
// An absent list restricts nothing, except that absent members allow none. An
// empty list allows nothing. "*" in a list allows everything. An agent with
// skills, mcps or members but without tools has a computed list: the host's
// base tools and the tools that its lists need. The key policy applies in
// addition to the lists. In it, deny overrides ask, and ask overrides allow,
// whatever their order. A bare "*" among the excluded beside a non-empty
// allowed list only means that nothing else is allowed; a narrower exclusion
// overrides the allowed list.
//
// The lists tools, skills, mcps and members do not restrict the host's primary
// agent. Its policy applies.
type Grants struct {
	reach   Reach
	primary bool

	readOnly bool // the view is read-only
	changes  Changes
	prompt   string

	tools, allowed    *toolList // nil means no restriction
	exclude, ask      []catalog.Pattern
	skills, mcps      *nameList // nil means no restriction
	members, contexts *nameList
	serversAllowed    *nameList

	caller       *Grants // see Within; nil for none
	id           scope.ID
	principal    scope.Principal
	known        known
	servers      Servers                  // the servers that the agent sees
	hosts        *hosts.Policy            // of the agent's own sandbox
	fixed        bool                     // see HostsWith
	serverHosts  map[string]*hosts.Policy // by server
	unseen       map[string]string        // private servers that do not reach the agent, with the files of their extensions
	version, sum string                   // see Version and Equal
}

// toolList is an allow-list of tools.
type toolList struct {
	patterns []catalog.Pattern
	written  []string
	computed bool   // derived from the other lists
	rule     string // as in the file
}

// nameList is an allow-list of names.
type nameList struct {
	patterns []string
	rule     string
}

func (l *toolList) holds(n catalog.ToolName) bool {
	return slices.ContainsFunc(l.patterns, func(p catalog.Pattern) bool { return p.Match(n) })
}

func (l *nameList) holds(name string) bool { return catalog.AnyOf(l.patterns, name) }

// orZero returns g, or the zero Grants for nil: they allow the same.
func (g *Grants) orZero() *Grants {
	if g == nil {
		return &Grants{}
	}
	return g
}

// allowNothing reports whether g are the nil or the zero Grants.
func (g *Grants) allowNothing() bool { return g == nil || g.version == "" }

// compileGrants compiles def. servers are all servers that its agent sees, and extensions those that restrict it.
func compileGrants(def *Definition, k known, servers Servers, extensions ...*extension) *Grants {
	r := def.Reach
	r.Members, r.Widened = k.idsOf(def.Name, r.Members), k.idsOf(def.Name, r.Widened)
	g := &Grants{reach: r, primary: k.host.Primary == def.Name && def.Principal().Origin == scope.FromOperator, principal: def.Principal(), readOnly: def.View.Access == scope.Read, changes: def.View.Changes, prompt: def.Prompt, id: def.Name, known: k, servers: servers}
	if !g.primary {
		g.tools = newToolList(k.host.Tools, "tools", r.Tools)
		if r.Tools == nil && (r.Skills != nil || r.MCPs != nil || r.Members != nil) {
			g.tools = computedTools(r, k.host)
		}
		g.skills, g.mcps = newNameList("skills", r.Skills), newNameList("mcps", r.MCPs)
		if g.members = newNameList("members", r.Members); r.Members == nil {
			g.members = &nameList{rule: "no members"}
		}
	}
	key := "scopes.enum"
	if r.Contexts.Fixed {
		key = "scopes.const"
	}
	g.contexts = newNameList(key, r.Contexts.Names)
	g.allowed = newToolList(k.host.Tools, "policy.tools.allowed", r.Rules.Allowed)
	g.exclude, g.ask = k.host.Tools.Restricting(r.Rules.Exclude), k.host.Tools.Restricting(r.Rules.Ask)
	if len(r.Rules.Allowed) > 0 { // "*" is the default then
		g.exclude = slices.DeleteFunc(g.exclude, func(p catalog.Pattern) bool { return p.All })
	}
	for _, e := range extensions {
		g.exclude, g.ask = append(g.exclude, e.exclude...), append(g.ask, e.ask...)
	}
	g.serversAllowed = newNameList("policy.mcp.allowed", r.Rules.AllowedServers)
	if len(r.Rules.AllowedServers) > 0 {
		g.reach.Rules.ExcludedServer = slices.DeleteFunc(slices.Clone(r.Rules.ExcludedServer), func(p string) bool { return p == catalog.Everything })
	}
	g.hosts, g.serverHosts = hosts.Compile(def.Network, k.presets), map[string]*hosts.Policy{}
	g.fixed = def.Network.Kind == hosts.None || def.Network.Kind == hosts.HostNetwork
	for name, s := range servers {
		g.serverHosts[name] = hosts.Compile(s.Network, k.presets)
	}
	g.version = "none yet" // not empty, so that hash can use the decisions
	g.version, g.sum = g.hash(def)
	return g
}

// Grants compiles what the definition allows, for a program that writes its
// definitions in code or keeps them elsewhere than in a directory of [Load]. The
// agent sees the servers of the definition and of the host. It has no skills and
// no members: only Load knows which there are. Its presets are those of this package. Names that do not exist are no
// error and grant nothing.
func (d *Definition) Grants(host Host) *Grants {
	servers := host.Servers.clone()
	maps.Copy(servers, d.Servers.clone())
	return compileGrants(d, known{host: host, presets: hosts.BuiltinPresets()}, servers)
}

// newToolList returns nil for a list without restriction: nil, or one with "*".
func newToolList(t catalog.Tools, key string, patterns []string) *toolList {
	if patterns == nil || slices.Contains(patterns, catalog.Everything) {
		return nil
	}
	return &toolList{patterns: t.Patterns(patterns), written: slices.Clone(patterns), rule: listRule(key, patterns)}
}

func newNameList(key string, patterns []string) *nameList {
	if patterns == nil || slices.Contains(patterns, catalog.Everything) {
		return nil
	}
	return &nameList{slices.Clone(patterns), listRule(key, patterns)}
}

func listRule(key string, entries []string) string {
	return key + ": [" + strings.Join(entries, ", ") + "]"
}

// computedTools returns the list of an agent that names skills, servers or
// members, but no tools.
func computedTools(r Reach, host Host) *toolList {
	list := host.BaseTools
	if list == nil {
		list = host.Tools.Listed(catalog.ListedBase)
	}
	list = append([]string{}, list...) // a nil list would restrict nothing
	if host.Memory {
		list = append(list, host.Tools.Listed(catalog.ListedMemory)...)
	}
	if r.Tasks == ChangesHeld {
		for _, why := range []catalog.Listed{catalog.ListedHeld, catalog.ListedCommit, catalog.ListedTask} {
			list = append(list, host.Tools.Listed(why)...)
		}
	}
	for _, more := range []struct{ named, tools []string }{
		{r.Skills, host.Tools.Listed(catalog.ListedSkills)}, {r.MCPs, []string{catalog.MCP}}, {r.Members, host.Tools.Listed(catalog.ListedMembers)},
		{r.Contexts.Set, host.Tools.Listed(catalog.ListedScopes)},
	} {
		if len(more.named) > 0 {
			list = append(list, more.tools...)
		}
	}
	seen := map[string]bool{}
	list = slices.DeleteFunc(list, func(s string) bool {
		twice := seen[s]
		seen[s] = true
		return twice
	})
	l := newToolList(host.Tools, "computed tools", list)
	if l != nil { // base tools may be "*"
		l.computed = true
	}
	return l
}

// Tools returns the patterns of the tool list, as written or computed. nil
// means no restriction. The policy applies in addition: see Tool.
func (g *Grants) Tools() []string {
	switch {
	case g.allowNothing():
		return []string{}
	case g.tools == nil:
		return nil
	}
	return append([]string{}, g.tools.written...)
}

// ToolNames returns the names of the tools that definitions may name, and "mcp".
func (g *Grants) ToolNames() []string { return g.tooling().Names() }

// tooling returns the tools that definitions may name.
func (g *Grants) tooling() catalog.Tools { return g.orZero().known.host.Tools }

// Computed reports whether the tool list is computed from the other lists.
func (g *Grants) Computed() bool { return g != nil && g.tools != nil && g.tools.computed }

// Skills returns the names of the skills that exist and are allowed, sorted.
func (g *Grants) Skills() []string { return allowedOf(g.orZero().known.skills, g.Skill) }

// Servers returns the servers that the agent sees and may use.
func (g *Grants) Servers() map[string]Server {
	all := g.orZero().servers.clone()
	maps.DeleteFunc(all, func(name string, _ Server) bool { return !g.Server(name).Allow })
	return all
}

// Preset returns the name of the narrowest preset that allows connections to a host; "": none does.
func (g *Grants) Preset(host string, port uint16) string {
	return hosts.Narrowest(g.orZero().known.presets, host, port)
}

// Members returns the agents that the agent may delegate to, sorted.
func (g *Grants) Members() []scope.ID {
	names := g.orZero().known.ids
	if l := g.orZero().members; l != nil && !slices.ContainsFunc(l.patterns, catalog.IsWild) { // faster if there are many agents
		names = slices.Compact(slices.Sorted(slices.Values(l.patterns)))
	}
	var ids []scope.ID
	for _, name := range allowedOf(names, g.Member) {
		ids = append(ids, scope.ID(name))
	}
	for _, name := range g.orZero().reach.Team {
		ids = append(ids, scope.ID(name))
	}
	slices.Sort(ids)
	return slices.Compact(ids) // the list may have names of the team, too
}

func allowedOf(names []string, decide func(string) scope.Decision) []string {
	var all []string
	for _, name := range names {
		if decide(name).Allow {
			all = append(all, name)
		}
	}
	return all
}

// Contexts returns the names and patterns of the scopes that calls of the agent may
// see; nil means any. If fixed is true, calls that choose none see all of them.
func (g *Grants) Contexts() (names []string, fixed bool) {
	if g.allowNothing() {
		return []string{}, false
	}
	return slices.Clone(g.reach.Contexts.Names), g.reach.Contexts.Fixed
}

// ContextsOf returns the scopes that calls of a tool choose among, or, with fixed, that each
// gets. ok is false if scopes.tools has none for the tool: then Contexts holds for tools that
// take a context. The name of a tool overrides a pattern, and a pattern those after it.
func (g *Grants) ContextsOf(tool string) (names []string, fixed, ok bool) {
	for _, exact := range []bool{true, false} {
		for _, t := range g.orZero().reach.Contexts.Tools {
			if exact == !catalog.IsWild(t.Tool) && g.tooling().Match(t.Tool, tool) {
				return append([]string{}, t.Names...), t.Fixed, true
			}
		}
	}
	return nil, false, false
}

// Rates returns the rate limits of calls.
func (g *Grants) Rates() []scope.Rate { return slices.Clone(g.orZero().reach.Rates) }

// RatesOf returns the rate limits that count calls of a tool.
func (g *Grants) RatesOf(tool string) []scope.Rate {
	return slices.DeleteFunc(g.Rates(), func(r scope.Rate) bool { return !g.tooling().Match(r.Pattern, tool) })
}

// Within returns the grants of a member for a caller's task: what both allow.
// The caller's tools (except a computed list), include_tools and exclude_tools of its
// servers, view access, hosts and argument filters restrict those of g. Skills, servers, members,
// contexts and rates remain those of g.
func (g *Grants) Within(caller *Grants) *Grants {
	if g.allowNothing() || caller.allowNothing() {
		return &Grants{}
	}
	narrow := *g
	narrow.caller = caller
	narrow.readOnly = g.readOnly || caller.readOnly
	narrow.reach.Filters = append(slices.Clone(g.reach.Filters), caller.reach.Filters...)
	narrow.version = digest([]string{g.version, "within", string(caller.id), caller.version})
	narrow.sum = digest([]string{g.sum, "within", string(caller.id), caller.sum})
	return &narrow
}

// Delegated returns the grants of a member in a task that caller delegates to it: nil
// if it is no member of caller, its own if caller widens it, else those Within caller.
func (g *Grants) Delegated(caller *Grants) *Grants {
	switch {
	case g == nil || !caller.Member(string(g.id)).Allow:
		return nil
	case caller.Widens(g.id):
		return g
	}
	return g.Within(caller)
}

// ReadOnly reports whether the view is read-only.
func (g *Grants) ReadOnly() bool { return g == nil || g.readOnly }

// HoldsTasks reports whether the agent's members work on a branch of its directory.
func (g *Grants) HoldsTasks() bool { return g != nil && g.reach.Tasks == ChangesHeld }

// Widens reports whether the operator allows a member, in a task of this agent,
// what this agent itself may not do.
func (g *Grants) Widens(member scope.ID) bool {
	return g != nil && slices.Contains(g.reach.Widened, string(member))
}

// Filters returns the filters that deny calls by their arguments.
func (g *Grants) Filters() []scope.Filter {
	all := slices.Clone(g.orZero().reach.Filters)
	for i := range all {
		all[i].Regexps = slices.Clone(all[i].Regexps)
	}
	return all
}

// FiltersOf returns the filters that deny calls of a tool by their arguments.
// The caller must not modify the result.
func (g *Grants) FiltersOf(tool string) (all []scope.Filter) {
	for _, f := range g.orZero().reach.Filters {
		if g.tooling().Match(f.Pattern, tool) {
			all = append(all, f)
		}
	}
	return all
}

// Primary reports whether the agent is the host's primary.
func (g *Grants) Primary() bool { return g != nil && g.primary }

// Version returns the hex SHA-256 of everything that affects decisions,
// including those about files. An approval is valid for one version. The
// version omits the environment of servers, which may contain secrets. For the
// nil and the zero Grants it is "".
func (g *Grants) Version() string { return g.orZero().version }

// Equal reports whether both make the same decisions and start their servers
// with the same configuration.
func (g *Grants) Equal(other *Grants) bool {
	return g == other || g != nil && other != nil && g.sum == other.sum
}

// String returns a short text without the secrets of servers.
func (g *Grants) String() string { return fmt.Sprintf("grants %.12s", g.Version()) }

// GoString is String.
func (g *Grants) GoString() string { return g.String() }
