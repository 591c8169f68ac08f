// Package widening compares what two definitions of an agent allow.
//
// It compares by the functions that decide. It asks both about names that stand for all that the patterns of the two
// distinguish, also for names that neither has; see [excess.Words].
package widening

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/excess"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/scope/network"
)

// Of returns what an agent may do and before, the same agent by other rules, may not. Their texts are those of definitions,
// which are not printable.
func Of(a, before *agents.Agent) []excess.Excess {
	c := comparison{now: a.Grants, was: before.Grants, steps: excess.MaxSteps}
	c.hosts("network", c.now.Hosts(), c.was.Hosts())
	c.servers()
	c.names()
	c.serverTools()
	c.variables("env", "sandboxes have ", a.Env, before.Env)
	c.files("view", a.View.PolicySpec(), before.View.PolicySpec())
	c.roots(a.Definition, before.Definition)
	c.devices(a.Devices, before.Devices)
	c.keys(a.SSHKeys, before.SSHKeys)
	c.limits(a.Limits, before.Limits)
	c.restrictions(a.Reach, before.Reach)
	if before.View.Changes == agents.ChangesHeld && a.View.Changes != before.View.Changes {
		c.add("view", "files change without a commit")
	}
	for _, key := range a.Differs(before.Definition) {
		if top, _, _ := strings.Cut(key, "."); !slices.Contains(compared, key) && !slices.Contains(compared, top) {
			c.undecided(key, "differs")
		}
	}
	return c.all
}

// compared are the keys of Differs that Of compares, and those that allow nothing.
var compared = []string{
	"contexts", "devices", "env", "filters", "limits", "mcps", "members", "network", "rates", "rules", "servers", "skills", "ssh_keys", "tasks", "team", "tools",
	"view.access", "view.changes", "view.git", "view.hardlinks", "view.paths", "view.protect", "view.roots", "widened",
	"description", "displayname", "model", "name", "prompt", "repository", "teamof",
}

// Team returns a line for each thing that a proposal allows: to the agent, and to each agent of its team, which may not do by
// the user's definition what the agent may not do.
func Team(p agents.Proposal) (lines []string) {
	for _, e := range Of(p.With, p.Without) {
		lines = append(lines, e.String())
	}
	for _, member := range p.Team {
		for _, e := range Of(member, p.Without) {
			e.Key = fmt.Sprintf("agents: %s: %s", member.Name, e.Key)
			lines = append(lines, e.String())
		}
	}
	for _, store := range p.Stores {
		lines = append(lines, fmt.Sprintf("stores: %s: the tools of that store, with data on this host, outside of the project", store))
	}
	return lines
}

// All returns a line for each thing that agents of after may do and the same agents of before may not, with the agents, and for
// each agent that before has not.
func All(before, after *agents.Snapshot) (lines []string) {
	of := map[string][]string{}
	for _, id := range slices.Sorted(maps.Keys(after.Agents)) {
		now, was := after.Agents[id], before.Agents[id]
		if now.RootOf != "" { // its agent's comparison has it
			continue
		}
		texts := []string{"agents: defined by it"}
		if was != nil {
			texts = nil
			for _, e := range Of(now, was) {
				texts = append(texts, e.String())
			}
		}
		for _, text := range texts {
			if of[text] == nil {
				lines = append(lines, text)
			}
			of[text] = append(of[text], string(id))
		}
	}
	const most = 5
	for i, text := range lines {
		ids := of[text]
		lines[i] += ", for " + strings.Join(ids[:min(len(ids), most)], ", ")
		if len(ids) > most {
			lines[i] += fmt.Sprintf(" and %d more", len(ids)-most)
		}
	}
	return lines
}

// Presets returns what an agent may do with further presets of hosts.
func Presets(g *agents.Grants, presets []string) []excess.Excess {
	c := comparison{now: g, was: g, steps: excess.MaxSteps}
	c.hosts("network", g.HostsWith(presets), g.Hosts())
	return c.all
}

