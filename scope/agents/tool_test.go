package agents

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
)

func TestMatchTool(t *testing.T) {
	cases := map[string]struct{ yes, no string }{
		"*":               {"bash builtin:bash mcp:a:b mcp:a:b:c new_tool", "mcp:a mcp: mcp:a: foo:bar builtin:a:b * re*d b\x00"},
		"bash":            {"bash builtin:bash", "bashed mcp:bash:bash mcp:a:bash"},
		"builtin:bash":    {"bash builtin:bash", "builtin:builtin:bash"},
		"read_*":          {"read_file read_", "xread_file mcp:read_:x"},
		"*_file":          {"read_file _file", "read_files"},
		"*e*d*":           {"ed delegate_d feed", "de"},
		"builtin:*":       {"bash mcp", "mcp:a:b"},
		"mcp":             {"mcp builtin:mcp mcp:a:b", "mcpx"},
		"m*":              {"mcp move memory", "mcp:a:b"},
		"mcp:a:*":         {"mcp:a:b mcp:a:b:c", "mcp:ab:c mcp a bash"},
		"mcp:*:*":         {"mcp:a:b mcp:b:c:d", "mcp bash"},
		"mcp:a*:x-*-y":    {"mcp:a:x--y mcp:ab:x-1-y", "mcp:b:x--y mcp:a:x-y"},
		"mcp:a":           {"", "mcp:a mcp:a:b mcp"},
		"builtin:mcp:a:b": {"", "mcp:a:b"},
		"**":              {"", "bash"},
		"":                {"", "bash"},
		"a b":             {"", "a"},
	}
	for pattern, c := range cases {
		for name := range strings.FieldsSeq(c.yes) {
			assert.True(t, ours().Match(pattern, name), "%s %s", pattern, name)
		}
		for name := range strings.FieldsSeq(c.no) {
			assert.False(t, ours().Match(pattern, name), "%s %s", pattern, name)
		}
	}
	for _, name := range ours().Names() {
		assert.True(t, ours().Match(name, "builtin:"+name), name)
	}
}

// anyDefinition returns the keys of a random definition, and what it excludes.
func anyDefinition(r *rand.Rand) (keys string, exclude, allowed []string) {
	pool := append(ours().Names(), "*", "builtin:*", "read_*", "*e*", "mcp:*:*", "mcp:search:*", "mcp:files:r*", "mcp:search:q", "m*", "builtin:stat")
	some := func(pool []string) []string {
		list := []string{}
		for range r.IntN(5) {
			s := pool[r.IntN(len(pool))]
			if !slices.ContainsFunc(list, func(o string) bool { return strings.TrimPrefix(o, "builtin:") == strings.TrimPrefix(s, "builtin:") }) {
				list = append(list, s)
			}
		}
		return list
	}
	var b strings.Builder
	add := func(key string, pool []string) (list []string) {
		if r.IntN(2) == 0 {
			list = some(pool)
			fmt.Fprintf(&b, "%s: [%s]\n", key, strings.Trim(fmt.Sprintf("%q", list), "[]"))
		}
		return list
	}
	commas := func(s string) string { return strings.ReplaceAll(s, `" "`, `", "`) }
	add("tools", pool)
	add("skills", []string{"*", "summarize", "check-*"})
	add("mcps", []string{"*", "search", "f*"})
	add("members", []string{"*", "b"})
	b.WriteString("policy:\n  tools:\n    ask: []\n")
	b.WriteString("    ")
	allowed = add("allowed", pool)
	b.WriteString("\n    ")
	exclude = add("exclude", pool)
	b.WriteString("\n  mcp:\n    allowed: [\"*\"]\n    ")
	add("excluded", []string{"search", "f*"})
	return commas(b.String()), exclude, allowed
}

