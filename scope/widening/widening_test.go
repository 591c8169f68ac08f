package widening_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/widening"
)

// propose returns what a repository's file would make of agent a with the user's keys.
func propose(t *testing.T, keys, file string) agents.Proposal {
	t.Helper()
	base := t.TempDir()
	for name, text := range map[string]string{
		"agents.d/a.md":         "---\nname: a\n" + keys + "\n---\n",
		"agents.d/m.md":         "---\nname: m\n---\n",
		"skills/check/SKILL.md": "x",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(base, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(base, name), []byte(text), 0o644))
	}
	tools := catalog.Tools{
		{Name: "bash", Listed: catalog.ListedBase}, {Name: "ask_user", Listed: catalog.ListedBase}, {Name: "skill", Listed: catalog.ListedSkills},
		{Name: "read_file"}, {Name: "move", Writes: true},
	}
	all, errs := agents.Load(base, agents.Host{Tools: tools, Servers: agents.Servers{"search": {Command: "search"}}})
	require.Empty(t, errs)
	p, errs := all.Propose("a", []byte(file))
	require.Empty(t, errs)
	return p
}

// TestLines: the user sees each thing that a file allows beyond the user's definition, and what narrows is not
// among them.
func TestLines(t *testing.T) {
	for name, test := range map[string]struct {
		keys, file string
		want       []string
	}{
		"nothing": {"", "tools: [bash]\nskills: []\nmcps: []\nprotect: ['*']\nlimits: {pids: 5}\nview: {access: read, paths: {'a/**': write}}\nnetwork: none\npolicy: {tools: {exclude: [move]}}", nil},
		"hosts": {"", "network: {allow: [b\u00fccher.example, {host: '*.a.example', ports: [8443], methods: [GET], paths: [/x/**]}], ask: [c.example], presets: [npm]}", []string{
			"network: connects to xn--bcher-kva.example ports 443 80",
			"network: connects to every name below a.example ports 8443, only GET, only paths /x/**",
			"network: connects to registry.npmjs.org ports 443 80, only GET HEAD",
			"network: connects to registry.yarnpkg.com ports 443 80, only GET HEAD",
			"network: connects to registry.npmjs.org ports 443 80, only POST, only paths /-/npm/v1/security/advisories/bulk /-/npm/v1/security/audits/quick",
			"network: asks you for connections to c.example ports 443 80",
		}},
		"every host":   {"", "network: {allow: ['*'], ask: true}", []string{"network: connects to every host ports 443 80", "network: asks you for connections to every other host"}},
		"hosts it has": {"network: {allow: [a.example]}", "network: {allow: [A.example, {host: a.example., ports: [443, 8443]}]}", []string{"network: connects to a.example ports 8443"}},
		"none stays":   {"network: none", "network: {allow: [a.example]}", nil},
		"the host's":   {"network: host", "network: {allow: [a.example]}", nil},
		"a key":        {"", "network: {presets: [gemini]}", []string{"network: connects to generativelanguage.googleapis.com ports 443 80, with your key (GEMINI_API_KEY: the proxy adds it, the agent does not see it)"}},
		"a login": {"", "network: {presets: [openai]}", []string{
			"network: connects to api.openai.com ports 443 80, with your key (OPENAI_API_KEY: the proxy adds it, the agent does not see it)",
			"network: connects to chatgpt.com ports 443 80, only paths /backend-api/codex/responses /backend-api/codex/responses/** /backend-api/codex/models, with your login in runs of codex (the proxy adds it, the agent does not see it)",
			"network: connects to chatgpt.com ports 443 80, only GET, only paths /backend-api/wham/{accounts/check,settings/user,usage}, with your login in runs of codex (the proxy adds it, the agent does not see it)",
		}},
		"its own key": {"network: {presets: [openai]}", "network: {presets: [openai]}", nil},
		"variables":   {"env: {B: mine}", "env: {A: x, B: y}", []string{"env: sandboxes have A=x"}},
		"members":     {"", "members: [m]", []string{"members: gives tasks to m: allowed; before: denied (no members)"}},
		"members had": {"members: [m]", "members: ['*']", nil},
		"skills had":  {"skills: []", "skills: [check]", nil},
		"tools had":   {"tools: [bash]", "tools: ['*']", nil},
		"tools asked": {"policy: {tools: {ask: [bash]}}", "tools: [bash]\npolicy: {tools: {allowed: ['*'], ask: []}}", nil},
		"computed":    {"skills: [check]", "tools: [read_file, bash]", []string{"tools: read_file: allowed; before: denied (computed tools: [bash, ask_user, skill])"}},
		"a team":      {"", "agents: {r: {tools: [bash], view: {access: read}, network: none}, s: {}}\nmembers: [r]", []string{"members: gives tasks to r: allowed; before: denied (no members)"}},
		"a team's": {"skills: []\nenv: {B: mine}", "agents: {r: {network: {presets: [gemini]}, env: {A: x, B: y}, members: [s, m], skills: [check]}, s: {mcp_servers: {far: {url: 'https://a.example/mcp'}}}}", []string{
			"agents: r: network: connects to generativelanguage.googleapis.com ports 443 80, with your key (GEMINI_API_KEY: the proxy adds it, the agent does not see it)",
			"agents: r: members: gives tasks to m: allowed; before: denied (no members)", "agents: r: members: gives tasks to s: allowed; before: denied (no members)",
			"agents: r: env: sandboxes have A=x",
			"agents: s: mcp_servers: far: the daemon sends calls of its tools to https://a.example/mcp",
		}},
		"the user's *":     {"policy: {tools: {exclude: ['*']}, mcp: {excluded: ['*']}}", "policy: {tools: {allowed: [bash, 'mcp:search:*']}, mcp: {allowed: [search]}}", nil},
		"a server's tools": {"skills: []", "tools: [bash, ask_user, 'mcp:search:*']", []string{"tools: tools of search: allowed, such as mcp:search:x; before: denied (computed tools: [bash, ask_user])"}},
		"all servers'":     {"skills: []", "mcps: [search]\npolicy: {tools: {allowed: [bash, 'mcp:search:*']}}", []string{"tools: tools of search: allowed, such as mcp:search:x; before: denied (computed tools: [bash, ask_user])"}},
		"everything": {"skills: []", "tools: ['*']\npolicy: {tools: {allowed: ['mcp:*:*']}}", []string{
			"tools: tools of servers that come later: allowed, such as mcp:x:x; before: denied (computed tools: [bash, ask_user])",
			"tools: tools of search: allowed, such as mcp:search:x; before: denied (computed tools: [bash, ask_user])",
		}},
		"some tools": {"skills: []", "tools: [bash, 'mcp:s*:get_?*']", []string{
			"tools: tools of servers that come later: allowed, such as mcp:s:get_?; before: denied (computed tools: [bash, ask_user])",
			"tools: tools of search: allowed, such as mcp:search:get_?; before: denied (computed tools: [bash, ask_user])",
		}},
		"members later": {"", "members: ['m*']", []string{
			"members: gives tasks to m: allowed; before: denied (no members)", "members: gives tasks to agents that you define later: allowed, such as mx; before: denied (no members)",
		}},
		"your rule": {"network: {allow: [{host: '*.a.example', methods: [GET]}]}", "network: {allow: [b.a.example]}", []string{
			"network: connects to b.a.example ports 443 80, such as DELETE b.a.example:443/; before: network.allow: *.a.example GET",
		}},
		"a question": {"network: {allow: ['*', {host: a.example, paths: [/x/**]}]}", "network: {ask: ['*']}", []string{
			"network: asks you for connections to every host ports 443 80, such as DELETE a.example:443/; before: network.allow: a.example /x/**",
		}},
		"your question": {"network: {ask: [a.example]}", "network: {ask: ['*'], allow: [a.example]}", []string{
			"network: asks you for connections to every host ports 443 80",
		}},
		"delegate":     {"tools: [bash]", "delegate: {changes: held}", nil},
		"delegate had": {"members: [m]", "delegate: {changes: held}", nil},
		"stores": {"", "stores: {sql: {}, kv: {}}", []string{
			"stores: sql: the tools of that store, with data on this host, outside of the project",
			"stores: kv: the tools of that store, with data on this host, outside of the project",
		}},
		"a server had": {"", "mcp_servers: {search: {command: evil}}", nil},
		"a server": {"", "mcp_servers: {own: {command: node, args: [x.js, \"a b\"], env: {K: v}, workspace: read, network: {allow: [a.example]}}, far: {url: 'https://a.example/mcp'}}", []string{
			"mcp_servers: far: the daemon sends calls of its tools to https://a.example/mcp",
			`mcp_servers: own: runs ["node" "x.js" "a b"] in a sandbox of its own, as the agent's user; access to the agent's files: read`,
			"mcp_servers: own: connects to a.example ports 443 80",
			"mcp_servers: own: has K=v",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, widening.Team(propose(t, test.keys, test.file)))
		})
	}
}

// TestPresets: what an agent may do with a preset that its network has not yet.
func TestPresets(t *testing.T) {
	had := propose(t, "network: {presets: [npm]}", "skills: []").Without
	assert.Empty(t, widening.Presets(had.Grants, []string{"npm"}))
	assert.NotEmpty(t, widening.Presets(had.Grants, []string{"npm", "gemini"}))
}