// comparison collects what the grants now allow and was do not.
type comparison struct {
	now, was *agents.Grants
	all      []excess.Excess
	steps    int
}

func (c *comparison) add(key, format string, v ...any) {
	c.all = append(c.all, excess.Excess{Key: key, What: fmt.Sprintf(format, v...)})
}

func (c *comparison) undecided(key, what string) {
	c.all = append(c.all, excess.Excess{Key: key, What: what, Undecided: true})
}

// words calls visit with the names that stand for all that patterns distinguish.
func (c *comparison) words(key string, g excess.Grammar, patterns []string, visit func(name string)) {
	all := []excess.Expression{excess.WildExpression("*")}
	for _, p := range slices.Compact(slices.Sorted(slices.Values(patterns))) {
		all = append(all, excess.WildExpression(p))
	}
	ended := excess.Words(g, all, &c.steps, func(name string) bool {
		visit(name)
		return true
	})
	if !ended {
		c.undecided(key, "has too many patterns to compare")
	}
}

// decided adds what the decision about a name allows, unless it has been added for such a name.
func (c *comparison) decided(seen map[string]bool, key, what, witness string, now, was scope.Decision) {
	id := fmt.Sprint(what, now.Allow, was.Ask, was.Rule)
	if !now.Wider(was) || seen[id] {
		return
	}
	seen[id] = true
	before := "denied"
	if was.Ask {
		before = verdict(was)
	}
	if was.Rule != "" {
		before += " (" + was.Rule + ")"
	}
	c.all = append(c.all, excess.Excess{Key: key, What: what + ": " + verdict(now), Witness: witness, Before: before})
}

func verdict(d scope.Decision) string {
	if d.Ask {
		return "allowed after approval"
	}
	return "allowed"
}

// each compares the decisions about names of one kind: those that there are, and those that come later.
func (c *comparison) each(key, what, later string, g excess.Grammar, patterns, there []string,
	decide func(*agents.Grants, string) scope.Decision) {
	seen := map[string]bool{}
	for _, name := range there {
		c.decided(seen, key, what+name, "", decide(c.now, name), decide(c.was, name))
	}
	c.words(key, g, append(patterns, there...), func(name string) {
		if !slices.Contains(there, name) {
			c.decided(seen, key, later, name, decide(c.now, name), decide(c.was, name))
		}
	})
}

// names compares the decisions about tools of scopefs, skills, members and contexts.
func (c *comparison) names() {
	v := c.now.Vocabulary(c.was)
	c.each("tools", "", "tools that come later", toolNames, v.Tools, c.now.ToolNames(), func(g *agents.Grants, name string) scope.Decision {
		if name == "mcp" { // it is the tools of servers
			return scope.Decision{}
		}
		return g.Tool(name)
	})
	c.each("skills", "", "skills that come later", skillNames, v.Skills, c.now.Skills(), func(g *agents.Grants, name string) scope.Decision {
		return g.Among("", name, "").Skill(name)
	})
	var members []string
	for _, id := range c.now.Members() {
		members = append(members, string(id))
		if c.now.Widens(id) && !c.was.Widens(id) {
			c.add("members", "%s may do more than the agent", id)
		}
	}
	const later = "gives tasks to agents that you define later"
	c.each("members", "gives tasks to ", later, ids, v.Members, members, func(g *agents.Grants, name string) scope.Decision {
		return g.Among("", "", scope.ID(name)).Member(name)
	})
	c.each("scopes", "", "calls see contexts", contextNames, v.Contexts, nil, (*agents.Grants).Context)
	c.each("scopes", "", "calls set contexts", contextNames, v.Contexts, nil, (*agents.Grants).SetContext)
}

