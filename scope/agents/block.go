package agents

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/hosts"
)

// Block returns a summary for the agent of what it may use, in the form
//
//	<scope>
//	skills: check-feeds, summarize
//	mcp servers: search
//	members: researcher, writer
//	</scope>
//
// A line appears if it has names or a list restricts it. The block omits names
// that the agent cannot use because it lacks the tool, or because the caller of
// its task does (see Within). The agent gets the list of its tools separately,
// and its other limits from [Grants.Limits].
func (g *Grants) Block() string {
	if g.allowNothing() {
		return ""
	}
	var b block
	var skills, servers, members []string
	if g.offers("skill") {
		skills = g.Skills()
	}
	for _, name := range slices.Sorted(maps.Keys(g.Servers())) {
		if g.Uses(name) {
			servers = append(servers, name)
		}
	}
	if g.offers("delegate") {
		for _, id := range g.Members() {
			members = append(members, string(id))
		}
	}
	b.line("skills", g.skills != nil, skills)
	b.line("mcp servers", g.mcps != nil, servers)
	b.line("members", g.members != nil && g.reach.Members != nil, members)
	return b.in("scope")
}

// Limits returns the rules of the agent that are not in its Block, in the form
//
//	<limits>
//	contexts: input, state (always these)
//	contexts that need approval: state
//	files: read only
//	hosts: api.example.org, others after approval
//	within what is allowed to: the-agent-that-delegated
//	only tools allowed: bash, mcp
//	tools not allowed: bash
//	tools that need approval: mcp (not those of search)
//	rate limits: bash: 30/minute
//	tools with refused arguments: bash
//	</limits>
//
// A line appears if the agent has such a rule; without any the text is empty.
func (g *Grants) Limits() string {
	if g.allowNothing() {
		return ""
	}
	var b block
	if names, fixed := g.Contexts(); g.reach.Contexts.Names != nil {
		switch {
		case slices.Contains(names, catalog.Everything):
			names = []string{"any"}
		case fixed && len(names) > 0:
			names[len(names)-1] += " (always these)"
		}
		b.line("contexts", true, names)
		b.line("contexts that need approval", g.reach.Contexts.Ask != nil, g.reach.Contexts.Ask)
		b.line("contexts that context_set fills", len(g.reach.Contexts.Set) > 0, g.reach.Contexts.Set)
	}
	if g.readOnly {
		b.line("files", true, []string{"read only"})
	}
	if may := g.Hosts(); may.Kind() == hosts.Rules {
		b.line("hosts", true, may.Names())
		b.line("ports", false, may.PortNames())
	}
	if g.caller != nil {
		b.line("within what is allowed to", true, []string{string(g.caller.id)})
	}
	g.policyLines(&b)
	return b.in("limits")
}

// policyLines writes the lines of the policy, the rates and the filters.
func (g *Grants) policyLines(b *block) {
	r := g.reach
	b.line("only tools allowed", g.allowed != nil, r.Rules.Allowed)
	b.line("tools not allowed", false, patternTexts(g.exclude))
	ask := slices.Clone(r.Rules.Ask)
	if len(ask) > 0 && len(r.Rules.Trusted) > 0 {
		ask[len(ask)-1] += " (not those of " + strings.Join(r.Rules.Trusted, ", ") + ")"
	}
	b.line("tools that need approval", false, ask)
	var rates, filters []string
	for _, rate := range r.Rates {
		rates = append(rates, rate.String())
	}
	for _, f := range r.Filters {
		filters = append(filters, f.Pattern)
	}
	b.line("rate limits", false, rates)
	b.line("tools with refused arguments", false, filters)
}

// block builds the text of a block.
type block struct{ strings.Builder }

// line writes a line with names. It omits a line without names unless always is
// set.
func (b *block) line(label string, always bool, names []string) {
	if !always && len(names) == 0 {
		return
	}
	text := strings.Join(names[:min(len(names), maxTold)], ", ")
	if more := len(names) - maxTold; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if text == "" {
		text = "none"
	}
	b.WriteString(label + ": " + text + "\n")
}

// in returns the lines within a tag; without lines "".
func (b *block) in(tag string) string {
	if b.Len() == 0 {
		return ""
	}
	return "<" + tag + ">\n" + b.String() + "</" + tag + ">"
}

// maxTold limits the names in a line of a block.
const maxTold = 100

func patternTexts(all []catalog.Pattern) (texts []string) {
	for _, p := range all {
		texts = append(texts, p.Text)
	}
	return texts
}

// offers reports whether a tool may be called, possibly with approval.
func (g *Grants) offers(tool string) bool {
	d := g.Tool(tool)
	return d.Allow || d.Ask
}

// Uses reports whether the rules may allow at least one tool of a server,
// possibly with approval. It does not know the server's tools.
func (g *Grants) Uses(server string) bool {
	if !g.Server(server).Allow {
		return false
	}
	names := []string{"*"} // represents a tool that no pattern except * matches
	add := func(patterns []catalog.Pattern) {
		for _, p := range patterns {
			if p.Server != "" && catalog.Wild(p.Server, server) {
				names = append(names, p.Name)
			}
		}
	}
	for c := g; c != nil; c = c.caller {
		names = append(names, c.servers[server].Include...)
		for _, l := range []*toolList{c.tools, c.allowed} {
			if l != nil {
				add(l.patterns)
			}
		}
	}
	for _, a := range names[:min(len(names), 100)] { // a name that two patterns match
		for _, b := range names[:min(len(names), 100)] {
			names = append(names, a+b)
		}
	}
	return slices.ContainsFunc(names, func(name string) bool {
		// Replace the asterisk, so that the name is one that the pattern
		// matches.
		return g.offers(catalog.MCPPrefix + server + ":" + strings.ReplaceAll(name, "*", "\u2217"))
	})
}

