package agents

import (
	"fmt"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
)

// denial collects the rules that deny a request.
type denial struct {
	kind  scope.Kind // the kind of the first rule
	rule  string     // the first rule
	fixes []string   // all necessary changes
}

func (d *denial) add(kind scope.Kind, rule, fix string) {
	if d.fixes == nil {
		d.kind, d.rule = kind, rule
	}
	if !slices.Contains(d.fixes, fix) {
		d.fixes = append(d.fixes, fix)
	}
}

func (d *denial) decision() scope.Decision {
	return scope.Decision{Kind: d.kind, Rule: d.rule, Remedy: strings.Join(d.fixes, ", and ")}
}

const (
	ruleNone    = "no rule" // no rule restricts it
	rulePrimary = "primary"
)

// nothing is the decision of the nil and the zero Grants.
var nothing = scope.Decision{Kind: scope.KindNothing, Rule: "no policy"}

// Tool decides about a call of a tool: "read_file", "builtin:read_file" or
// "mcp:server:tool". The name "mcp" in a list means all tools of the servers
// that the agent may use. With a caller (see Within) the more restrictive
// decision applies.
func (g *Grants) Tool(name string) scope.Decision {
	n, ok := g.tooling().ParseName(name)
	return g.decide(name, ok && n.Server == "" && g.tooling().Named(n.Name).Writes, false)
}

// Call is Tool for a caller that knows whether the tool changes files. With it
// Grants are the Rules of package tools.
func (g *Grants) Call(name string, writes bool) scope.Decision {
	return g.decide(name, writes, false)
}

func (g *Grants) decide(name string, writes, foreign bool) scope.Decision {
	own := g.tool(name, writes, foreign)
	if g == nil || g.caller == nil || !own.Allow && !own.Ask {
		return own
	}
	theirs := g.caller.decide(name, writes, true)
	if theirs.Allow {
		return own
	}
	if own.Ask && theirs.Ask {
		return own
	}
	theirs.Rule = "caller " + string(g.caller.id) + ": " + theirs.Rule
	theirs.Remedy = fmt.Sprintf("for %s: %s; or say members: {%s: {may: widen}} there", g.caller.id, theirs.Remedy, g.id)
	return theirs
}

// tool decides by the agent's own lists. With foreign, the server belongs to
// another agent and this agent need not see it. If this agent has a server of
// that name, the lists of its definition also apply.
func (g *Grants) tool(name string, writes, foreign bool) scope.Decision {
	if g.allowNothing() {
		return nothing
	}
	n, ok := g.tooling().ParseName(name)
	if !ok {
		return scope.Decision{Kind: scope.KindTool, Rule: "no such tool", Remedy: "name it NAME, builtin:NAME or mcp:SERVER:TOOL"}
	}
	var d denial
	g.restrict(&d, g.exclude, "policy.tools.exclude", n)
	if g.readOnly && writes {
		d.add(scope.KindAccess, "access: read", "set access: write in view")
	}
	if !foreign && n.Server == "" && len(g.reach.Contexts.Set) == 0 && g.tooling().Named(n.Name).Listed == catalog.ListedScopes {
		d.add(scope.KindTool, "no scopes.set", "name a scope in scopes.set")
	}
	commit := CommitNever
	if !foreign && n.Server == "" {
		commit = g.changesRule(&d, g.tooling().Named(n.Name))
	}
	rule := g.base()
	if n.Server != "" {
		rule = g.server(n.Server, &d, foreign)
		g.servers[n.Server].tool(n, &d) // the zero Server restricts nothing
	}
	// A computed list says what the agent calls itself, so that it does not bound its members: an agent with members
	// alone is one that only delegates. What the operator wrote (tools, policy, access) bounds them.
	if l := g.tools; l != nil && (!foreign || !l.computed) {
		if rule = l.rule; !l.holds(n) {
			d.add(scope.KindTool, l.rule, g.addTool(n, name))
		}
	}
	if l := g.allowed; l != nil {
		if rule = l.rule; !l.holds(n) {
			d.add(scope.KindTool, l.rule, fmt.Sprintf("add %s to policy.tools.allowed", name))
		}
	}
	if d.fixes != nil {
		return d.decision()
	}
	if n.Server == "" || !slices.Contains(g.reach.Rules.Trusted, n.Server) {
		var ask denial
		if g.restrict(&ask, g.ask, "policy.tools.ask", n); ask.fixes != nil {
			return scope.Decision{Ask: true, Kind: ask.kind, Rule: ask.rule, Remedy: strings.Join(ask.fixes, ", and ") + ", or approve the call"}
		}
	}
	if commit == CommitAsk {
		remedy := "write policy: {commit: allow}, or approve the call"
		return scope.Decision{Ask: true, Kind: scope.KindTool, Rule: "policy.commit: ask", Remedy: remedy}
	}
	return scope.Decision{Allow: true, Kind: scope.KindTool, Rule: rule}
}