// serverTools compares the decisions about tools of the servers that both see, and of servers that come later.
func (c *comparison) serverTools() {
	v, seen := c.now.Vocabulary(c.was), map[string]bool{}
	c.words("mcps", serverNames, v.Servers, func(server string) {
		what := "tools of " + server
		switch had := c.was.Sees(server); {
		case !had && c.now.Sees(server): // servers has it
			return
		case !had:
			what = "tools of servers that come later"
		}
		now, was := c.now.Among(server, "", ""), c.was.Among(server, "", "")
		c.words("tools", serverTools, v.ServerTools(server), func(tool string) {
			name := "mcp:" + server + ":" + tool
			c.decided(seen, "tools", what, name, now.Tool(name), was.Tool(name))
		})
	})
}

// servers compares the servers, and the hosts of each.
func (c *comparison) servers() {
	servers, had := c.now.Servers(), c.was.Servers()
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		s, before := servers[name], had[name]
		if reflect.DeepEqual(s, before) {
			continue
		}
		key := "mcp_servers: " + name
		if s.URL != "" {
			c.add(key, "the daemon sends calls of its tools to %s", s.URL)
			continue
		}
		c.add(key, "runs %q in a sandbox of its own, as the agent's user; access to the agent's files: %s",
			slices.Concat([]string{s.Command}, s.Args), s.Use())
		c.hosts(key, c.now.ServerHosts(name), c.was.ServerHosts(name))
		c.variables(key, "has ", s.Env, before.Env)
	}
}

// variables adds the variables that now has and was has not.
func (c *comparison) variables(key, what string, now, was map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if old, ok := was[name]; !ok || old != now[name] {
			c.add(key, "%s%s=%s", what, name, now[name])
		}
	}
}

// roots compares further directories. One that was not there could not be read.
func (c *comparison) roots(now, was *agents.Definition) {
	for _, r := range now.View.Roots {
		own := agents.RootOfAgent(now, r).View
		i := slices.IndexFunc(was.View.Roots, func(o agents.Root) bool { return o.Dir == r.Dir })
		if i < 0 {
			may := "read and changed"
			if own.Access == scope.Read && !slices.ContainsFunc(own.Paths, func(p scope.PathRule) bool { return p.Access < scope.Read }) {
				may = "read"
			}
			if own.Closed {
				may += ", once you allow it"
			}
			c.add("view.roots", "%s can be %s", r.Dir, may)
			continue
		}
		before := agents.RootOfAgent(was, was.View.Roots[i]).View
		c.files("view.roots: "+r.Dir, own.PolicySpec(), before.PolicySpec())
		if own.Changes != before.Changes {
			c.undecided("view.roots: "+r.Dir, "changes differs")
		}
	}
}

// devices adds the devices that now names and was does not. A name may stand for what another names.
func (c *comparison) devices(now, was []string) {
	for _, name := range now {
		if !slices.Contains(was, name) {
			c.add("sandbox", "opens the device %s of the host", name)
		}
	}
}

// keys adds the SSH keys that now lets the agent use and was does not, or only after a question.
func (c *comparison) keys(now, was map[string]agents.KeyUse) {
	order := []agents.KeyUse{agents.KeyDeny, agents.KeyAsk, agents.KeyAllow}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		before := cmp.Or(was[name], agents.KeyDeny)
		if slices.Index(order, now[name]) > slices.Index(order, before) {
			c.add("ssh_keys", "logs in and signs with your key %s: %s in place of %s", name, now[name], before)
		}
	}
}

// files compares the rules of views.
func (c *comparison) files(key string, now, was scope.PolicySpec) {
	if reflect.DeepEqual(now, was) {
		return
	}
	p, err := scope.Compile(now)
	before, wrong := scope.Compile(was)
	if err != nil || wrong != nil { // of a definition made in code
		c.undecided(key, "does not compile")
		return
	}
	for _, e := range excess.Of(p, before) {
		if e.Key == "view" {
			e.Key = key
		}
		c.all = append(c.all, e)
	}
}

