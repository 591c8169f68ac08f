package agents

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
)

// propose returns agent a with the user's keys alone, and with those of a repository's file as well.
func propose(t *testing.T, keys, file string) (without, with *Agent, err error) {
	t.Helper()
	base := t.TempDir()
	writeFile(t, base, "agents.d/a.md", "---\nname: a\n"+keys+"\n---\n")
	writeFile(t, base, "agents.d/m.md", "---\nname: m\n---\n")
	writeFile(t, base, "skills/check/SKILL.md", "x")
	host := Host{Tools: ours(), Servers: Servers{"search": {Command: "search"}}}
	all, errs := Load(base, host)
	require.Empty(t, errs)
	without, with, errs = all.Propose("a", []byte(file))
	if errs == nil {
		// What is proposed is what loads once it is trusted, here and by a reload.
		writeFile(t, base, TrustedName("a"), file)
		again, wrong := Load(base, host)
		require.Empty(t, wrong)
		assert.True(t, again.Agents["a"].Grants.Equal(with.Grants))
		assert.Equal(t, with.View, again.Agents["a"].View)
		assert.False(t, all.Current(base, "a"))
		later, wrong := all.Reload(base, host)
		require.Empty(t, wrong)
		assert.Equal(t, with.Limits, later.Agents["a"].Limits)
		require.NoError(t, os.Remove(filepath.Join(base, TrustedName("a"))))
		gone, _ := later.Reload(base, host)
		assert.True(t, gone.Agents["a"].Grants.Equal(without.Grants))
	}
	return without, with, errors.Join(errs...)
}

// TestRepositoryErrors: what a repository may not ask for, with file, line, key and remedy.
func TestRepositoryErrors(t *testing.T) {
	t.Setenv("SCOPEFS_TEST_SECRET", "hunter2")
	const others = "others only your own definition sets"
	for name, test := range map[string]struct{ file, want string }{
		"empty":            {"# nothing\n", ".scopefs.yaml:1: has no keys: write some, or remove the file"},
		"no mapping":       {"[a]", ":1: is a list: want keys with values"},
		"unknown":          {"tools: []\nveiw: {}", `:2: "veiw" is no key of .scopefs.yaml: want one of argument_filters, env, `},
		"dir":              {"dir: /etc", `:1: "dir" is no key of .scopefs.yaml`},
		"user":             {"user: root", others},
		"identity":         {"identity: caller", others},
		"branch":           {"branch: m", others},
		"history":          {"history: {dir: /x}", others},
		"sandbox":          {"sandbox: {home: lasting}", others},
		"expose":           {"expose: [/etc]", others},
		"stores":           {"stores: {}", others},
		"changes":          {"view:\n  changes: direct", `:2: view: "changes" is no key of .scopefs.yaml: want one of access, hardlinks, paths`},
		"allow_other":      {"view: {allow_other: true}", others},
		"open_files":       {"limits: {open_files: 100000}", others},
		"commit":           {"policy: {commit: allow}", others},
		"trust":            {"policy: {mcp: {mcp_servers: {search: {trust: true}}}}", "policy: trust for search only your own definition sets: remove it"},
		"trust beside":     {"policy: {mcp_servers: {search: {trust: true}}}", others},
		"widen":            {"members: {m: {may: widen}}", "members: may: widen for m only your own definition sets: remove it"},
		"host":             {"network: host", "network: host only your own definition sets: name the hosts in allow"},
		"address":          {"network: {allow: [{host: a.example, address: 127.0.0.1}]}", `"a.example": address, ca and credential only your own definition sets`},
		"credential":       {"network: {allow: [{host: a.example, credential: {from: {env: SCOPEFS_TEST_SECRET}}}]}", "credential only your own"},
		"server's network": {"mcp_servers: {s: {command: x, network: host}}", "mcp_servers: s: network: host only your own definition sets"},
		"server's headers": {"mcp_servers: {s: {url: 'https://a.example', headers: {X: y}}}", "mcp_servers: s: headers only your own definition sets"},
		"loopback":         {"mcp_servers: {s: {url: 'http://127.0.0.1:1/'}}", "url: a server of this host only your own definition names"},
		"server's cwd":     {"mcp_servers: {s: {command: x, cwd: ../up}}", "leads out of the workspace"},
		"variable":         {"env: {A: '${SCOPEFS_TEST_SECRET}'}", `:1: "${SCOPEFS_TEST_SECRET}" has a variable, and the environment only your own definition reads`},
		"server's env":     {"mcp_servers:\n  s: {command: x, env: {A: 'x${SCOPEFS_TEST_SECRET}'}}", ":2: "},
		"LD_PRELOAD":       {"env: {LD_PRELOAD: /x.so}", "env: LD_PRELOAD changes every program of the sandbox"},
		"key's variable":   {"network: {presets: [anthropic]}\nenv: {ANTHROPIC_API_KEY: x}", "is the variable of a credential of network"},
		"twice":            {"tools: []\ntools: [bash]", `:2: "tools" is here twice, first in line 1: remove one`},
		"tab":              {"view:\n\taccess: read", ":2: begins with a tab: write spaces"},
		"anchors":          {"tools: &a [bash]\nskills: *a", "anchors and aliases are not read"},
		"bomb":             {"a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]", "anchors and aliases are not read"},
		"deep":             {strings.Repeat("[", 20_000), "is not YAML"},
		"two documents":    {"tools: []\n---\ntools: [bash]", "starts a second YAML document"},
		"no tool":          {"tools: [raed_file]", `:1: tools: "raed_file" matches no tool`},
		"no preset":        {"network: {presets: [nope]}", `:1: network.presets: "nope" matches no preset`},
		"no list":          {"protect: [nope]", `:1: protect: "nope" matches no list`},
		"bytes":            {"tools: [\xff]", "is not UTF-8"},
		"large":            {"tools: [] #" + strings.Repeat("x", 64<<10), "is larger than 65536 bytes: shorten it"},
		"lookalike":        {"network: {allow: [api.example.com\u202e]}", "no"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := propose(t, "", test.file)
			require.ErrorContains(t, err, test.want)
			assert.ErrorContains(t, err, ".scopefs.yaml")
			assert.NotContains(t, err.Error(), "hunter2")
			assert.NotContains(t, err.Error(), "\u202e")
		})
	}
}

