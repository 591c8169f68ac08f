package agents

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
)

// TestLoadErrors: what is wrong with the lists of agents.d/a.md, from line 3 on.
func TestLoadErrors(t *testing.T) {
	t.Setenv("SCOPEFS_TEST_SET", "yes")
	cases := map[string]struct{ keys, want string }{
		"tool":                            {"tools:\n  - bash\n  - raed_file", `5: tools: "raed_file" matches no tool: did you mean read_file`},
		"tools by wildcard":               {"tools: [\"raed_*\"]", `3: tools: "raed_*" matches no tool: `},
		"server of a tool":                {"tools: [\"mcp:serch:*\"]", `3: tools: "mcp:serch:*" matches no server that the agent can see (there is files, search): correct it, or remove it`},
		"two parts":                       {"tools: [\"mcp:search\"]", `3: tools: "mcp:search" is not mcp:SERVER:TOOL: write it in three parts`},
		"prefix":                          {"tools: [\"tool:bash\"]", `3: tools: "tool:bash" is no name of a tool: write`},
		"two asterisks":                   {"tools: [\"**\"]", `3: tools: "**" has two asterisks side by side: write one`},
		"a space":                         {"tools: [\"bash \"]", `3: tools: "bash " holds a space, `},
		"empty entry":                     {"tools: [\"\"]", `3: tools: "" is empty: remove it`},
		"long entry":                      {"tools: [" + strings.Repeat("a", 257) + "]", "is longer than 256 bytes: shorten it"},
		"no list":                         {"tools: bash", "3: tools: is a text: want a list, [] for none"},
		"null":                            {"tools:", "3: tools: is empty: want a list"},
		"number":                          {"tools: [5]", "3: tools: an entry is a number: want a name"},
		"twice":                           {"tools:\n  - bash\n  - bash", `5: tools: "bash" is here twice, first in line 4: remove one`},
		"twice, spelled anew":             {"tools: [bash, builtin:bash]", `3: tools: "builtin:bash" is here twice, first in line 3: remove one`},
		"skill":                           {"skills: [check]", `3: skills: "check" matches no skill (there is check-feeds, summarize): correct it, or create skills/check/SKILL.md`},
		"server":                          {"mcps: [serch]", `3: mcps: "serch" matches no server that the agent can see (there is files, search): correct it, or define it in mcp_servers`},
		"server with a colon":             {"mcps: [\"mcp:search\"]", `3: mcps: "mcp:search" holds a colon: write the name alone`},
		"member":                          {"members: [x]", `3: members: "x" matches no other agent (there is b, bad): correct it, or define it in agents.d/x.md`},
		"member itself":                   {"members: [a]", `3: members: "a" is the agent itself, which is no member of its own: remove it`},
		"allowed":                         {"policy: {tools: {allowed: [x]}}", `3: policy.tools.allowed: "x" matches no tool: `},
		"exclude":                         {"policy: {tools: {exclude: [\"mcp:x:y\"]}}", `3: policy.tools.exclude: "mcp:x:y" matches no server`},
		"ask":                             {"policy: {tools: {ask: [x]}}", `3: policy.tools.ask: "x" matches no tool: `},
		"excluded":                        {"policy: {mcp: {excluded: [x]}}", `3: policy.mcp.excluded: "x" matches no server`},
		"trust":                           {"policy: {mcp: {mcp_servers: {\"sea*\": {trust: true}}}}", `3: policy.mcp.mcp_servers: "sea*" matches no server`},
		"trust is no switch":              {"policy: {mcp: {mcp_servers: {search: {trust: [a]}}}}", "3: trust: is a list: want true or false"},
		"unknown policy":                  {"policy: {tools: {excluded: [bash]}}", `3: unknown key "excluded": did you mean exclude`},
		"scopes":                          {"scopes: {}", "3: scopes: wants one of enum and const: write"},
		"scopes both":                     {"scopes: {enum: [a], const: [a]}", "3: scopes: wants one of enum and const: write"},
		"scopes wild":                     {"scopes: {const: [\"a*\"]}", `3: scopes: const: "a*" holds a wildcard: write`},
		"rate":                            {"rate_limits: {bash: 30/day}", `3: rate_limits: "bash" is limited to "30/day", which is no rate: write a whole number`},
		"rate of none":                    {"rate_limits: {bash: 0/hour}", "which is no rate: write"},
		"rate is a number":                {"rate_limits: {bash: 30}", `3: rate_limits: "bash" is a number: want a rate such as 30/minute`},
		"rate of no tool":                 {"rate_limits: {bsh: 30/hour}", `3: rate_limits: "bsh" matches no tool: `},
		"rate twice":                      {"rate_limits:\n  bash: 1/hour\n  builtin:bash: 1/hour", `5: rate_limits: "builtin:bash" is here twice, first in line 4`},
		"filter":                          {"argument_filters:\n  bash:\n    - x\n    - '('", `6: argument_filters: "bash": "(" is no regular expression of 1 to 1024 bytes (missing closing ): `},
		"filter of no tool":               {"argument_filters: {bsh: [x]}", `3: argument_filters: "bsh" matches no tool: `},
		"filter twice":                    {"argument_filters: {bash: [x, x]}", `"x" is here twice, first in line 3: remove one`},
		"filter is no list":               {"argument_filters: {bash: x}", `3: argument_filters: "bash" is a text: want a list`},
		"no command":                      {"mcp_servers: {own: {}}", `3: mcp_servers: "own" has no command: add one`},
		"an address":                      {"mcp_servers: {own: {url: 'https://u:hunter2@x'}}", `3: mcp_servers: own: url: has a user: write headers`},
		"no address":                      {"mcp_servers: {own: {url: hunter2}}", `3: mcp_servers: own: url: is no address: write https://HOST/PATH`},
		"not encrypted":                   {"mcp_servers: {own: {url: 'http://hunter2.example/'}}", `3: mcp_servers: own: url: is http, which only loopback may be: write https`},
		"address and command":             {"mcp_servers: {own: {url: 'http://127.0.0.1:1/', command: c}}", `3: mcp_servers: "own" has a url and command`},
		"address and environment":         {"mcp_servers: {own: {url: 'http://[::1]:1/', env: {A: b}}}", `3: mcp_servers: "own" has a url and env`},
		"headers of a command":            {"mcp_servers: {own: {command: c, headers: {A: b}}}", `3: mcp_servers: "own" has headers`},
		"a header of ours":                {"mcp_servers: {own: {url: 'http://localhost/', headers: {Mcp-Session-Id: b}}}", `3: mcp_servers: own: headers: "Mcp-Session-Id" cannot be set`},
		"a header of two lines":           {"mcp_servers: {own: {url: 'http://localhost/', headers: {A: \"hunter2\\nB: c\"}}}", `3: mcp_servers: own: headers: A holds a control character`},
		"a header without its variable":   {"mcp_servers: {own: {url: 'http://localhost/', headers: {A: '${UNSET_FOR_SURE}'}}}", `3: mcp_servers: own: headers: A names ${UNSET_FOR_SURE}, which is not set`},
		"cwd above":                       {"mcp_servers: {own: {command: x, cwd: a/../../b}}", `3: mcp_servers: own: cwd: "a/../../b" leads out of the workspace: write a directory relative to it`},
		"cwd elsewhere":                   {"mcp_servers: {own: {command: x, cwd: /tmp}}", `3: mcp_servers: own: cwd: "/tmp" leads out of the workspace: `},
		"empty command":                   {"mcp_servers: {own: {command: ''}}", "3: mcp_servers: own: command: is empty: name a program"},
		"server's name":                   {"mcp_servers: {\"o:n\": {command: x}}", `3: mcp_servers: "o:n" is no name of a server: want`},
		"server's name with an end in it": {"mcp_servers: {a__b: {command: x}}", `3: mcp_servers: "a__b" is no name of a server: want`},
		"server's name that runs on":      {"mcp_servers: {a_: {command: x}}", `3: mcp_servers: "a_" is no name of a server: want`},
		"server's key":                    {"mcp_servers: {own: {comand: x, command: x}}", `3: mcp_servers: own: unknown key "comand": did you mean command`},
		"server's time":                   {"mcp_servers: {own: {command: x, timeout: 5}}", `3: mcp_servers: own: timeout: "5" is no duration: write one like 90s or 10m`},
		"server's time, none":             {"mcp_servers: {own: {command: x, timeout: 0s}}", `3: mcp_servers: own: timeout: "0s" is not above zero: drop the key for the default`},
		"server's variable":               {"mcp_servers: {own: {command: x, env: {\"A-B\": x}}}", `"A-B" is no name of a variable: want`},
		"unset":                           {"mcp_servers:\n  own:\n    command: x\n    env:\n      K: \"${SCOPEFS_TEST_UNSET}\"", `7: mcp_servers: own: env: K names ${SCOPEFS_TEST_UNSET}, which is not set: set it in the daemon's environment, or remove it`},
		"unset argument":                  {"mcp_servers:\n  own:\n    command: x\n    args: [a, \"${SCOPEFS_TEST_SET}/${SCOPEFS_TEST_UNSET}\"]", "6: mcp_servers: own: args: names ${SCOPEFS_TEST_UNSET}, which is not set: "},
		"unset command":                   {"mcp_servers: {own: {command: \"${SCOPEFS_TEST_UNSET}\"}}", "3: mcp_servers: own: command: names ${SCOPEFS_TEST_UNSET}, which is not set: "},
		"unset cwd":                       {"mcp_servers: {own: {command: x, cwd: \"${SCOPEFS_TEST_UNSET}\"}}", "3: mcp_servers: own: cwd: names ${SCOPEFS_TEST_UNSET}, which is not set: "},
		"half a variable":                 {"mcp_servers: {own: {command: \"${X\"}}", "3: mcp_servers: own: command: has a ${ that names no variable: write ${VAR}, or $${"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			base := testBase{agents: map[string]string{"a": c.keys, "b": "", "bad": "x: y"}, skills: []string{"summarize", "check-feeds"}}.make(t)
			all, errs := Load(base, Host{Tools: ours(), Servers: Servers{"search": {Command: "s"}, "files": {Command: "f"}}})
			require.Len(t, errs, 2)
			requireDefinitionError(t, errs[0], "agents.d/a.md:", c.want)
			assert.Equal(t, scope.ID("a"), errs[0].(*fields.FileError).Agent)
			assert.Nil(t, all.Agents["a"])
			assert.NotNil(t, all.Agents["b"])
			text, err := os.ReadFile(filepath.Join(base, "agents.d/a.md"))
			require.NoError(t, err)
			checked, _ := all.Check("elsewhere/a.md", text)
			require.Len(t, checked, 1)
			assert.EqualError(t, checked[0], errs[0].Error())
		})
	}
}

