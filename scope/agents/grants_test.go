package agents

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// testBase lays out agents (id → frontmatter without the name), skills and
// extensions (name → text without the name).
type testBase struct {
	agents     map[string]string
	skills     []string
	extensions map[string]string
}

func (b testBase) make(t testing.TB) string {
	t.Helper()
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, agentsDir), 0o755))
	for id, keys := range b.agents {
		writeFile(t, base, "agents.d/"+id+".md", "---\nname: "+id+"\n"+keys+"\n---\nHi.\n")
	}
	for _, name := range b.skills {
		writeFile(t, base, "skills/"+name+"/SKILL.md", "do")
	}
	for name, keys := range b.extensions {
		writeFile(t, base, "extensions.d/"+name+".yaml", "name: "+name+"\n"+keys)
	}
	return base
}

func writeFile(t testing.TB, base, rel, text string) {
	t.Helper()
	path := filepath.Join(base, rel)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// grantsOf loads one agent beside b and c, two skills, and two servers.
func grantsOf(t testing.TB, keys string, change ...func(*Host)) *Grants {
	t.Helper()
	base := testBase{
		agents: map[string]string{"a": keys, "b": "", "c": ""},
		skills: []string{"check-feeds", "summarize"},
	}.make(t)
	host := Host{Tools: ours(), Servers: Servers{"search": {Command: "s"}, "files": {Command: "f"}}}
	for _, f := range change {
		f(&host)
	}
	all, errs := Load(base, host)
	require.Empty(t, errs)
	return all.Agents["a"].Grants
}

func primary(h *Host) { h.Primary = "a" }
func memory(h *Host)  { h.Memory = true }

// what a decision is, in one word.
func word(d scope.Decision) string {
	switch {
	case d.Allow && d.Ask:
		return "both"
	case d.Allow:
		return "allow"
	case d.Ask:
		return "ask"
	}
	return "deny"
}

func TestGrantsTool(t *testing.T) {
	cases := map[string]struct {
		keys   string
		change func(*Host)
		want   string // "tool verdict rule", one a line
	}{
		"nothing said": {"", nil, `
			bash allow no rule
			builtin:bash allow no rule
			mcp:search:q allow no rule
			mcp:other:q deny no such server
			mcp:search deny no such tool
			foo:bar deny no such tool
			builtin:mcp:search:q deny no such tool`},
		"a list": {"tools: [read_file, builtin:stat, \"list_*\"]", nil, `
			read_file allow tools: [read_file, builtin:stat, list_*]
			builtin:read_file allow tools: [read_file, builtin:stat, list_*]
			stat allow tools: [read_file, builtin:stat, list_*]
			list_dir allow tools: [read_file, builtin:stat, list_*]
			bash deny tools: [read_file, builtin:stat, list_*]
			mcp:search:q deny tools: [read_file, builtin:stat, list_*]`},
		"none":              {"tools: []", nil, "bash deny tools: []\nmcp:search:q deny tools: []"},
		"all":               {"tools: [\"*\"]", nil, "bash allow no rule\nmcp:search:q allow no rule"},
		"all builtin":       {"tools: [\"builtin:*\"]", nil, "bash allow tools: [builtin:*]\nmcp:search:q deny tools: [builtin:*]"},
		"servers by name":   {"tools: [mcp]", nil, "mcp allow tools: [mcp]\nmcp:search:q allow tools: [mcp]\nbash deny tools: [mcp]"},
		"one server":        {"tools: [\"mcp:search:*\"]", nil, "mcp:search:q allow tools: [mcp:search:*]\nmcp:search:a:b allow tools: [mcp:search:*]\nmcp:files:q deny tools: [mcp:search:*]"},
		"server not listed": {"tools: [mcp]\nmcps: [files]", nil, "mcp:search:q deny mcps: [files]\nmcp:files:q allow tools: [mcp]"},
		"no servers":        {"tools: [\"*\"]\nmcps: []", nil, "mcp:search:q deny mcps: []"},

		"excluded":                   {"policy: {tools: {exclude: [bash]}}", nil, "bash deny policy.tools.exclude: bash\nstat allow no rule"},
		"excluded beats allowed":     {"policy: {tools: {allowed: [read_file, bash], exclude: [\"read_*\"]}}", nil, "read_file deny policy.tools.exclude: read_*\nbash allow policy.tools.allowed: [read_file, bash]\nstat deny policy.tools.allowed: [read_file, bash]"},
		"all excluded, some allowed": {"policy: {tools: {allowed: [bash], exclude: [\"*\"]}}", nil, "bash allow policy.tools.allowed: [bash]\nstat deny policy.tools.allowed: [bash]\nmcp:search:q deny policy.tools.allowed: [bash]"},
		"all excluded":               {"policy: {tools: {exclude: [\"*\"]}}", nil, "bash deny policy.tools.exclude: *\nmcp:search:q deny policy.tools.exclude: *"},
		"all excluded, none allowed": {"policy: {tools: {allowed: [], exclude: [\"*\"]}}", nil, "bash deny policy.tools.exclude: *"},
		"none allowed":               {"policy: {tools: {allowed: []}}", nil, "bash deny policy.tools.allowed: []"},
		"narrower is no default":     {"policy: {tools: {allowed: [\"mcp:search:q\", bash], exclude: [\"mcp:*:*\", \"*\"]}}", nil, "mcp:search:q deny policy.tools.exclude: mcp:*:*\nbash allow policy.tools.allowed: [mcp:search:q, bash]"},
		"mcp excluded":               {"policy: {tools: {exclude: [mcp]}}", nil, "mcp:search:q deny policy.tools.exclude: mcp\nbash allow no rule"},
		"mcp excluded by wildcard":   {"policy: {tools: {exclude: [\"mc*\"]}}", nil, "mcp:search:q deny policy.tools.exclude: mc*\nmcp deny policy.tools.exclude: mc*"},
		"intersected":                {"tools: [bash, stat]\npolicy: {tools: {allowed: [bash, grep]}}", nil, "bash allow policy.tools.allowed: [bash, grep]\nstat deny policy.tools.allowed: [bash, grep]\ngrep deny tools: [bash, stat]"},

		"asked":             {"policy: {tools: {ask: [bash]}}", nil, "bash ask policy.tools.ask: bash\nstat allow no rule"},
		"asked, not listed": {"tools: [stat]\npolicy: {tools: {ask: [bash]}}", nil, "bash deny tools: [stat]"},
		"asked, excluded":   {"policy: {tools: {ask: [bash], exclude: [\"b*\"]}}", nil, "bash deny policy.tools.exclude: b*"},
		"asked, allowed":    {"policy: {tools: {ask: [\"*\"], allowed: [bash]}}", nil, "bash ask policy.tools.ask: *\nstat deny policy.tools.allowed: [bash]"},
		"trusted":           {"policy: {tools: {ask: [mcp]}, mcp: {mcp_servers: {search: {trust: true}, files: {trust: false}}}}", nil, "mcp:search:q allow no rule\nmcp:files:q ask policy.tools.ask: mcp\nmcp ask policy.tools.ask: mcp"},
		"trusted, excluded": {"policy: {tools: {exclude: [\"mcp:search:rm*\"]}, mcp: {mcp_servers: {search: {trust: true}}}}", nil, "mcp:search:q allow no rule\nmcp:search:rmdir deny policy.tools.exclude: mcp:search:rm*"},

		"servers excluded":       {"policy: {mcp: {excluded: [search]}}", nil, "mcp:search:q deny policy.mcp.excluded: search\nmcp:files:q allow no rule"},
		"servers by default":     {"policy: {mcp: {allowed: [search], excluded: [\"*\"]}}", nil, "mcp:search:q allow policy.mcp.allowed: [search]\nmcp:files:q deny policy.mcp.allowed: [search]"},
		"all servers excluded":   {"policy: {mcp: {excluded: [\"*\"]}}", nil, "mcp:search:q deny policy.mcp.excluded: *"},
		"server twice over":      {"policy: {mcp: {allowed: [search], excluded: [\"s*\"]}}", nil, "mcp:search:q deny policy.mcp.excluded: s*"},
		"its own server":         {"mcp_servers: {own: {command: x}}\nmcps: [own]", nil, "mcp:own:q allow computed tools: [bash, ask_user, mcp]\nmcp:search:q deny mcps: [own]"},
		"skills make a list":     {"skills: [summarize]", nil, "bash allow computed tools: [bash, ask_user, skill]\nskill allow computed tools: [bash, ask_user, skill]\nread_file deny computed tools: [bash, ask_user, skill]\nmcp:search:q deny computed tools: [bash, ask_user, skill]"},
		"no skills make a list":  {"skills: []", nil, "skill deny computed tools: [bash, ask_user]\nask_user allow computed tools: [bash, ask_user]"},
		"servers make a list":    {"mcps: [\"*\"]", nil, "mcp:search:q allow computed tools: [bash, ask_user, mcp]\nskill deny computed tools: [bash, ask_user, mcp]"},
		"members make a list":    {"members: [b]", memory, "delegate allow computed tools: [bash, ask_user, remember, recall, memory, forget, delegate]\nrecall allow computed tools: [bash, ask_user, remember, recall, memory, forget, delegate]"},
		"other base tools":       {"members: []", func(h *Host) { h.BaseTools = []string{"stat"} }, "stat allow computed tools: [stat]\nbash deny computed tools: [stat]\ndelegate deny computed tools: [stat]"},
		"computed to nothing":    {"members: []", func(h *Host) { h.BaseTools = []string{} }, "stat deny computed tools: []\nmcp:search:q deny computed tools: []"},
		"tools beside others":    {"tools: [stat]\nskills: [summarize]", memory, "skill deny tools: [stat]\nrecall deny tools: [stat]\nbash deny tools: [stat]"},
		"primary":                {"tools: []\nskills: []\nmcps: []\nmembers: []", primary, "bash allow primary\nmcp:search:q allow primary\nmcp:other:q deny no such server"},
		"primary with a policy":  {"tools: []\npolicy: {tools: {exclude: [bash], ask: [stat]}, mcp: {excluded: [files]}}", primary, "bash deny policy.tools.exclude: bash\nstat ask policy.tools.ask: stat\nmcp:files:q deny policy.mcp.excluded: files\nglob allow primary"},
		"order is no matter":     {"policy: {tools: {exclude: [read_file], ask: [read_file], allowed: [read_file]}}", nil, "read_file deny policy.tools.exclude: read_file"},
		"neither is specificity": {"policy: {tools: {exclude: [\"mcp:*:q\"], allowed: [\"mcp:search:q\"]}}", nil, "mcp:search:q deny policy.tools.exclude: mcp:*:q"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			change := c.change
			if change == nil {
				change = func(*Host) {}
			}
			g := grantsOf(t, c.keys, change)
			for line := range strings.Lines(strings.TrimSpace(c.want)) {
				tool, want, _ := strings.Cut(strings.TrimSpace(line), " ")
				d := g.Tool(tool)
				assert.Equal(t, want, word(d)+" "+d.Rule, "%s", tool)
				assert.Equal(t, d.Allow, d.Remedy == "", "%s: %q", tool, d.Remedy)
			}
		})
	}
}