// idle is an entry of a definition that has no effect, by key.
type idle struct {
	key string
	err error
}

// idle returns the lists of the agent that need a tool it does not have, and those that
// do not restrict it because it is the primary.
func (g *Grants) idle() (all []idle) {
	if g.primary {
		for _, l := range []struct {
			key  string
			list []string
		}{{"tools", g.reach.Tools}, {"skills", g.reach.Skills}, {"mcps", g.reach.MCPs}, {"members", g.reach.Members}} {
			if l.list != nil {
				all = append(all, idle{l.key, fmt.Errorf("%s: the list does not restrict the primary agent: write policy, or name another primary in %s", l.key, HostFile)})
			}
		}
		return all
	}
	add := func(key, what, tool string) {
		all = append(all, idle{key, fmt.Errorf("%s: %s, for there is no tool %s: add %s to tools, or remove %s", key, what, tool, tool, key)})
	}
	r := g.reach
	if g.Computed() && len(r.Skills)+len(r.MCPs)+len(r.Members) == 0 {
		for _, l := range []idle{{key: "mcps"}, {key: "skills"}, {key: "members"}} {
			if named := map[string][]string{"mcps": r.MCPs, "skills": r.Skills, "members": r.Members}[l.key]; named != nil {
				l.err = fmt.Errorf("%s: [] without tools leaves the agent %s, and no file tools: write tools: [\"*\"] beside it for all",
					l.key, strings.Join(g.Tools(), ", "))
				all = append(all, l)
				break
			}
		}
	}
	if len(r.Skills) > 0 && !g.offers("skill") {
		add("skills", "the agent cannot read them", "skill")
	}
	if len(r.Members) > 0 && !g.delegates() {
		add("members", "the agent cannot delegate to them", "delegate")
	}
	if len(r.MCPs) > 0 && len(g.Servers()) > 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(g.Servers())), g.Uses) {
		add("mcps", "the agent cannot use them", catalog.MCP)
	}
	return all
}

// delegates reports whether the agent has a tool that gives tasks to members.
func (g *Grants) delegates() bool {
	return g.offers("delegate") || slices.ContainsFunc(g.tooling(), func(t catalog.Tool) bool { return t.Delegates && g.offers(t.Name) })
}

// emptied returns a warning for each member, by name, that keeps none of its own tools in
// a task of the agent.
func (s *Snapshot) emptied(a *Agent, refs []catalog.Ref) (all []error) {
	if a == nil || !a.Grants.delegates() {
		return nil
	}
	for _, name := range slices.Concat(a.Grants.reach.Members, a.Grants.reach.Team) {
		m := s.Agents[scope.ID(name)]
		if m == nil || m.Grants.Tools() == nil {
			continue
		}
		within := m.Grants.Delegated(a.Grants)
		has := func(g *Grants) bool {
			return slices.ContainsFunc(m.Grants.ToolNames(), func(tool string) bool { return tool != catalog.MCP && m.Grants.offers(tool) && g.offers(tool) })
		}
		if within != nil && has(m.Grants) && !has(within) {
			all = append(all, fields.ErrorAt(a.File, catalog.LineOf(refs, "members"), a.Name, fmt.Errorf(
				"members: %s keeps none of its tools in a task of this agent, whose tools bound it: write members: {%s: {may: widen}}, or add tools", name, name)))
		}
	}
	return all
}

// Prompt returns the body of the definition, then the Block and the Limits, separated
// by empty lines.
func (g *Grants) Prompt() string {
	parts := slices.DeleteFunc([]string{g.orZero().prompt, g.Block(), g.Limits()}, func(s string) bool { return s == "" })
	return strings.Join(parts, "\n\n")
}

// hash returns the version, and a hash that also covers what the version omits.
func (g *Grants) hash(def *Definition) (version, sum string) {
	servers := Servers(g.Servers())
	bare := servers.clone()
	for _, s := range bare {
		for key := range s.Env {
			s.Env[key] = ""
		}
	}
	r := def.Reach
	r.Servers = nil // included in Servers
	var denied []string
	for key, list := range [][]catalog.Pattern{g.exclude, g.ask} {
		for _, p := range list {
			if p.From != "" {
				denied = append(denied, fmt.Sprint(key, p.Text))
			}
		}
	}
	version = digest(struct {
		Files   scope.PolicySpec
		User    string
		Network hosts.Network
		Reach   Reach
		Primary bool
		Tools   []string
		Skills  []string
		Members []scope.ID
		Servers Servers
		Hosts   map[string]hosts.Network // of servers, with the rules of presets
		Denied  []string                 // by extensions
	}{def.View.PolicySpec(), def.User, g.hosts.Network(), r, g.primary, g.Tools(), g.Skills(), g.Members(), bare, networksOf(g.serverHosts), denied})
	return version, digest([]any{version, servers})
}

func networksOf(policies map[string]*hosts.Policy) map[string]hosts.Network {
	all := map[string]hosts.Network{}
	for name, h := range policies {
		all[name] = h.Network()
	}
	return all
}

func digest(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot happen: values, strings and numbers
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