// TestRepositoryWidens: the user sees each thing that a file allows beyond the user's definition, and what narrows is not
// among them.
func TestRepositoryWidens(t *testing.T) {
	for name, test := range map[string]struct {
		keys, file string
		want       []string
	}{
		"nothing": {"", "tools: [bash]\nskills: []\nmcps: []\nprotect: ['*']\nlimits: {pids: 5}\nview: {access: read, paths: {'a/**': write}}\nnetwork: none\npolicy: {tools: {exclude: [move]}}", nil},
		"hosts": {"", "network: {allow: [b\u00fccher.example, {host: '*.a.example', ports: [8443], methods: [GET], paths: [/x/**]}], ask: [c.example], presets: [npm]}", []string{
			"network: connects to xn--bcher-kva.example ports 443 80",
			"network: connects to every name below a.example ports 8443, only GET, only paths /x/**",
			"network: connects to registry.npmjs.org ports 443 80, only GET HEAD",
			"network: asks you for connections to c.example",
		}},
		"every host":   {"", "network: {allow: ['*'], ask: true}", []string{"network: connects to every host ports 443 80", "network: asks you for connections to every other host"}},
		"hosts it has": {"network: {allow: [a.example]}", "network: {allow: [A.example, {host: a.example., ports: [443, 8443]}]}", []string{"network: connects to a.example ports 8443"}},
		"none stays":   {"network: none", "network: {allow: [a.example]}", nil},
		"the host's":   {"network: host", "network: {allow: [a.example]}", nil},
		"a key":        {"", "network: {presets: [openai]}", []string{"network: connects to api.openai.com ports 443 80, with your key (OPENAI_API_KEY: the proxy adds it, the agent does not see it)"}},
		"its own key":  {"network: {presets: [openai]}", "network: {presets: [openai]}", nil},
		"variables":    {"env: {B: mine}", "env: {A: x, B: y}", []string{"env: sandboxes have A=x"}},
		"members":      {"", "members: [m]", []string{"members: gives tasks to m"}},
		"members had":  {"members: [m]", "members: ['*']", nil},
		"skills had":   {"skills: []", "skills: [check]", nil},
		"tools had":    {"tools: [bash]", "tools: ['*']", nil},
		"tools asked":  {"policy: {tools: {ask: [bash]}}", "tools: [bash]\npolicy: {tools: {allowed: ['*'], ask: []}}", nil},
		"computed":     {"skills: [check]", "tools: [read_file, bash]", []string{"tools: read_file: allowed; before: denied (computed tools: [bash, ask_user, skill])"}},
		"a server had": {"", "mcp_servers: {search: {command: evil}}", nil},
		"a server": {"", "mcp_servers: {own: {command: node, args: [x.js, \"a b\"], env: {K: v}, workspace: read, network: {allow: [a.example]}}, far: {url: 'https://a.example/mcp'}}", []string{
			"mcp_servers: far: the daemon sends calls of its tools to https://a.example/mcp",
			`mcp_servers: own: runs ["node" "x.js" "a b"] in a sandbox of its own, as the agent's user; access to the agent's files: read`,
			"mcp_servers: own: connects to a.example",
			"mcp_servers: own: has K=v",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			without, with, err := propose(t, test.keys, test.file)
			require.NoError(t, err)
			assert.Equal(t, test.want, with.Widens(without))
		})
	}
}