// TestGrantsProperty: whatever a definition says, nothing that is excluded is
// allowed, nothing beside the lists is, and what is listed can be called.
func TestGrantsProperty(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	names := append(ours().Names(), "new_tool", "mcp:search:q", "mcp:search:rm", "mcp:files:read", "mcp:files:q", "mcp:other:q")
	base := testBase{agents: map[string]string{"a": "", "b": ""}, skills: []string{"check-feeds", "summarize"}}.make(t)
	host := Host{Tools: ours(), Servers: Servers{"search": {Command: "s"}, "files": {Command: "f"}}}
	for range need.Rounds("SCOPEFS_TEST_DEFINITIONS", 500, 2000) {
		keys, exclude, allowed := anyDefinition(r)
		writeFile(t, base, "agents.d/a.md", "---\nname: a\n"+keys+"\n---\n")
		all, errs := Load(base, host)
		require.Empty(t, errs, keys)
		a := all.Agents["a"]
		g := a.Grants
		list := g.Tools()
		for _, name := range names {
			d := g.Tool(name)
			assert.Equal(t, d, g.Tool(name))
			listed := list == nil || slices.ContainsFunc(list, func(p string) bool { return ours().Match(p, name) })
			callable := listed && !forbidden(exclude, allowed, name)
			if server, _, ok := strings.Cut(strings.TrimPrefix(name, "mcp:"), ":"); ok {
				_, mine := g.Servers()[server]
				callable = callable && mine
				assert.Equal(t, mine, g.Server(server).Allow)
			}
			require.Equal(t, callable, d.Allow, "%s: %+v\n%s", name, d, keys)
			require.Equal(t, d.Allow, d.Remedy == "", "%+v", d)
		}
		for name, decide := range map[string]func(string) scope.Decision{"summarize": g.Skill, "b": g.Member} {
			inList := slices.Contains(g.Skills(), name) || slices.Contains(g.Members(), scope.ID(name))
			assert.Equal(t, inList, decide(name).Allow)
		}
	}
}

// forbidden is the policy of tools, said once more in plain words.
func forbidden(exclude, allowed []string, name string) bool {
	matched := func(list []string, name string) bool {
		return slices.ContainsFunc(list, func(p string) bool { return ours().Match(p, name) })
	}
	exclude = slices.Clone(exclude)
	if len(allowed) > 0 {
		exclude = slices.DeleteFunc(exclude, func(p string) bool { return p == "*" })
	}
	return allowed != nil && !matched(allowed, name) || matched(exclude, name) ||
		strings.HasPrefix(name, "mcp:") && matched(exclude, "mcp")
}

// TestReloadKeepsTheLastGood: file by file.
func TestReloadKeepsTheLastGood(t *testing.T) {
	base := testBase{agents: map[string]string{"a": "tools: [bash]", "b": "mcps: [search]", "c": ""}, skills: []string{"x"},
		extensions: map[string]string{"e": "mcp_servers: {search: {command: old, visibility: public}}"}}.make(t)
	first, errs := Load(base, Host{Tools: ours()})
	require.Empty(t, errs)

	writeFile(t, base, "agents.d/a.md", "---\nname: a\ntools: [stat, bsh]\n---\n")
	writeFile(t, base, "extensions.d/e.yaml", "name: e\nmcp_servers: {search: {comand: new, visibility: public}}\n")
	require.NoError(t, os.Remove(filepath.Join(base, "agents.d/c.md")))
	second, errs := first.Reload(base, Host{Tools: ours()})
	require.Len(t, errs, 3, "two of the extension")
	assert.True(t, second.Agents["a"].Grants.Tool("bash").Allow)
	assert.False(t, second.Agents["a"].Grants.Tool("stat").Allow)
	assert.Equal(t, "old", second.Agents["b"].Grants.Servers()["search"].Command)
	assert.Nil(t, second.Agents["c"], "it was removed")
	assert.NotNil(t, first.Agents["c"], "a snapshot does not change")

	// Without the extension b, which has not changed, names a server that is not there any more.
	require.NoError(t, os.Remove(filepath.Join(base, "extensions.d/e.yaml")))
	third, errs := second.Reload(base, Host{Tools: ours()})
	require.Len(t, errs, 1)
	require.Len(t, third.Warnings, 1)
	assert.ErrorContains(t, third.Warnings[0], `agents.d/b.md:3: mcps: "search" matches no server`)
	assert.Empty(t, third.Agents["b"].Grants.Servers())

	require.NoError(t, os.Rename(filepath.Join(base, "agents.d"), filepath.Join(base, "gone")))
	fourth, errs := third.Reload(base, Host{Tools: ours()})
	require.Len(t, errs, 1)
	assert.Equal(t, third.Agents, fourth.Agents)
}