// TestLoadAll: "*" matches also where there is nothing, and a definition that
// does not load is a member all the same.
func TestLoadAll(t *testing.T) {
	t.Setenv("SCOPEFS_TEST_SET", "yes")
	keys := `tools: ["*"]
skills: ["*"]
mcps: ["*"]
members: ["*"]
policy: {tools: {allowed: ["*"], exclude: ["*"], ask: ["*"]}, mcp: {allowed: ["*"], excluded: ["*"]}}
rate_limits: {"*": 1/hour}
argument_filters: {"*": [x]}`
	_, errs := Load(testBase{agents: map[string]string{"a": keys}}.make(t), Host{Tools: ours()})
	assert.Empty(t, errs)

	all, errs := Load(testBase{agents: map[string]string{"a": "members: [bad]\nmcp_servers: {own: {command: \"$${A}/${SCOPEFS_TEST_SET}\", args: [a, \"$x\"], env: {K: \"${SCOPEFS_TEST_SET}${SCOPEFS_TEST_SET}\"}, cwd: w, timeout: 90s}}", "bad": "x: y"}}.make(t), Host{Tools: ours()})
	require.Len(t, errs, 1)
	assert.Equal(t, []scope.ID{"bad"}, all.Agents["a"].Grants.Members())
	assert.Equal(t, Server{Command: "${A}/yes", Args: []string{"a", "$x"}, Env: map[string]string{"K": "yesyes"}, Cwd: "w", Timeout: 90 * time.Second, Private: true, Own: true, From: "agents.d/a.md"},
		all.Agents["a"].Grants.Servers()["own"])

	_, errs = Load(testBase{agents: map[string]string{"a": ""}}.make(t), Host{Tools: ours(), Primary: "boss"})
	require.Len(t, errs, 1)
	assert.EqualError(t, errs[0], `scopefs.yaml: primary: no agent "boss" is defined: define it in agents.d/boss.md, or correct the name`)
}