// TestRepositoryNarrows: whatever the user's definition denies stays denied, and what the file denies is denied as well.
func TestRepositoryNarrows(t *testing.T) {
	_, with, err := propose(t, `protect: [editor]
tools: [bash, "read_*", mcp]
limits: {pids: 10, memory: 1GiB}
network: {deny: [x.example], ask: [y.example], allow: ["*.example"], limit: {requests: 5/minute}}
view: {access: read, paths: {secret: hide, "out/**": write, "mid/**": write}}
policy: {tools: {exclude: [move]}}`, `
protect: {lists: ["*"], answer: hold}
tools: ["*file*", bash, "m*", "mcp:search:*", move]
limits: {pids: 100, cpu: 0.5}
network: {deny: [z.example], allow: [x.example, y.example, z.example, w.example], limit: {requests: 9/minute}}
view: {access: write, paths: {"out/**": write, "in/**": write, "mid/a": hide}, hardlinks: deny}
policy: {tools: {exclude: [copy], ask: [bash]}}
rate_limits: {bash: 1/hour}`)
	require.NoError(t, err)
	policy, err := scope.Compile(with.View.PolicySpec())
	require.NoError(t, err)
	for path, want := range map[string]bool{"a": false, "out/x": true, "in/x": false, "mid/x": true, "mid/a": false, "out/.vscode/x": false} {
		assert.Equal(t, want, policy.File(scope.OpOpenWrite, path).Allow, path)
	}
	assert.False(t, policy.File(scope.OpLookup, "secret").Allow)
	for tool, want := range map[string]string{
		"bash": "ask", "read_file": "allow", "write_file": "deny", "move": "deny", "copy": "deny", "mcp:search:x": "allow", "mcp:other:x": "deny", "stat": "deny",
	} {
		d := with.Grants.Tool(tool)
		assert.Equal(t, want, map[bool]string{d.Allow: "allow", d.Ask: "ask", !d.Allow && !d.Ask: "deny"}[true], tool)
	}
	for host, want := range map[string][2]bool{"x.example": {}, "y.example": {false, true}, "z.example": {}, "w.example": {true, false}, "v.example": {true, false}} {
		d, _ := with.Grants.Hosts().Connect(host, 443)
		assert.Equal(t, want, [2]bool{d.Allow, d.Ask}, host)
	}
	requests, _ := with.Grants.Hosts().Limits()
	assert.Len(t, requests, 2)
	assert.Equal(t, Limits{Memory: 1 << 30, PIDs: 10, CPU: 0.5}, with.Limits)
	assert.Equal(t, scope.HardlinksDeny, with.View.Hardlinks)
	assert.Len(t, with.Grants.RatesOf("bash"), 1)
	assert.Equal(t, []string{"limits", "network", "policy", "protect", "rate_limits", "tools", "view"}, with.Repository)
}

// TestTrustedBroken: an agent whose trusted copy does not load does not load without its rules.
func TestTrustedBroken(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "cut off": "tools: [ba", "unknown": "sandbox: {}"} {
		base := t.TempDir()
		writeFile(t, base, "agents.d/a.md", "---\nname: a\n---\n")
		writeFile(t, base, TrustedName("a"), text)
		all, errs := Load(base, Host{Tools: ours()})
		assert.Nil(t, all.Agents["a"], name)
		require.NotEmpty(t, errs, name)
		bad, ok := errors.AsType[*fields.FileError](errs[0])
		require.True(t, ok, name)
		assert.EqualValues(t, "a", bad.Agent)
		assert.Equal(t, "agents.d/a.trusted.yaml", bad.File)
	}
	base := t.TempDir()
	writeFile(t, base, "agents.d/a.md", "---\nname: a\n---\n")
	writeFile(t, base, "agents.d/b.md", "---\nname: b\nbranch: a\n---\n")
	writeFile(t, base, "x.yaml", "tools: [bash]")
	require.NoError(t, os.Symlink("../x.yaml", filepath.Join(base, TrustedName("a"))))
	all, errs := Load(base, Host{Tools: ours()})
	assert.Len(t, errs, 2, "of the agent and of its branch")
	require.NoError(t, os.Rename(filepath.Join(base, "x.yaml"), filepath.Join(base, TrustedName("a"))))
	all, errs = all.Reload(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.False(t, all.Agents["b"].Grants.Tool("stat").Allow, "a branch has the rules of its agent")
}