// TestGrantsNames: a skill, a server, a member and a context, each by name.
func TestGrantsNames(t *testing.T) {
	cases := map[string]struct {
		keys   string
		change []func(*Host)
		want   string // "what name verdict rule"
		block  string
		limits string
	}{
		"absent": {"", nil, `
			skill summarize allow no rule
			skill other deny no such skill
			server search allow no rule
			server other deny no such server
			member b deny no members
			member a deny no such agent
			context state allow no rule`, "skills: check-feeds, summarize\nmcp servers: files, search\n", ""},
		"none": {"skills: []\nmcps: []\nmembers: []\nscopes: {enum: []}", nil, `
			skill summarize deny skills: []
			server search deny mcps: []
			member b deny members: []
			context state deny scopes.enum: []`, "skills: none\nmcp servers: none\nmembers: none\n", "contexts: none\n"},
		"some": {"skills: [summ*]\nmcps: [search]\nmembers: [c, b]\nscopes: {const: [input]}", nil, `
			skill summarize allow skills: [summ*]
			skill check-feeds deny skills: [summ*]
			server search allow mcps: [search]
			server files deny mcps: [search]
			member b allow members: [c, b]
			member a deny no such agent
			member d deny no such agent
			context input allow scopes.const: [input]
			context state deny scopes.const: [input]`, "skills: summarize\nmcp servers: search\nmembers: b, c\n", "contexts: input (always these)\n"},
		"all": {"skills: [\"*\"]\nmcps: [\"*\"]\nmembers: [\"*\"]\nscopes: {enum: [\"*\"]}", nil, `
			skill summarize allow no rule
			server files allow no rule
			member b allow no rule
			member a deny no such agent
			context state allow no rule`, "skills: check-feeds, summarize\nmcp servers: files, search\nmembers: b, c\n", "contexts: any\n"},
		"tools": {"tools: [bash, \"read_*\", \"mcp:search:*\", \"mcp:files:rm\"]\npolicy: {tools: {exclude: [bash, \"mcp:files:r*\"]}}", nil, "server search allow no rule",
			"mcp servers: search\n", "tools not allowed: bash, mcp:files:r*\n"},
		"servers by policy": {"mcps: [search, files]\npolicy: {mcp: {excluded: [files]}}", nil, "server files deny policy.mcp.excluded: files", "mcp servers: search\n", ""},
		"primary": {"skills: []\nmcps: []\nmembers: []\ntools: []", []func(*Host){primary}, `
			skill summarize allow primary
			skill other deny no such skill
			server files allow primary
			member b allow primary
			member a deny no such agent`, "skills: check-feeds, summarize\nmcp servers: files, search\nmembers: b, c\n", ""},
		"no tool for them": {"tools: [read_file]\nskills: [summarize]\nmembers: [b]\nmcps: [search]", nil, "skill summarize allow skills: [summarize]",
			"skills: none\nmcp servers: none\nmembers: none\n", ""},
		"limits": {"view: {access: read}\nmembers: [b]\nscopes: {enum: [input, state]}\nrate_limits: {bash: 30/minute, \"*\": 5/second}\nargument_filters: {bash: [x, y]}\n" +
			"policy: {tools: {allowed: [bash, delegate, mcp], exclude: [\"*\", glob], ask: [bash, mcp]}, mcp: {excluded: [files], mcp_servers: {search: {trust: true}}}}", nil, "",
			"members: b\n", "contexts: input, state\nfiles: read only\nonly tools allowed: bash, delegate, mcp\ntools not allowed: glob\ntools that need approval: bash, mcp (not those of search)\n" +
				"rate limits: bash: 30/minute, *: 5/second\ntools with refused arguments: bash\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			g := grantsOf(t, c.keys, c.change...)
			ask := map[string]func(string) scope.Decision{"skill": g.Skill, "server": g.Server, "member": g.Member, "context": g.Context}
			for line := range strings.Lines(strings.TrimSpace(c.want)) {
				if words := strings.SplitN(strings.TrimSpace(line), " ", 3); len(words) == 3 {
					d := ask[words[0]](words[1])
					assert.Equal(t, words[2], word(d)+" "+d.Rule, "%v", words)
					assert.Equal(t, d.Allow, d.Remedy == "", "%v: %q", words, d.Remedy)
				}
			}
			want := "Hi."
			for tag, text := range map[string]*string{"scope": &c.block, "limits": &c.limits} {
				if *text != "" {
					*text = "<" + tag + ">\n" + *text + "</" + tag + ">"
				}
			}
			for _, text := range []string{c.block, c.limits} {
				want = strings.TrimSpace(want + "\n\n" + text)
			}
			assert.Equal(t, c.block, g.Block())
			assert.Equal(t, c.limits, g.Limits())
			assert.Equal(t, want, g.Prompt())
		})
	}
}