// restrict adds to d the patterns of a list that reach a tool.
func (g *Grants) restrict(d *denial, list []catalog.Pattern, key string, n catalog.ToolName) {
	for _, p := range list {
		if p.Reaches(g.tooling(), n) {
			d.add(scope.KindTool, p.Listed(key)+": "+p.Text, "remove "+p.Text+" from "+p.Listed(key))
		}
	}
}

// base returns the rule for a request that no list restricts.
func (g *Grants) base() string {
	if g.primary {
		return rulePrimary
	}
	return ruleNone
}

// addTool returns how to add a tool to the list.
func (g *Grants) addTool(n catalog.ToolName, name string) string {
	if !g.tools.computed {
		return fmt.Sprintf("add %s to tools", name)
	}
	listed := g.tooling().Named(n.Name).Listed
	switch {
	case n.Server != "":
		return fmt.Sprintf("add %s to mcps", n.Server)
	case n.Name == catalog.MCP:
		return "name a server in mcps"
	case listed == catalog.ListedSkills:
		return "name a skill in skills"
	case listed == catalog.ListedMembers:
		return "name an agent in members"
	case listed == catalog.ListedScopes:
		return "name a scope in scopes.set"
	}
	return fmt.Sprintf("add tools: [%s]", strings.Join(append(slices.Clone(g.tools.written), name), ", "))
}

// Server adds to d the rules that deny a server, and returns the rule that
// allows it.
func (g *Grants) server(name string, d *denial, foreign bool) (rule string) {
	if _, ok := g.servers[name]; !ok && !foreign {
		d.add(scope.KindServer, "no such server", fmt.Sprintf("define %q in mcp_servers", name))
	}
	for _, p := range g.reach.Rules.ExcludedServer {
		if catalog.Wild(p, name) {
			d.add(scope.KindServer, "policy.mcp.excluded: "+p, fmt.Sprintf("remove %s from policy.mcp.excluded", p))
		}
	}
	rule = g.base()
	for _, l := range []struct {
		*nameList
		key string
	}{{g.mcps, "mcps"}, {g.serversAllowed, "policy.mcp.allowed"}} {
		if l.nameList == nil {
			continue
		}
		if rule = l.rule; !l.holds(name) {
			d.add(scope.KindServer, rule, addTo(l.key, name))
		}
	}
	return rule
}

// tool adds to d the rules of the server's definition that deny one of its
// tools.
func (s Server) tool(n catalog.ToolName, d *denial) {
	for _, p := range s.Exclude {
		if catalog.Wild(p, n.Name) {
			d.add(scope.KindTool, "exclude_tools: "+p, fmt.Sprintf("remove %s from exclude_tools of %s in %s", p, n.Server, s.From))
		}
	}
	if s.Include != nil && !catalog.AnyOf(s.Include, n.Name) {
		d.add(scope.KindTool, listRule("include_tools", s.Include), fmt.Sprintf("add %s to include_tools of %s in %s", n.Name, n.Server, s.From))
	}
}