// TestExtensions: what is private reaches those that are named, and of others
// not even an error.
func TestExtensions(t *testing.T) {
	ext := "description: d\nagents: [\"a*\"]\nmcp_servers:\n  secret: {command: x}\n  open: {command: y, visibility: public}\n"
	base := testBase{agents: map[string]string{"a1": "mcps: [secret, open]", "b": "mcps: [open]", "c": "tools: [\"mcp:secret:*\"]"}, extensions: map[string]string{"e": ext}}
	all, errs := Load(base.make(t), Host{Tools: ours()})
	require.Len(t, errs, 1)
	requireDefinitionError(t, errs[0], `agents.d/c.md:3: tools: "mcp:secret:*" matches no server that the agent can see (there is open): correct it`)
	a, b := all.Agents["a1"].Grants, all.Agents["b"].Grants
	assert.Equal(t, Server{Command: "x", Private: true, From: "extensions.d/e.yaml"}, a.Servers()["secret"])
	assert.Equal(t, Server{Command: "y", From: "extensions.d/e.yaml"}, a.Servers()["open"])
	assert.Len(t, b.Servers(), 1)
	assert.Equal(t, strings.ReplaceAll(b.Server("nothere").Remedy, "nothere", "secret"), b.Server("secret").Remedy)
	assert.Equal(t, b.Server("nothere").Rule, b.Server("secret").Rule)
	assert.Equal(t, b.Tool("mcp:nothere:x").Rule, b.Tool("mcp:secret:x").Rule)

	// Who sees a name twice does not load, and nobody else minds.
	base.agents["c"] = "mcp_servers: {secret: {command: z}}"
	all, errs = Load(base.make(t), Host{Tools: ours(), Servers: Servers{"secret": {Command: "h"}}})
	require.Len(t, errs, 1)
	requireDefinitionError(t, errs[0], `extensions.d/e.yaml:5: mcp_servers: agent "a1" would see two servers "secret", the other of scopefs.yaml: rename one`)
	assert.Equal(t, scope.ID("a1"), errs[0].(*fields.FileError).Agent)
	assert.Equal(t, "z", all.Agents["c"].Grants.Servers()["secret"].Command, "an agent's own server wins")
	assert.NotNil(t, all.Agents["b"])

	base.agents["c"] = "mcp_servers: {secret: {command: z}}"
	all, errs = Load(base.make(t), Host{Tools: ours()})
	require.Empty(t, errs, "a private server of others is no clash")
	assert.Equal(t, "z", all.Agents["c"].Grants.Servers()["secret"].Command)
	bad, _ := all.Check("f.yaml", []byte("name: f\nagents: [c]\nmcp_servers:\n  secret: {command: x}\n"))
	assert.Empty(t, bad, "an agent's own server wins")
	bad, _ = all.Check("f.yaml", []byte("name: f\nmcp_servers:\n  open: {command: x, visibility: public}\n"))
	require.Len(t, bad, 1)
	requireDefinitionError(t, bad[0], `extensions.d/f.yaml:3: mcp_servers: agent "a1" would see two servers "open", the other of extensions.d/e.yaml`)
}

