// Package widening says in words what one definition of an agent allows beyond another.
package widening

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/hosts"
)

// notCompared begins the line of an entry that may allow more than the lines say: no procedure compares patterns.
const notCompared = "not compared: "

// Lines returns a line for each thing that an agent may do and that before, the same agent by other rules, may not. The
// lines have texts of the definition, which are not printable.
//
// The files of a view are not among them: a repository's file only narrows these.
func Lines(a, before *agents.Agent) (lines []string) {
	add := func(format string, v ...any) { lines = append(lines, fmt.Sprintf(format, v...)) }
	now, was := a.Grants, before.Grants
	lines = reaches("network", now.Hosts(), was.Hosts())
	servers, had := now.Servers(), was.Servers()
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		if _, same := had[name]; same {
			continue
		}
		s := servers[name]
		if s.URL != "" {
			add("mcp_servers: %s: the daemon sends calls of its tools to %s", name, s.URL)
			continue
		}
		add("mcp_servers: %s: runs %q in a sandbox of its own, as the agent's user; access to the agent's files: %s", name, slices.Concat([]string{s.Command}, s.Args), s.Use())
		lines = append(lines, reaches("mcp_servers: "+name, now.ServerHosts(name), nil)...)
		for _, line := range variables(s.Env, nil) {
			add("mcp_servers: %s: has %s", name, line)
		}
	}
	for _, tool := range now.ToolNames() {
		if d, old := now.Tool(tool), was.Tool(tool); level(d) > level(old) {
			add("tools: %s: %s; before: %s (%s)", tool, verdicts[level(d)], verdicts[level(old)], old.Rule)
		}
	}
	// A computed list has no entries to compare: an entry may match tools of servers, and tools that come later.
	if entries := now.Tools(); was.Computed() {
		if entries == nil {
			entries = []string{catalog.Everything}
		}
		for _, entry := range entries {
			if several := catalog.IsWild(entry) || strings.Contains(entry, ":") || entry == catalog.MCP; several && !slices.Contains(was.Tools(), entry) {
				add("%stools: %s: your own list is computed: [%s]", notCompared, entry, strings.Join(was.Tools(), ", "))
			}
		}
	}
	for _, name := range now.Skills() {
		if !was.Skill(name).Allow {
			add("skills: %s", name)
		}
	}
	for _, id := range now.Members() {
		if !was.Member(string(id)).Allow {
			add("members: gives tasks to %s", id)
		}
	}
	for _, entry := range a.Members {
		if catalog.IsWild(entry) && before.Members == nil {
			add("%smembers: %s: agents that you define later may match", notCompared, entry)
		}
	}
	for _, line := range variables(a.Env, before.Env) {
		add("env: sandboxes have %s", line)
	}
	return lines
}

// Team returns Lines of a proposal: of the agent, and of each agent of its team, which may not do by the user's definition
// what it may not do.
func Team(p agents.Proposal) []string {
	lines := Lines(p.With, p.Without)
	for _, member := range p.Team {
		for _, line := range Lines(member, p.Without) {
			lines = append(lines, fmt.Sprintf("agents: %s: %s", member.Name, line))
		}
	}
	for _, store := range p.Stores {
		lines = append(lines, fmt.Sprintf("stores: %s: the tools of that store, with data on this host, outside of the project", store))
	}
	return lines
}

var verdicts = []string{"denied", "allowed after approval", "allowed"}

// level is an index of verdicts.
func level(d scope.Decision) int {
	switch {
	case d.Allow:
		return 2
	case d.Ask:
		return 1
	}
	return 0
}

// variables returns the variables that now has and was has not.
func variables(now, was map[string]string) (lines []string) {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if old, ok := was[name]; !ok || old != now[name] {
			lines = append(lines, fmt.Sprintf("%s=%s", name, now[name]))
		}
	}
	return lines
}

// reaches returns a line for each connection and credential that now has and was has not. key is where the hosts are.
func reaches(key string, now, was *hosts.Policy) (lines []string) {
	added := now.Added(was)
	for _, r := range added.Allow {
		line := key + ": connects to " + hostText(r)
		if c, ok := now.Credentials()[r.Secret]; ok {
			line += fmt.Sprintf(", with your key (%s: the proxy adds it, the agent does not see it)", sourceText(c))
		}
		if r.Login != "" {
			line += fmt.Sprintf(", with your login in runs of %s (the proxy adds it, the agent does not see it)", r.Login)
		}
		lines = append(lines, line)
	}
	for _, r := range added.Ask {
		lines = append(lines, key+": asks you for connections to "+hostText(r))
	}
	if added.Others {
		lines = append(lines, key+": asks you for connections to every other host")
	}
	for _, o := range added.Over {
		lines = append(lines, fmt.Sprintf("%s%s: %s: %s: your rule for %s may no longer decide about it", notCompared, key, o.List, hostText(o.Rule), hostText(o.Own)))
	}
	return lines
}

// hostText returns a rule in words, with its host as the resolver has it: an international name may look like another.
func hostText(r scope.HostRule) string {
	name, wild := strings.CutPrefix(r.Host, "*.")
	if host, err := scope.ParseHost(name); err == nil {
		name = host
	}
	switch {
	case name == "*":
		name = "every host"
	case wild:
		name = "every name below " + name
	}
	if len(r.Ports) > 0 {
		name += " ports " + strings.Trim(fmt.Sprint(r.Ports), "[]")
	}
	if len(r.Methods) > 0 {
		name += ", only " + strings.Join(r.Methods, " ")
	}
	if len(r.Paths) > 0 {
		name += ", only paths " + strings.Join(r.Paths, " ")
	}
	return name
}

// sourceText says where a credential is, and not what it is.
func sourceText(c hosts.Credential) string {
	if len(c.From.Command) > 0 {
		return fmt.Sprintf("from the command %q", c.From.Command)
	}
	return cmp.Or(c.From.Env, c.From.File)
}