// limits compares the bounds of resources: 0 is none.
func (c *comparison) limits(now, was agents.Limits) {
	a, b := reflect.ValueOf(now), reflect.ValueOf(was)
	for i := range a.NumField() {
		most, before := a.Field(i), b.Field(i)
		if !before.IsZero() && (most.IsZero() || greater(most, before)) {
			what := fmt.Sprint(most)
			if most.IsZero() {
				what = "no limit"
			}
			c.add("limits", "%s: %s in place of %v", cmp.Or(a.Type().Field(i).Tag.Get("key"), strings.ToLower(a.Type().Field(i).Name)), what, before)
		}
	}
}

func greater(a, b reflect.Value) bool {
	if a.CanFloat() {
		return a.Float() > b.Float()
	}
	return a.Int() > b.Int()
}

// restrictions adds the rates and filters that now has not: which calls others bound as much, is not compared.
func (c *comparison) restrictions(now, was agents.Reach) {
	for _, rate := range was.Rates {
		if !slices.Contains(now.Rates, rate) {
			c.undecided("rate_limits", "is without "+rate.String())
		}
	}
	for _, filter := range was.Filters {
		if !slices.ContainsFunc(now.Filters, func(f scope.Filter) bool { return fmt.Sprint(f) == fmt.Sprint(filter) }) {
			c.undecided("argument_filters", fmt.Sprintf("is without %s: %s", filter.Pattern, filter.Regexps))
		}
	}
	if was.Tasks == agents.ChangesHeld && now.Tasks != was.Tasks {
		c.add("delegate", "members change files without a commit")
	}
	if !reflect.DeepEqual(now.Contexts.Tools, was.Contexts.Tools) || now.Contexts.Fixed && !was.Contexts.Fixed {
		c.undecided("scopes", "differs in tools or const")
	}
}

// hosts adds the connections and credentials that now has and was has not.
func (c *comparison) hosts(key string, now, was *hosts.Policy) {
	for _, e := range now.Excess(was) {
		more := excess.Excess{Key: key, Undecided: e.Undecided}
		switch {
		case e.Opens != "":
			more.What = e.Opens
		case e.Unseen:
			more.What = "connects to " + hostText(e.Allows) + " by a tunnel: the proxy does not see the requests"
		case e.Lost != "":
			more.What = "is without the limit " + e.Lost
		case e.Allows.Host == "" && e.Asks:
			more.What = "asks you for connections to every other host"
		case e.Allows.Host == "":
			more.What = "connects to every address"
		case e.Asks:
			more.What = "asks you for connections to " + hostText(e.Allows)
		default:
			more.What = "connects to " + hostText(e.Allows)
			if c, ok := now.Credentials()[e.Allows.Secret]; ok {
				more.What += fmt.Sprintf(", with your key (%s: the proxy adds it, the agent does not see it)", sourceText(c))
			}
			if e.Allows.Login != "" {
				more.What += fmt.Sprintf(", with your login in runs of %s (the proxy adds it, the agent does not see it)", e.Allows.Login)
			}
		}
		if e.Before.Kind != scope.KindNothing && !e.Before.Others && e.Before.Rule != "" {
			more.Witness, more.Before = e.Text(), e.Before.Rule
		}
		c.all = append(c.all, more)
	}
}

// hostText returns a rule in words, with its host as the resolver has it: an international name may look like another.
func hostText(r network.HostRule) string {
	name, wild := strings.CutPrefix(r.Host, "*.")
	if host, err := network.ParseHost(name); err == nil {
		name = host
	}
	switch {
	case name == "*":
		name = "every host"
	case wild:
		name = "every name below " + name
	}
	if at := r.Address; at.IsValid() && at.Port() == 0 {
		name += " at " + at.Addr().String()
	} else if at.IsValid() {
		name += " at " + at.String()
	}
	if r.CA != "" {
		name += ", with a ca of its own"
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