// Server decides about the use of an MCP server. For a server that the agent
// does not see, the decision is the same as for one that does not exist.
func (g *Grants) Server(name string) scope.Decision {
	if g.allowNothing() {
		return nothing
	}
	var d denial
	if rule := g.server(name, &d, false); d.fixes == nil {
		return scope.Decision{Allow: true, Kind: scope.KindServer, Rule: rule}
	}
	return d.decision()
}

// Skill decides about the use of a skill.
func (g *Grants) Skill(name string) scope.Decision {
	g = g.orZero()
	var d denial
	if _, ok := slices.BinarySearch(g.known.skills, name); !ok {
		d.add(scope.KindSkill, "no such skill", fmt.Sprintf("create %s/%s/SKILL.md", skillsDir, printable.Text(name)))
	}
	return g.named(scope.KindSkill, name, g.skills, "skills", d)
}

// MemberID returns the id of the agent that a call names as a member: by its id, or by a
// display name that no other agent has. Other names it returns as they are.
func (g *Grants) MemberID(name string) scope.ID {
	g = g.orZero()
	if slices.Contains(g.reach.Team, name) {
		return scope.ID(name)
	}
	return scope.ID(g.known.id(g.id, name))
}

// Member decides about delegating to an agent, by its id or its display name. An agent is
// not its own member.
func (g *Grants) Member(name string) scope.Decision {
	g = g.orZero()
	if slices.Contains(g.reach.Team, name) {
		return g.named(scope.KindMember, name, newNameList("members", g.reach.Team), "members", denial{})
	}
	name = g.known.id(g.id, name)
	var d denial
	if !g.known.sees(g.id, name) || name == string(g.id) {
		d.add(scope.KindMember, "no such agent", fmt.Sprintf("define another agent in %s/%s.md", agentsDir, printable.Text(name)))
	}
	return g.named(scope.KindMember, name, g.members, "members", d)
}

// Context decides about giving a call a scope of its client's context.
func (g *Grants) Context(name string) scope.Decision {
	g = g.orZero()
	key := "scopes.enum"
	if g.reach.Contexts.Fixed {
		key = "scopes.const"
	}
	d := g.named(scope.KindContext, name, g.contexts, key, denial{})
	for _, p := range g.reach.Contexts.Ask {
		if d.Allow && catalog.Wild(p, name) {
			return scope.Decision{Ask: true, Kind: scope.KindContext, Rule: "scopes.ask: " + p, Remedy: fmt.Sprintf("remove %s from scopes.ask, or approve the call", p)}
		}
	}
	return d
}

// SetContext decides about filling a scope of the client's context by context_set.
func (g *Grants) SetContext(name string) scope.Decision {
	if g.allowNothing() {
		return nothing
	}
	set := g.reach.Contexts.Set
	rule := listRule("scopes.set", set)
	if catalog.AnyOf(set, name) {
		return scope.Decision{Allow: true, Kind: scope.KindContext, Rule: rule}
	}
	return scope.Decision{Kind: scope.KindContext, Rule: rule, Remedy: addTo("scopes.set", name)}
}

// addTo returns the remedy that adds a name to a list. The list would take a name with an asterisk as a pattern.
func addTo(list, name string) string {
	if catalog.IsWild(name) {
		return fmt.Sprintf("use a name without *, which no entry of %s is for alone", list)
	}
	return fmt.Sprintf("add %s to %s", printable.Text(name), list)
}

// named decides about a name by its list l, in addition to the denials in d.
func (g *Grants) named(kind scope.Kind, name string, l *nameList, key string, d denial) scope.Decision {
	if g.allowNothing() {
		return nothing
	}
	rule := g.base()
	if l != nil {
		if rule = l.rule; !l.holds(name) {
			d.add(kind, rule, addTo(key, name))
		}
	}
	if d.fixes != nil {
		return d.decision()
	}
	return scope.Decision{Allow: true, Kind: kind, Rule: rule}
}