// TestVersion: it changes with what decides, and with nothing else.
func TestVersion(t *testing.T) {
	t.Setenv("SCOPEFS_TEST_KEY", "one")
	load := func(keys string, change ...func(*testBase)) *Grants {
		b := testBase{agents: map[string]string{"a": keys, "b": ""}, skills: []string{"x"}}
		for _, f := range change {
			f(&b)
		}
		all, errs := Load(b.make(t), Host{Tools: ours()})
		require.Empty(t, errs)
		return all.Agents["a"].Grants
	}
	own := "mcp_servers: {s: {command: x, env: {K: \"${SCOPEFS_TEST_KEY}\"}}}"
	first := load(own)
	assert.Regexp(t, "^[0-9a-f]{64}$", first.Version())
	assert.True(t, first.Equal(load(own)))
	assert.Equal(t, first.Version(), load("description: d\n"+own).Version())
	more := func(b *testBase) { b.skills = []string{"x", "y"} }
	seen := map[string]string{first.Version(): own}
	for _, keys := range []string{"", "tools: []", "tools: [bash]", "tools: [\"*\"]", "members: [b]", "members: []", "view: {access: read}", "scopes: {enum: []}", "scopes: {const: []}",
		"rate_limits: {bash: 1/hour}", "argument_filters: {bash: [x]}", "argument_filters: {bash: [y]}", "policy: {tools: {ask: [bash]}}", strings.Replace(own, "command: x", "command: y", 1)} {
		v := load(keys).Version()
		assert.Empty(t, seen[v], "%s", keys)
		seen[v] = keys + "."
	}
	assert.NotEqual(t, first.Version(), load(own, more).Version(), "another skill")
	assert.Equal(t, load("skills: [x]").Version(), load("skills: [x]", more).Version(), "one that is not its own")

	t.Setenv("SCOPEFS_TEST_KEY", "two")
	second := load(own)
	assert.Equal(t, first.Version(), second.Version(), "no secret is in it")
	assert.False(t, first.Equal(second), "but the server starts otherwise")
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		assert.NotContains(t, fmt.Sprintf(format, second)+fmt.Sprintf(format, second.Servers()), "two")
	}
}

func TestRemedy(t *testing.T) {
	p, err := scope.Compile(scope.PolicySpec{Access: scope.Read, Paths: []scope.PathRule{{Pattern: "ref/**", Access: scope.Read}, {Pattern: "**/.env", Access: scope.Hide}, {Pattern: "out", Access: scope.Write}, {Pattern: "*/{a,b}/x", Access: scope.Hide}}})
	require.NoError(t, err)
	for text, want := range map[string]string{
		"read ref/x": "", "write out/x": "",
		"write ref/x":    `set "ref/**" to write in view.paths`,
		"write ref/.env": `set "ref/**" to write in view.paths, and set "**/.env" to write in view.paths`,
		"read ref/.env":  `set "**/.env" to read in view.paths or remove it`,
		"write x":        "set view.access to write, or give the path a rule of its own in view.paths",
		"read q/b/x":     `set "*/{a,b}/x" to read in view.paths or remove it`,
	} {
		verb, rel, _ := strings.Cut(text, " ")
		op := map[string]scope.Op{"read": scope.OpOpen, "write": scope.OpOpenWrite}[verb]
		assert.Equal(t, want, p.Remedy(op, rel), text)
	}
	assert.Empty(t, (&scope.Policy{}).Remedy(scope.OpOpen, "x"))
	assert.Equal(t, `remove "*/{a,b}/x" from view.paths, for it is about what is below`, p.RemedyMove("q"))
	assert.Empty(t, p.RemedyMove("ref/a/b/c"))
}

func BenchmarkGrantsTool(b *testing.B) {
	g := grantsOf(b, "tools: [read_file, bash, \"mcp:search:*\"]\npolicy: {tools: {exclude: [\"mcp:*:rm\"], ask: [stat]}}")
	b.ReportAllocs()
	for b.Loop() {
		g.Tool("read_file")
		g.Tool("mcp:search:q")
	}
}