func TestGrantsRemedy(t *testing.T) {
	cases := map[string]struct{ keys, tool, want string }{
		"list":          {"tools: [bash]", "write_file", "add write_file to tools"},
		"excluded":      {"policy: {tools: {exclude: [bash]}}", "bash", "remove bash from policy.tools.exclude"},
		"both":          {"tools: [stat]\npolicy: {tools: {exclude: [\"b*\"], allowed: [stat]}}", "bash", "remove b* from policy.tools.exclude, and add bash to tools, and add bash to policy.tools.allowed"},
		"asked":         {"policy: {tools: {ask: [bash]}}", "bash", "remove bash from policy.tools.ask, or approve the call"},
		"computed":      {"skills: []", "stat", "add tools: [bash, ask_user, stat]"},
		"skill":         {"skills: []", "skill", "name a skill in skills"},
		"mcp":           {"skills: []", "mcp", "name a server in mcps"},
		"delegate":      {"skills: []", "delegate", "name an agent in members"},
		"server":        {"mcps: [files]", "mcp:search:q", "add search to mcps"},
		"no list of it": {"skills: []\nmcps: []", "mcp:search:q", "add search to mcps"},
		"no server":     {"", "mcp:other:q", `define "other" in mcp_servers`},
		"a pattern":     {"policy: {tools: {allowed: [bash]}}", "mcp:search:*", "name it NAME, builtin:NAME or mcp:SERVER:TOOL"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, grantsOf(t, c.keys).Tool(c.tool).Remedy) })
	}
	// An agent chooses the names of skills, members and scopes. No remedy adds a pattern.
	g := grantsOf(t, "skills: []\nmembers: []\nscopes: {enum: [mine], set: [mine]}")
	for _, name := range []string{"*", "s*"} {
		for _, d := range []scope.Decision{g.Skill(name), g.Member(name), g.SetContext(name), g.Server(name)} {
			assert.False(t, d.Allow)
			assert.NotContains(t, d.Remedy, "add "+name, d.Rule)
		}
	}
	assert.Equal(t, "use a name without *, which no entry of scopes.set is for alone", g.SetContext("*").Remedy)
}