func TestExtensionErrors(t *testing.T) {
	cases := map[string]struct{ text, want string }{
		"key":        {"nam: x", `e.yaml:1: unknown key "nam": did you mean name`},
		"name":       {"name: x", `e.yaml:1: name: "x" is not what the file is named after: write e`},
		"no name":    {"", "e.yaml:1: name is missing: add name: e"},
		"agent":      {"name: e\nagents:\n- x", `e.yaml:3: agents: "x" matches no agent (there is a): correct it, or define it in agents.d/x.md`},
		"visibility": {"name: e\nmcp_servers: {s: {command: x, visibility: all}}", `e.yaml:2: mcp_servers: s: visibility: unknown "all": want one of [public private internal]`},
		"twice":      {"name: e\nmcp_servers:\n  s: {command: x}\n  s: {command: x}", `e.yaml:4: "s" is here twice, first in line 3: remove one`},
		"bytes":      {"name: \xff", "e.yaml: is not UTF-8: save it as UTF-8"},
		"large":      {strings.Repeat("#\n", 40_000), "e.yaml: is larger than 65536 bytes: shorten it"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			base := testBase{agents: map[string]string{"a": ""}}.make(t)
			writeFile(t, base, "extensions.d/e.yaml", c.text)
			all, errs := Load(base, Host{Tools: ours()})
			require.Len(t, errs, 1)
			requireDefinitionError(t, errs[0], "extensions.d/", c.want)
			assert.Empty(t, errs[0].(*fields.FileError).Agent)
			assert.NotNil(t, all.Agents["a"])
		})
	}
	base := testBase{agents: map[string]string{"a": ""}}.make(t)
	writeFile(t, base, "extensions.d/E.yaml", "")
	writeFile(t, base, "agents/a/x.yaml", "name: l")
	require.NoError(t, os.Symlink("../agents/a/x.yaml", filepath.Join(base, "extensions.d/l.yaml")))
	require.NoError(t, os.Link(filepath.Join(base, "agents/a/x.yaml"), filepath.Join(base, "extensions.d/m.yaml")))
	_, errs := Load(base, Host{Tools: ours()})
	require.Len(t, errs, 3)
	requireDefinitionError(t, errs[0], `extensions.d/E.yaml: "E" is no name of an extension: want`)
	requireDefinitionError(t, errs[1], "extensions.d/l.yaml: is a symbolic link: put the file itself here")
	requireDefinitionError(t, errs[2], "extensions.d/m.yaml: has 2 names, and one may be in a view: replace it by a copy")
	for _, dir := range []string{extensionsDir, skillsDir} {
		base := testBase{agents: map[string]string{"a": ""}}.make(t)
		require.NoError(t, os.MkdirAll(filepath.Join(base, "agents/a"), 0o755))
		require.NoError(t, os.Symlink("agents/a", filepath.Join(base, dir)))
		_, errs := Load(base, Host{Tools: ours()})
		require.Len(t, errs, 1)
		requireDefinitionError(t, errs[0], dir+": ", "is inside the views, where agents write: move "+dir+" out")
	}
}
