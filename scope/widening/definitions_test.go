package widening_test

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/widening"
)

// scopes allows contexts by patterns that need the letters in many orders.
func scopes(letters string) string {
	var all []string
	for i := range letters {
		all = append(all, "'*"+strings.Join(strings.Split(letters[i:]+letters[:i], ""), "*")+"*'")
	}
	return "scopes: {enum: [" + strings.Join(all, ", ") + "]}"
}

// TestOf: what a definition allows beyond another one, for each key that only the operator's definitions have, too.
func TestOf(t *testing.T) {
	t.Setenv("SCOPEFS_TEST_SECRET", "x")
	const fingerprint = "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"
	const secret = "network: {allow: [{host: a.example, credential: {from: {env: %}}}]}"
	first, other := strings.ReplaceAll(secret, "%", "FIRST"), strings.ReplaceAll(secret, "%", "OTHER")
	server := httptest.NewTLSServer(nil)
	server.Close()
	ca := strings.ReplaceAll(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})), "\n", "\\n")
	const tunnel = "network: connects to a.example ports 443 80 by a tunnel: the proxy does not see the requests, such as a.example:443; " +
		"before: network.allow: a.example"
	for name, test := range map[string]struct {
		was, now string
		want     []string
	}{
		"a root": {"", "view: {roots: [{dir: /x, access: read}, {dir: /y}]}", []string{"view.roots: /x can be read", "view.roots: /y can be read and changed"}},
		"a root that hides": {"view: {paths: {y: hide}}", "view: {paths: {y: hide}, roots: [{dir: /x, access: read}]}",
			[]string{"view.roots: /x can be read"}},
		"a root that is read, but for": {"", "view: {roots: [{dir: /x, access: read, paths: {w: write}}]}", []string{"view.roots: /x can be read and changed"}},
		"changes of a root": {"view: {changes: kept, roots: [{dir: /x}]}", "view: {changes: kept, roots: [{dir: /x, changes: direct}]}",
			[]string{"undecided: view.roots: /x: changes differs"}},
		"a ca": {"", "network: {allow: [{host: a.example, intercept: true, ca: \"" + ca + "\"}]}",
			[]string{"network: connects to a.example, with a ca of its own ports 443 80"}},
		"a command's key": {"", "network: {allow: [{host: a.example, credential: {variable: V, from: {command: [/bin/echo, x]}}}]}",
			[]string{`network: connects to a.example ports 443 80, with your key (from the command ["/bin/echo" "x"]: the proxy adds it, ` +
				`the agent does not see it)`}},
		"no root": {"view: {roots: [{dir: /x}]}", "", nil},
		"more of a root": {"view: {roots: [{dir: /x, access: read, paths: {s: hide}}]}", "view: {roots: [{dir: /x, paths: {s: read}}]}", []string{
			"view.roots: /x: paths can be read, such as s; before: s: hide", "view.roots: /x: paths can be read and changed, such as x; before: access: read"}},
		"less of a root":      {"view: {roots: [{dir: /x}]}", "view: {roots: [{dir: /x, access: read}]}", nil},
		"a root that asks":    {"", "view: {roots: [{dir: /x, access: ask}]}", []string{"view.roots: /x can be read and changed, once you allow it"}},
		"a root asks no more": {"view: {roots: [{dir: /x, access: ask}]}", "view: {roots: [{dir: /x}]}", []string{"view.roots: /x: nothing is asked first; before: access: ask"}},
		"a root asks now":     {"view: {roots: [{dir: /x}]}", "view: {roots: [{dir: /x, access: ask}]}", nil},

		"nothing":     {"", "", nil},
		"narrower":    {"", "tools: []\nskills: []\nmcps: []\nlimits: {pids: 5}\nscopes: {enum: [state]}\nrate_limits: {bash: 1/minute}", nil},
		"a key":       {"network: {allow: [a.example]}", first, []string{"network: connects to a.example ports 443 80, with your key (FIRST: the proxy adds it, the agent does not see it), such as a.example:443; before: network.allow: a.example"}},
		"another key": {first, other, []string{"network: connects to a.example ports 443 80, with your key (OTHER: the proxy adds it, the agent does not see it), such as a.example:443; before: network.allow: a.example"}},
		"another source": {
			"network: {allow: [{host: a.example, credential: {variable: KEY, from: {env: FIRST}}}]}", "network: {allow: [{host: a.example, credential: {variable: KEY, from: {file: /key}}}]}",
			[]string{"network: connects to a.example, with your key (/key: the proxy adds it, the agent does not see it)"},
		},
		"another header": {
			"network: {allow: [{host: a.example, credential: {from: {env: FIRST}}}]}", "network: {allow: [{host: a.example, credential: {header: X-Key, from: {env: FIRST}}}]}",
			[]string{"network: connects to a.example, with your key (FIRST: the proxy adds it, the agent does not see it)"},
		},
		"no key":       {first, "network: {allow: [a.example]}", []string{tunnel}},
		"a tunnel":     {"network: {allow: [{host: a.example, intercept: true}]}", "network: {allow: [a.example]}", []string{tunnel}},
		"an address":   {"network: {allow: [a.example]}", "network: {allow: [{host: a.example, address: 127.0.0.1}]}", []string{"network: connects to a.example at 127.0.0.1 ports 443 80, such as a.example:443; before: network.allow: a.example"}},
		"a port there": {"", "network: {allow: [{host: a.example, address: '127.0.0.1:2375', ports: [80]}]}", []string{"network: connects to a.example at 127.0.0.1:2375 ports 80"}},
		"the host's":   {"network: {allow: [a.example]}", "network: host", []string{"network: connects to every address"}},
		"ports": {"network: {publish: [3000, 81], host: {ports: [5432]}}", "network: {publish: ['3000:3001', 81], host: {ports: [5432, 6379]}}", []string{
			"network: port 3000 of this host's 127.0.0.1 leads to port 3001 of the sandbox", "network: connects to port 6379 of this host's 127.0.0.1",
		}},
		"first ports": {"", "network: {publish: [3000]}", []string{"network: port 3000 of this host's 127.0.0.1 leads to port 3000 of the sandbox"}},
		"no ports":    {"network: {publish: [3000], host: {ports: [5432]}}", "network: {allow: []}", nil},
		"ports had":   {"network: host", "network: {publish: [3000], host: {ports: [5432]}}", nil},
		"had it all":  {"network: host", "network: {allow: ['*']}", nil},
		"no login": {"network: {ask: true, presets: [openai]}", "network: {ask: true}", []string{
			"network: asks you for connections to every other host, such as GET chatgpt.com:443/; before: network.allow: chatgpt.com /backend-api/codex/responses,/backend-api/codex/responses/**,/backend-api/codex/models",
		}},
		"no limit": {"network: {allow: [a.example], limit: {requests: 5/minute}}", "network: {allow: [a.example]}", []string{"undecided: network: is without the limit requests: 5/minute"}},
		"paths together": {"network: {allow: [{host: a.example, paths: [/x/**]}, {host: a.example, paths: [/y/**]}]}", "network: {allow: [{host: a.example, paths: [/x/**, /y/**]}]}", []string{
			"undecided: network: connects to a.example ports 443 80, only paths /x/** /y/**",
		}},
		"paths of their own": {"network: {allow: [{host: a.example, paths: ['/x/**']}]}", "network: {allow: [{host: a.example, paths: ['/x/[^a]']}]}", []string{"undecided: network: connects to a.example ports 443 80, only paths /x/[^a]"}},
		"no paths":           {"network: {allow: [{host: a.example, paths: ['/**']}]}", "network: {allow: [a.example]}", []string{"network: connects to a.example ports 443 80, such as DELETE a.example:443//; before: network.allow: a.example /**"}},
		"every other host":   {"network: {deny: ['*.example'], allow: ['*.org']}", "network: {deny: ['*.example'], allow: ['*.org'], ask: true}", []string{"network: asks you for connections to every other host"}},
		"a port":             {"network: {deny: [{host: a.example, ports: [443]}]}", "network: {allow: [{host: a.example, ports: [443, 80]}]}", []string{"network: connects to a.example ports 443 80, such as a.example:443; before: network.deny: a.example", "network: connects to a.example ports 443 80"}},
		"limits":             {"limits: {pids: 5, memory: 1GiB, cpu: 1.5, disk: 1GiB}", "limits: {pids: 6, cpu: 1, disk: 1GiB}", []string{"limits: memory: no limit in place of 1073741824", "limits: pids: 6 in place of 5"}},
		"restrictions": {"rate_limits: {bash: 1/minute}\nargument_filters: {bash: [x, z]}", "rate_limits: {bash: 2/minute}\nargument_filters: {bash: [x]}", []string{
			"undecided: rate_limits: is without bash: 1/minute", "undecided: argument_filters: is without bash: [x z]",
		}},
		"scopes": {"scopes: {enum: [state], ask: ['i*']}", "scopes: {enum: ['s*', input], set: [work]}", []string{
			"scopes: calls see contexts: allowed, such as s; before: denied (scopes.enum: [state])",
			"scopes: calls set contexts: allowed, such as work; before: denied (scopes.set: [])",
		}},
		"scopes of tools": {"scopes: {enum: [state]}", "scopes: {enum: [state], tools: {bash: {const: [state]}}}", []string{"undecided: scopes: differs in tools or const"}},
		"const":           {"scopes: {enum: [state]}", "scopes: {const: [state]}", []string{"undecided: scopes: differs in tools or const"}},
		"widen":           {"members: [m]", "members: {m: {may: widen}}", []string{"members: m may do more than the agent"}},
		"delegate":        {"members: [m]\ndelegate: {changes: held}", "members: [m]", []string{"delegate: members change files without a commit"}},
		"held":            {"view: {changes: held}", "view: {changes: kept}", []string{"view: files change without a commit"}},
		"held on":         {"view: {changes: held}", "view: {changes: held, access: read}", nil},
		"widens still":    {"members: {m: {may: widen}}", "members: {m: {may: widen}}", nil},
		"no value":        {"", "env: {A: ''}", []string{"env: sandboxes have A="}},
		"too much": {scopes("abcdefgh"), scopes("hgfedcba"), []string{
			"undecided: scopes: has too many patterns to compare", "undecided: scopes: has too many patterns to compare",
			"undecided: mcps: has too many patterns to compare", // the steps are those of the whole comparison
		}},
		"processors":       {"limits: {cpu: 1}", "limits: {cpu: 2}", []string{"limits: cpu: 2 in place of 1"}},
		"filters still":    {"argument_filters: {bash: ['x']}", "argument_filters: {bash: ['x']}\ntools: [bash]", nil},
		"tasks still":      {"members: [m]\ndelegate: {changes: held}", "members: [m]\ndelegate: {changes: held}\ntools: [bash]", nil},
		"const still":      {"scopes: {const: [input]}", "scopes: {const: [input]}\ntools: [bash]", nil},
		"paths of a rule":  {"network: {allow: [{host: a.example, methods: [GET]}]}", "network: {allow: [{host: a.example, methods: [GET], paths: ['/x/**']}]}", nil},
		"fewer processors": {"limits: {cpu: 2}", "limits: {cpu: 1}", nil},
		"held now":         {"view: {changes: kept}", "view: {changes: held}", nil},
		"skills":           {"skills: [check]\ntools: [skill]", "skills: ['c*']\ntools: [skill]", []string{"skills: skills that come later: allowed, such as c; before: denied (skills: [check])"}},
		"a question":       {"policy: {tools: {ask: [bash]}}", "", []string{"tools: bash: allowed; before: allowed after approval (policy.tools.ask: bash)"}},
		"a question more":  {"policy: {tools: {exclude: [bash]}}", "policy: {tools: {ask: [bash]}}", []string{"tools: bash: allowed after approval; before: denied (policy.tools.exclude: bash)"}},
		"later tools": {"tools: [bash]", "tools: [bash, 'b*h']", []string{
			"tools: tools that come later: allowed, such as bh; before: denied (tools: [bash])",
		}},
		"a server": {"mcp_servers: {s: {command: x, env: {A: b}}}", "mcp_servers: {s: {command: x, env: {A: c}}}", []string{
			`mcp_servers: s: runs ["x"] in a sandbox of its own, as the agent's user; access to the agent's files: write`, "mcp_servers: s: has A=c",
		}},
		"trust":       {"policy: {tools: {ask: ['*']}}", "policy: {tools: {ask: ['*']}, mcp_servers: {search: {trust: true}}}", []string{"tools: tools of search: allowed, such as mcp:search:x; before: allowed after approval (policy.tools.ask: *)"}},
		"keys":        {"ssh_keys: {'" + fingerprint + "': ask}", "ssh_keys: {'" + fingerprint + "': allow}", []string{"ssh_keys: logs in and signs with your key " + fingerprint + ": allow in place of ask"}},
		"a first key": {"", "ssh_keys: {'" + fingerprint + "': ask}", []string{"ssh_keys: logs in and signs with your key " + fingerprint + ": ask in place of deny"}},
		"fewer keys":  {"ssh_keys: {'" + fingerprint + "': ask}", "ssh_keys: {'" + fingerprint + "': deny}", nil},
		"devices":     {"sandbox: {devices: [kvm]}", "sandbox: {devices: [kvm, /dev/video0]}", []string{"sandbox: opens the device /dev/video0 of the host"}},
		"others":      {"", "user: '1000'\nview: {xattrs: true, changes: kept}\nsandbox: {home: lasting}", []string{"undecided: keep: differs", "undecided: user: differs", "undecided: view.xattrs: differs"}},
		"no view":     {"view: {access: read}", "", []string{"tools: move: allowed; before: denied (access: read)", "view: paths can be read and changed, such as x; before: access: read"}},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			for name, text := range map[string]string{
				"agents.d/a.md": "---\nname: a\n" + test.was + "\n---\n", "agents.d/b.md": "---\nname: b\n" + test.now + "\n---\n",
				"agents.d/m.md": "---\nname: m\n---\n", "skills/check/SKILL.md": "x",
			} {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(base, name)), 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(base, name), []byte(text), 0o644))
			}
			tools := catalog.Tools{{Name: "bash", Listed: catalog.ListedBase}, {Name: "skill", Listed: catalog.ListedSkills}, {Name: "move", Writes: true}}
			all, errs := agents.Load(base, agents.Host{Tools: tools, Servers: agents.Servers{"search": {Command: "search"}}})
			require.Empty(t, errs)
			var lines []string
			for _, e := range widening.Of(all.Agents["b"], all.Agents["a"]) {
				lines = append(lines, e.String())
			}
			assert.Equal(t, test.want, lines)
		})
	}
}

// TestAll: what an extension gives to agents that there were, and the agents that it brings.
func TestAll(t *testing.T) {
	base := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(base, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(base, name), []byte(text), 0o644))
	}
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		write("agents.d/"+id+".md", "---\nname: "+id+"\n---\n")
	}
	before, errs := agents.Load(base, agents.Host{})
	require.Empty(t, errs)
	write("extensions.d/x/x.yaml", "name: x\nagents: [a, {name: own, path: own.md}]\nmcp_servers: {mine: {command: x}, all: {command: y, visibility: public}}\n")
	write("extensions.d/x/own.md", "---\nname: own\n---\n")
	write("agents.d/g.md", "---\nname: g\nview: {roots: [{dir: /x}]}\n---\n")
	after, errs := agents.Load(base, agents.Host{})
	require.Empty(t, errs)
	assert.Equal(t, []string{
		`mcp_servers: all: runs ["y"] in a sandbox of its own, as the agent's user; access to the agent's files: none, for a, b, c, d, e and 2 more`,
		`mcp_servers: mine: runs ["x"] in a sandbox of its own, as the agent's user; access to the agent's files: none, for a`,
		"view.roots: /x can be read and changed, for g",
		"agents: defined by it, for own",
	}, widening.All(before, after))
}