func TestGrantsLists(t *testing.T) {
	g := grantsOf(t, "tools: [bash]\nrate_limits: {bash: 30/minute, \"mcp:search:*\": 2/second, mcp: 1/hour}\nargument_filters: {bash: ['rm -rf', '^x$']}\n")
	assert.Equal(t, []scope.Rate{{Pattern: "bash", N: 30, Per: time.Minute}, {Pattern: "mcp:search:*", N: 2, Per: time.Second}, {Pattern: "mcp", N: 1, Per: time.Hour}}, g.Rates())
	assert.Equal(t, "bash: 30/minute", g.Rates()[0].String())
	require.Len(t, g.Filters(), 1)
	assert.Equal(t, g.Filters(), g.FiltersOf("builtin:shell"))
	assert.Empty(t, g.FiltersOf("stat"), "only the tools of the pattern")
	assert.Equal(t, g.Rates()[:1], g.RatesOf("bash"))
	assert.Equal(t, g.Rates()[1:], g.RatesOf("mcp:search:q"))
	assert.Empty(t, g.RatesOf("stat"))
	assert.True(t, g.Filters()[0].Regexps[0].MatchString("sudo rm -rf /"))
	assert.Equal(t, []string{"bash"}, g.Tools())
	assert.Equal(t, []string{"check-feeds", "summarize"}, g.Skills())
	assert.Len(t, g.Servers(), 2)
	assert.Empty(t, g.Members())
	assert.Nil(t, grantsOf(t, "").Tools())
	assert.Nil(t, grantsOf(t, "tools: [\"*\"]").Tools())
	assert.Equal(t, []string{}, grantsOf(t, "tools: []").Tools())
	assert.Equal(t, []scope.ID{"b", "c"}, grantsOf(t, "members: [\"*\"]").Members())
	assert.True(t, grantsOf(t, "members: [b]").Computed())
	names, fixed := grantsOf(t, "scopes: {const: [input]}").Contexts()
	assert.Equal(t, []string{"input"}, names)
	assert.True(t, fixed)

	// What was handed out is the caller's.
	g.Tools()[0], g.Skills()[0], g.Rates()[0].Pattern, g.Filters()[0].Regexps[0] = "stat", "x", "x", nil
	delete(g.Servers(), "search")
	assert.True(t, g.Tool("bash").Allow)
	assert.Equal(t, "check-feeds", g.Skills()[0])
	assert.Len(t, g.Servers(), 2)
	assert.NotNil(t, g.Filters()[0].Regexps[0])
}

