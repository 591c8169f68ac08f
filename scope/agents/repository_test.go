package agents

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/frontmatter"
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
	p, errs := all.Propose("a", []byte(file))
	without, with = p.Without, p.With
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
		"empty":             {"# nothing\n", ".scopefs.yaml:1: has no keys: write some, or remove the file"},
		"no mapping":        {"[a]", ":1: is a list: want keys with values"},
		"unknown":           {"tools: []\nveiw: {}", `:2: "veiw" is no key of .scopefs.yaml: want one of argument_filters, delegate, env, `},
		"dir":               {"dir: /etc", `:1: "dir" is no key of .scopefs.yaml`},
		"user":              {"user: root", others},
		"roots":             {"view: {roots: [{dir: /etc}]}", "view: \"roots\" is no key"},
		"roots of a team":   {"agents: {r: {view: {roots: [{dir: /etc}]}}}", "roots"},
		"identity":          {"identity: caller", others},
		"branch":            {"branch: m", others},
		"history":           {"history: {dir: /x}", others},
		"sandbox":           {"sandbox: {home: lasting}", others},
		"devices":           {"sandbox: {devices: [kvm]}", others},
		"ssh keys":          {"ssh_keys: {'SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU': ask}", others},
		"expose":            {"expose: [/etc]", others},
		"a store's address": {"stores: {kv: {redis: 127.0.0.1:6379}}", ":1: stores: kv: what is not kv: {} or sql: {} only your own scopefs.yaml sets"},
		"a store's program": {"stores: {mine: {command: [x]}}", "stores: mine: what is not"},
		"a service":         {"stores: {services: {a: {url: 'https://a.example'}}}", "stores: services: what is not"},
		"no store":          {"stores: {kv: }", "stores: kv: what is not"},
		"agents":            {"agents: [r]", "agents: is a list"},
		"agent's name":      {"agents: {../r: {}}", "invalid agent id"},
		"agent's dir":       {"agents: {r: {dir: /etc}}", `"dir" is no key of .scopefs.yaml`},
		"agent's user":      {"agents: {r: {user: root}}", others},
		"agent's branch":    {"agents: {r: {branch: a}}", others},
		"agent's sandbox":   {"agents: {r: {sandbox: {home: lasting}}}", others},
		"agent's agents":    {"agents: {r: {agents: {}}}", others},
		"agent's stores":    {"agents: {r: {stores: {}}}", others},
		"agent's changes":   {"agents: {r: {view: {changes: direct}}}", others},
		"agent's network":   {"agents: {r: {network: host}}", "host only your own definition sets"},
		"agent's secret":    {"agents: {r: {env: {A: '${SCOPEFS_TEST_SECRET}'}}}", "the environment only your own definition reads"},
		"agent's members":   {"agents: {r: {members: {m: {may: widen}}}}", "may: widen for m only your own definition sets"},
		"agent's tool":      {"agents: {r: {tools: [raed_file]}}", `tools: "raed_file" matches no tool`},
		"agent of yours":    {"agents: {m: {}}", "agents: m has a definition of yours: rename one"},
		"itself":            {"agents: {a: {}}", "agents: a has a definition of yours: rename one"},
		"of nobody":         {"members: [r]", `members: "r" matches no`},
		"changes":           {"view:\n  changes: direct", `:2: view: "changes" is no key of .scopefs.yaml: want one of access, hardlinks, paths, secrets`},
		"allow_other":       {"view: {allow_other: true}", others},
		"open_files":        {"limits: {open_files: 100000}", others},
		"commit":            {"policy: {commit: allow}", others},
		"trust":             {"policy: {mcp: {mcp_servers: {search: {trust: true}}}}", "policy: trust for search only your own definition sets: remove it"},
		"trust beside":      {"policy: {mcp_servers: {search: {trust: true}}}", others},
		"widen":             {"members: {m: {may: widen}}", "members: may: widen for m only your own definition sets: remove it"},
		"host":              {"network: host", "network: host only your own definition sets: name the hosts in allow"},
		"address":           {"network: {allow: [{host: a.example, address: 127.0.0.1}]}", `"a.example": address, ca and credential only your own definition sets`},
		"credential":        {"network: {allow: [{host: a.example, credential: {from: {env: SCOPEFS_TEST_SECRET}}}]}", "credential only your own"},
		"a published port":  {"network: {publish: [3000]}", "ports of this host only your own definition opens"},
		"a host's port":     {"network: {host: {ports: [5432]}}", "ports of this host only your own definition opens"},
		"a member's port":   {"agents: {r: {network: {publish: [3000]}}}", "ports of this host only your own definition opens"},
		"a server's port":   {"mcp_servers: {s: {command: x, network: {host: {ports: [5432]}}}}", "are for the agent's own network"},
		"server's network":  {"mcp_servers: {s: {command: x, network: host}}", "mcp_servers: s: network: host only your own definition sets"},
		"server's headers":  {"mcp_servers: {s: {url: 'https://a.example', headers: {X: y}}}", "mcp_servers: s: headers only your own definition sets"},
		"loopback":          {"mcp_servers: {s: {url: 'http://127.0.0.1:1/'}}", "url: a server of this host only your own definition names"},
		"server's cwd":      {"mcp_servers: {s: {command: x, cwd: ../up}}", "leads out of the workspace"},
		"variable":          {"env: {A: '${SCOPEFS_TEST_SECRET}'}", `:1: "${SCOPEFS_TEST_SECRET}" has a variable, and the environment only your own definition reads`},
		"server's env":      {"mcp_servers:\n  s: {command: x, env: {A: 'x${SCOPEFS_TEST_SECRET}'}}", ":2: "},
		"LD_PRELOAD":        {"env: {LD_PRELOAD: /x.so}", "env: LD_PRELOAD changes every program of the sandbox"},
		"key's variable":    {"network: {presets: [anthropic]}\nenv: {ANTHROPIC_API_KEY: x}", "is the variable of a credential of network"},
		"twice":             {"tools: []\ntools: [bash]", `:2: "tools" is here twice, first in line 1: remove one`},
		"tab":               {"view:\n\taccess: read", ":2: begins with a tab: write spaces"},
		"anchors":           {"tools: &a [bash]\nskills: *a", "anchors and aliases are not read"},
		"bomb":              {"a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]", "anchors and aliases are not read"},
		"deep":              {strings.Repeat("[", 20_000), "is not YAML"},
		"two documents":     {"tools: []\n---\ntools: [bash]", "starts a second YAML document"},
		"no tool":           {"tools: [raed_file]", `:1: tools: "raed_file" matches no tool`},
		"no preset":         {"network: {presets: [nope]}", `:1: network.presets: "nope" matches no preset`},
		"no list":           {"protect: [nope]", `:1: protect: "nope" matches no list`},
		"bytes":             {"tools: [\xff]", "is not UTF-8"},
		"large":             {"tools: [] #" + strings.Repeat("x", 64<<10), "is larger than 65536 bytes: shorten it"},
		"filter":            {`argument_filters: {"*": ["(?:` + strings.Repeat("a.", 500) + `){1000}"]}`, "is beyond the 20000 steps"},
		"filters":           {`argument_filters: {"*": ["` + strings.Repeat("a{1000}b{1000}", 6) + `", "` + strings.Repeat("c{1000}d{1000}", 6) + `"]}`, "is beyond the 20000 steps"},
		"long filter":       {`argument_filters: {"*": ["` + strings.Repeat("a", 1025) + `"]}`, "is no regular expression of 1 to 1024 bytes"},
		"team":              {"agents: {" + strings.Repeat("a: {},", 33) + "}", "agents: has more than 32 agents: remove some"},
		"lookalike":         {"network: {allow: [api.example.com\u202e]}", "no"},
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

