package widening_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/widening"
)

// odd writes a text of YAML in another form with the same values: other quotes, escapes, tags, anchors, merge keys.
func (r random) odd(text string) string {
	var doc yaml.Node
	if yaml.Unmarshal([]byte(text), &doc) != nil || len(doc.Content) == 0 {
		return text
	}
	anchors := map[string]*yaml.Node{}
	const anchor, merge, twice = 0, 1, 2
	form := r.IntN(8) // more than these: no such form
	var visit func(n *yaml.Node, key bool) *yaml.Node
	visit = func(n *yaml.Node, key bool) *yaml.Node {
		for i, child := range n.Content {
			n.Content[i] = visit(child, n.Kind == yaml.MappingNode && i%2 == 0)
		}
		plain, _ := yaml.Marshal(n)
		switch was := anchors[string(plain)]; {
		case was != nil && !key && r.IntN(2) == 0:
			return &yaml.Node{Kind: yaml.AliasNode, Alias: was, Value: was.Anchor}
		case !key && form == anchor && len(anchors) < 5:
			n.Anchor = "a" + string(rune('0'+len(anchors)))
			anchors[string(plain)] = n
		}
		switch n.Kind {
		case yaml.ScalarNode:
			n.Style = []yaml.Style{0, yaml.DoubleQuotedStyle, yaml.SingleQuotedStyle, yaml.LiteralStyle, yaml.TaggedStyle}[r.IntN(5)]
			if key {
				n.Style &^= yaml.LiteralStyle
			}
		case yaml.MappingNode:
			n.Style = []yaml.Style{0, yaml.FlowStyle, yaml.TaggedStyle}[r.IntN(3)]
			if len(n.Content) > 2 && form == merge { // what is merged is in the mapping
				merged := &yaml.Node{Kind: yaml.MappingNode, Content: n.Content[2:]}
				n.Content = append(n.Content[:2:2], &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!merge", Value: "<<"}, merged)
			}
			if len(n.Content) > 0 && form == twice { // a key twice
				n.Content = append(n.Content, n.Content[0], n.Content[1])
			}
		case yaml.SequenceNode:
			n.Style = []yaml.Style{0, yaml.FlowStyle, yaml.TaggedStyle}[r.IntN(3)]
		}
		return n
	}
	out, err := yaml.Marshal(visit(doc.Content[0], false))
	if err != nil {
		return text
	}
	return string(out)
}

// TestOddTexts: a text of a repository in an odd form is refused, or allows nothing that is not told.
func TestOddTexts(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	for name, text := range map[string]string{
		"agents.d/a.md": "---\nname: a\ntools: [read_file]\nmembers: []\nmcps: []\nview: {access: read, paths: {secret: hide, 'own/*': hide}}\n" +
			"network: {allow: [{host: a.example, methods: [GET]}]}\nlimits: {pids: 5}\nenv: {A: x}\n---\n",
		"agents.d/m.md": "---\nname: m\n---\n", "skills/check/SKILL.md": "x",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(base, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(base, name), []byte(text), 0o644))
	}
	tools := catalog.Tools{{Name: "bash", Listed: catalog.ListedBase}, {Name: "read_file"}, {Name: "move", Writes: true}}
	all, errs := agents.Load(base, agents.Host{Tools: tools, Servers: agents.Servers{"github": {Command: "gh"}}})
	require.Empty(t, errs)
	r := random{rand.New(rand.NewPCG(8, 9))}
	check := func(text string) (loads bool) {
		t.Helper()
		p, errs := all.Propose("a", []byte(text))
		if errs != nil {
			return false
		}
		for _, a := range append(p.Team, p.With) {
			var lines []string
			for _, e := range widening.Of(a, p.Without) {
				lines = append(lines, e.String())
			}
			for range 20 {
				assert.Empty(t, r.untold(a, p.Without, lines), "%s by\n%s\n%s", a.Name, text, lines)
			}
			assert.LessOrEqual(t, a.Limits.PIDs, 5, text)
			assert.NotZero(t, a.Limits.PIDs, text)
			assert.Equal(t, "x", a.Env["A"], text)
		}
		return true
	}

	// Each of these says a key otherwise than one reads it.
	for _, text := range []string{
		"tools: [read_file]\ntools: ['*']", "tools: [read_file]\n\"tool\\x73\": ['*']", "tools: [read_file]\n---\ntools: ['*']",
		"<<: {tools: ['*']}", "<<: [{tools: ['*']}, {members: ['*']}]", "view: {<<: {access: write}}", "x: &a {access: write}\nview: *a",
		"? [tools]\n: ['*']", "tools: !!set {bash}", "tools: !!binary Kg==", "view: {access: !!binary d3JpdGU=}", "!!map {tools: !x ['*']}",
		"limits: {pids: !!float 9.5}", "limits: {pids: 0x10, pids: 1}", "limits: {pids: 1e9999}", "limits: {pids: 0}", "limits: {pids: -1}",
		"view: {paths: {'/secret': write}}", "view: {paths: {'../secret': write}}", "view: {paths: {'x/../secret': write}}", "view: {paths: {'{secret': write}}",
		"view: {paths: {\"secret\\0\": write}}", "network: {allow: ['*.']}", "network: {allow: ['a.example:1:2']}", "network: {allow: [{host: b.example, address: 127.0.0.1}]}",
		"members: [\"m\\u200b\"]", "tools: [\"b\\u0430sh\"]", "tools: ['ｂａｓｈ']", "agents: {'M': {}}", "agents: {a: {}}", "agents: {m: {}}", "agents: {\"r\\u202e\": {}}",
		"a: &a [x]\nb: &b [*a, *a]\nc: &c [*b, *b]\ntools: *c", "tools: &a [*a]", "tools: &a ['*']\nskills: *a", "limits: {pids: 0x3}", "dir: /", "user: root", "name: other", "\ttools: ['*']",
	} {
		assert.False(t, check(text), text)
	}
	// Each of these is read, and allows what the lines say.
	for _, text := range []string{
		"? tools\n: ['*']", "\"tool\\x73\": ['*']", "{tools: ['*'], mcps: ['*']}", "tools: !!seq ['*']", "\ufefftools: ['*']",
		"# tools: []\r\ntools: ['*']\r\n", "view: {access: !!str write}", "view: {access: write, paths: {'{secret,x}': write, 'secre[t]': write, '\\secret': write, '[!a]*': write, '**/{secret,own/{a,b}}': write}}",
		"view: {paths: {'*': write, '?ecret': write, 'own/[^x]': write}}", "network: {allow: ['A.EXAMPLE', 'a.example', '*.example']}", "network: {allow: ['ａ.example', 'xn--bcher-kva.example', 'bücher.example']}",
		"network: {ask: true}", "network: {ask: ['*'], allow: [{host: '*.example', paths: ['/{x,y}/**'], methods: [GET, POST]}]}",
		"mcp_servers: {own: {command: x}, github: {command: evil}}\nmcps: ['*']\ntools: ['mcp:*:*']", "tools: ['mcp:github:*', 'mcp:own:*']\nmcp_servers: {own: {command: x}}",
		"agents: {r: {tools: ['*'], network: {ask: true}, mcp_servers: {later: {command: x}}}, s: {members: ['*']}}\nmembers: ['*']", "env: {A: y, B: z}",
		"limits: {pids: 9}",
	} {
		assert.True(t, check(text), text)
	}
	loads := 0
	for range 600 {
		text := r.keys()
		odd := r.odd(text)
		if !check(odd) {
			continue
		}
		loads++
		p, errs := all.Propose("a", []byte(text))
		q, _ := all.Propose("a", []byte(odd))
		require.Empty(t, errs, "the plain form is refused:\n%s\n%s", text, odd)
		assert.Equal(t, widening.Team(p), widening.Team(q), "%s\n%s", text, odd)
	}
	assert.Greater(t, loads, 30)
}