// TestNobodysGrants: what was never compiled allows nothing.
func TestNobodysGrants(t *testing.T) {
	for name, g := range map[string]*Grants{"nil": nil, "zero": {}} {
		for _, d := range []scope.Decision{g.Tool("bash"), g.Skill("x"), g.Server("x"), g.Member("x"), g.Context("x")} {
			assert.Equal(t, scope.Decision{Kind: scope.KindNothing, Rule: "no policy"}, d, name)
		}
		assert.NotNil(t, g.Tools(), "%s: nil would be unrestricted", name)
		names, _ := g.Contexts()
		assert.NotNil(t, names, "%s: nil would be any", name)
		assert.Empty(t, slices.Concat(g.Tools(), g.Skills()), name)
		assert.Empty(t, g.Servers(), name)
		assert.Empty(t, g.Members(), name)
		assert.Empty(t, g.Rates(), name)
		assert.Empty(t, g.Filters(), name)
		assert.Empty(t, g.Version()+g.Block()+g.Prompt(), name)
		assert.False(t, g.Primary() || g.Computed(), name)
	}
	all, _ := Load(testBase{agents: map[string]string{"a": ""}}.make(t), Host{Tools: ours()})
	assert.Nil(t, all.Agents["b"], "an agent without a file is unknown")
}