// TestRepositoryTeam: an agent of a team has the directory and the rules of the user's definition, and its own keys only narrow
// them, or are told. It comes and goes with the trusted copy. A branch, whose changes are held, gives it no task.
func TestRepositoryTeam(t *testing.T) {
	base := t.TempDir()
	writeFile(t, base, "agents.d/a.md", "---\nname: a\ndir: /srv/x\nprotect: [editor]\nlimits: {pids: 10}\ntools: [bash, read_file]\nview: {paths: {secret: hide}}\nsandbox: {home: lasting}\n---\nBe a.\n")
	writeFile(t, base, "agents.d/b.md", "---\nname: b\nbranch: a\n---\n")
	writeFile(t, base, TrustedName("a"), "members: [r]\ntools: [bash]\ndelegate: {changes: held}\nagents:\n  r: {description: Reviews., prompt: Be r., tools: [read_file, stat], network: none, "+
		"limits: {pids: 20}, view: {access: read, paths: {'out/**': write}}}\n  s: {delegate: {changes: held}, members: [r]}\n")
	all, errs := Load(base, Host{Tools: ours()})
	require.Empty(t, errs)
	r := all.Agents["r"]
	require.NotNil(t, r)
	assert.Equal(t, []string{"/srv/x", "Reviews.", "Be r.", "lasting"}, []string{r.Dir, r.Description, r.Prompt, string(r.Keep.Home)})
	assert.Equal(t, 10, r.Limits.PIDs)
	assert.True(t, r.Grants.Tool("read_file").Allow)
	assert.False(t, r.Grants.Tool("stat").Allow, "not of the user's tools")
	assert.False(t, r.Grants.Tool("bash").Allow)
	policy, err := scope.Compile(r.View.PolicySpec())
	require.NoError(t, err)
	for path, want := range map[string]bool{"f": false, "out/x": true, "out/.vscode/x": false} {
		assert.Equal(t, want, policy.File(scope.OpOpenWrite, path).Allow, path)
	}
	assert.False(t, policy.File(scope.OpLookup, "secret").Allow)
	a := all.Agents["a"]
	assert.Equal(t, "Be a.", a.Prompt)
	assert.Equal(t, []scope.ID{"r"}, a.Grants.Members())
	assert.True(t, a.Grants.HoldsTasks())
	assert.True(t, all.Agents["s"].Grants.HoldsTasks())
	assert.Equal(t, []scope.ID{"r"}, all.Agents["s"].Grants.Members())
	b := all.Agents["b"]
	require.NotNil(t, b)
	assert.Empty(t, b.Grants.Members())
	assert.False(t, b.Grants.HoldsTasks())
	assert.False(t, all.Current(base, "r"), "it asks for the files of two")

	again, errs := all.Reload(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.Same(t, r, again.Agents["r"])
	writeFile(t, base, "agents.d/a.md", "---\nname: a\ndir: /srv/x\ntools: [bash]\n---\n")
	again, errs = again.Reload(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.False(t, again.Agents["r"].Grants.Tool("read_file").Allow, "the user's definition has changed")
	writeFile(t, base, "agents.d/s.md", "---\nname: s\n---\n")
	_, errs = again.Reload(base, Host{Tools: ours()})
	require.NotEmpty(t, errs)
	assert.ErrorContains(t, errs[0], "agents: s has a definition of yours: rename one")
	require.NoError(t, os.Remove(filepath.Join(base, "agents.d/s.md")))
	require.NoError(t, os.Remove(filepath.Join(base, TrustedName("a"))))
	again, errs = again.Reload(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.Nil(t, again.Agents["r"])
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

// lost is a parser whose process does not run at times.
type lost struct{ is *bool }

func (l lost) Parse(text []byte) (*yaml.Node, error) {
	if *l.is {
		return nil, errors.New("its process has ended")
	}
	return frontmatter.Parse(text)
}

// TestRepositoryNotParsed: while the parser of repositories does not run, what loaded last holds, and nothing loads by the user's keys
// alone. The file, which has not changed, loads when the parser runs again.
func TestRepositoryNotParsed(t *testing.T) {
	base := t.TempDir()
	writeFile(t, base, "agents.d/a.md", "---\nname: a\n---\n")
	writeFile(t, base, TrustedName("a"), "tools: [read_file]\n")
	is := true
	host := Host{Tools: ours(), Foreign: lost{&is}}
	none, errs := Load(base, host)
	require.Len(t, errs, 1)
	assert.EqualError(t, errs[0], "agents.d/a.trusted.yaml:1: its process has ended")
	assert.Nil(t, none.Agents["a"])
	assert.False(t, none.Current(base, "a"))
	is = false
	all, errs := none.Reload(base, host)
	require.Empty(t, errs)
	require.NotNil(t, all.Agents["a"])
	assert.Equal(t, []string{"read_file"}, all.Agents["a"].Reach.Tools)
	is = true
	_, errs = all.Reload(base, host)
	assert.Empty(t, errs, "it has not changed, and is not parsed again")
	writeFile(t, base, TrustedName("a"), "tools: [bash]\n")
	kept, errs := all.Reload(base, host)
	require.Len(t, errs, 1)
	assert.Same(t, all.Agents["a"], kept.Agents["a"])
	_, errs = kept.Propose("a", []byte("tools: [bash]\n"))
	require.Len(t, errs, 1)
	assert.EqualError(t, errs[0], ".scopefs.yaml:1: its process has ended")
	is = false
	all, errs = kept.Reload(base, host)
	require.Empty(t, errs)
	assert.Equal(t, []string{"bash"}, all.Agents["a"].Reach.Tools)
}
