package agents

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
)

// auditor is a definition as another program's users write it.
const auditor = `---
name: security-auditor
display_name: Security Auditor
tools: [builtin:read_file, "mcp:security-scanner:*"]
policy:
  tools: {allowed: [builtin:read_file, "mcp:security-scanner:*"], exclude: ["builtin:shell", "builtin:write_file"]}
  mcp: {allowed: [security-scanner], excluded: ["*"]}
  mcp_servers: {security-scanner: {trust: true}}
mcp_servers:
  security-scanner: {command: npx, args: ["-y", "scanner"], env: {API_KEY: "${SECURITY_API_KEY}"}}
---
You audit.
`

func TestLoadAuditor(t *testing.T) {
	t.Setenv("SECURITY_API_KEY", "k")
	base := testBase{}.make(t)
	writeFile(t, base, "agents.d/security-auditor.md", auditor)
	all, errs := Load(base, Host{Tools: ours(), Servers: Servers{"other": {Command: "o"}, "security-scanner": {Command: "global"}}})
	require.Empty(t, errs)
	require.Empty(t, all.Warnings)
	agent := all.Agents["security-auditor"]
	assert.Equal(t, "Security Auditor", agent.DisplayName)
	assert.Equal(t, "npx", agent.Grants.Servers()["security-scanner"].Command, "its own server wins")
	for tool, want := range map[string]string{
		"read_file": "allow", "mcp:security-scanner:scan": "allow", "bash": "deny", "builtin:shell": "deny",
		"write_file": "deny", "mcp:other:x": "deny", "stat": "deny",
	} {
		assert.Equal(t, want, word(agent.Grants.Tool(tool)), tool)
	}
	assert.Equal(t, "policy.tools.exclude: builtin:shell", agent.Grants.Tool("bash").Rule)
}

// TestShellIsBash: builtin:shell and builtin:run_shell_command are names of bash.
func TestShellIsBash(t *testing.T) {
	for _, alias := range []string{"builtin:shell", "builtin:run_shell_command"} {
		assert.True(t, grantsOf(t, "tools: ["+alias+"]").Tool("bash").Allow, alias)
		assert.True(t, grantsOf(t, "tools: [bash]").Tool(alias).Allow, alias)
		assert.False(t, grantsOf(t, "policy: {tools: {exclude: ["+alias+"]}}").Tool("bash").Allow, alias)
		assert.True(t, grantsOf(t, "policy: {tools: {ask: ["+alias+"]}}").Tool("bash").Ask, alias)
	}
	// What restricts reaches it by a wildcard as well, what allows does not.
	assert.False(t, grantsOf(t, `policy: {tools: {exclude: ["builtin:s*"]}}`).Tool("bash").Allow)
	assert.False(t, grantsOf(t, `tools: ["builtin:s*"]`).Tool("bash").Allow)
	assert.True(t, grantsOf(t, `policy: {tools: {exclude: ["s*"]}}`).Tool("bash").Allow)
	_, errs := Load(testBase{agents: map[string]string{"a": "tools: [bash, builtin:shell]"}}.make(t), Host{Tools: ours()})
	require.Len(t, errs, 1)
	requireDefinitionError(t, errs[0], `3: tools: "builtin:shell" is here twice`)
}

// TestAllErrors: a file's errors are said in one run, in the order of its lines.
func TestAllErrors(t *testing.T) {
	base := testBase{agents: map[string]string{"b": ""}}.make(t)
	writeFile(t, base, "agents.d/a.md", `---
name: x
tools: [bash, raed_file, "", bash]
skills: [nope]
members: [b, c]
colour: red
limits: {pids: -1, cpu: 0}
mcp_servers:
  own: {comand: x, env: {"A-B": c, K: "${SCOPEFS_TEST_UNSET}"}}
rate_limits: {bash: 1/day, raed: 1/hour}
policy: {mcp: {mcp_servers: {own: {trust: true}}}, mcp_servers: {own: {trust: true}}}
---
`)
	all, errs := Load(base, Host{Tools: ours()})
	want := []string{
		`2: name: "x" is not what the file is named after`,
		`3: tools: "" is empty`,
		`3: tools: "bash" is here twice`,
		`3: tools: "raed_file" matches no tool`,
		`4: skills: "nope" matches no skill`,
		`5: members: "c" matches no other agent (there is b)`,
		`6: unknown key "colour"`,
		`7: pids: "-1" is not above zero`, `7: cpu: "0" is not above zero`,
		`9: mcp_servers: "own" has no command`,
		`9: mcp_servers: own: unknown key "comand"`,
		`9: mcp_servers: own: env: "A-B" is no name of a variable`,
		`9: mcp_servers: own: env: K names ${SCOPEFS_TEST_UNSET}`,
		`10: rate_limits: "bash" is limited to "1/day"`,
		`10: rate_limits: "raed" matches no tool`,
		`11: mcp_servers: is also in policy.mcp`,
	}
	var got []string
	for _, err := range errs {
		got = append(got, err.Error())
	}
	for _, line := range want {
		assert.Contains(t, strings.Join(got, "\n"), "agents.d/a.md:"+line)
	}
	assert.Len(t, got, len(want), "%s", strings.Join(got, "\n"))
	assert.Nil(t, all.Agents["a"])
	_, err := ParseDefinition("a.md", []byte("---\nname: a\nx: 1\ny: 1\n---\n"))
	var both fields.FileErrors
	require.ErrorAs(t, err, &both)
	assert.Len(t, both, 2)

	writeFile(t, base, "agents.d/a.md", "---\nname: a\n"+strings.Repeat("tools: []\n", 500)+"---\n")
	_, errs = Load(base, Host{Tools: ours()})
	assert.Len(t, errs, fields.MaxErrors+1)
	requireDefinitionError(t, errs[fields.MaxErrors], "449 more errors: correct those above")
}

// TestRemoved: what an unchanged file names and is no more is a warning, and
// grants nothing; what was mistyped is an error.
func TestRemoved(t *testing.T) {
	keys := "skills: [one, two]\nmembers: [b]\nmcps: [search]\ntools: [skill, delegate, \"mcp:search:*\", bash]\npolicy: {tools: {exclude: [\"mcp:search:rm\"]}, mcp: {mcp_servers: {search: {trust: true}}}}"
	base := testBase{agents: map[string]string{"a": keys, "b": ""}, skills: []string{"one", "two"}, extensions: map[string]string{"e": "agents: [b]"}}.make(t)
	host := Host{Tools: ours(), Servers: Servers{"search": {Command: "s"}}}
	before, errs := Load(base, host)
	require.Empty(t, errs)
	require.Empty(t, before.Warnings)

	require.NoError(t, os.Remove(filepath.Join(base, "agents.d/b.md")))
	require.NoError(t, os.RemoveAll(filepath.Join(base, "skills/one")))
	for name, last := range map[string]*Snapshot{"reload": before, "another daemon": Resume(before.Seen())} {
		t.Run(name, func(t *testing.T) {
			next, errs := last.Reload(base, Host{Tools: ours()})
			require.Empty(t, errs)
			var lines []string
			for _, w := range next.Warnings {
				requireDefinitionError(t, w)
				lines = append(lines, w.Error())
			}
			require.Len(t, lines, 7, "%q", lines)
			assert.Contains(t, lines[0], `extensions.d/e.yaml:2: agents: "b" matches no agent`)
			assert.Contains(t, lines[1], `agents.d/a.md:3: skills: "one" matches no skill`)
			assert.Contains(t, lines[1], "; it was there once, and grants nothing now")
			assert.Contains(t, lines[2], `agents.d/a.md:4: members: "b" matches no other agent`)
			g := next.Agents["a"].Grants
			assert.Equal(t, []string{"two"}, g.Skills())
			assert.Empty(t, g.Members())
			assert.Empty(t, g.Servers())
			assert.False(t, g.Tool("mcp:search:q").Allow)
			assert.True(t, g.Tool("bash").Allow)

			// Again, and it is as it was; and what comes back is there.
			again, errs := next.Reload(base, host)
			require.Empty(t, errs)
			assert.Len(t, again.Warnings, 3)
			assert.Len(t, again.Agents["a"].Grants.Servers(), 1)
		})
	}
	_, errs = Load(base, host)
	assert.Len(t, errs, 3, "nothing is known of what has loaded before")

	// The file changes: what it says now was not mistyped by anybody else.
	next, _ := before.Reload(base, host)
	writeFile(t, base, "agents.d/a.md", "---\nname: a\n"+keys+"\ndescription: changed\n---\n")
	for _, last := range []*Snapshot{next, Resume(next.Seen())} {
		_, errs := last.Reload(base, host)
		require.Len(t, errs, 2)
		requireDefinitionError(t, errs[0], `agents.d/a.md:3: skills: "one" matches no skill (there is two): correct it, or create skills/one/SKILL.md`)
	}
}

// TestIdle: lists for which there is no tool are told, for the agent has none of
// what is in them.
func TestIdle(t *testing.T) {
	keys := "tools: [read_file]\nskills: [one]\nmembers: [b]\nmcps: [search]"
	all, errs := Load(testBase{agents: map[string]string{"a": keys, "b": ""}, skills: []string{"one"}}.make(t), Host{Tools: ours(), Servers: Servers{"search": {Command: "s"}}})
	require.Empty(t, errs)
	require.Len(t, all.Warnings, 3)
	requireDefinitionError(t, all.Warnings[0], "agents.d/a.md:4: skills: the agent cannot read them, for there is no tool skill: add skill to tools, or remove skills")
	requireDefinitionError(t, all.Warnings[1], "agents.d/a.md:5: members: the agent cannot delegate to them, for there is no tool delegate: add delegate to tools, or remove members")
	requireDefinitionError(t, all.Warnings[2], "agents.d/a.md:6: mcps: the agent cannot use them, for there is no tool mcp: add mcp to tools, or remove mcps")
	for _, keys := range []string{
		"skills: [one]\nmembers: [b]\nmcps: [search]", "tools: [skill, delegate, mcp]\nskills: [one]\nmembers: [b]\nmcps: [search]", "tools: [read_file]\nskills: []\nmembers: []\nmcps: []",
		"tools: [\"mcp:search:a*\"]\nmcps: [search]\npolicy: {tools: {allowed: [\"mcp:*:*b\"]}}",
	} {
		all, errs := Load(testBase{agents: map[string]string{"a": keys, "b": ""}, skills: []string{"one"}}.make(t), Host{Tools: ours(), Servers: Servers{"search": {Command: "s"}}})
		require.Empty(t, errs)
		assert.Empty(t, all.Warnings, keys)
	}
}

// TestBracketed: a rule that would miss the directory whose name it seems to have is warned of.
func TestBracketed(t *testing.T) {
	for pattern, right := range map[string]string{
		"app/[id]/**": `app/\[id\]/**`, "**/[...path]": `**/\[...path\]`, "[[...slug]]/x": `\[\[...slug\]\]/x`,
		"app/[0-9]/**": "", "[!a]b": "", "a[id]": "", "*.[ch]": "", `app/\[id\]/**`: "", "[a]": "", "[^ab]/x": "",
	} {
		all, errs := Load(testBase{agents: map[string]string{"a": "view: {paths: {'" + pattern + "': read}}"}}.make(t), Host{Tools: ours()})
		require.Empty(t, errs)
		if right == "" {
			assert.Empty(t, all.Warnings, pattern)
			continue
		}
		require.Len(t, all.Warnings, 1, pattern)
		assert.ErrorContains(t, all.Warnings[0], "for one in brackets write '"+right+"'")
		policy, err := scope.Compile(scope.PolicySpec{Paths: []scope.PathRule{{Pattern: right, Access: scope.Read}}})
		require.NoError(t, err)
		name := strings.ReplaceAll(strings.ReplaceAll(pattern, "/**", ""), "**/", "a/")
		assert.False(t, policy.File(scope.OpOpenWrite, name).Allow, name)
	}
}

// TestEmptyListAlone: an empty list computes the tools, as one with names does. The check says so.
func TestEmptyListAlone(t *testing.T) {
	for keys, warned := range map[string]string{
		"mcps: []": "mcps", "skills: []": "skills", "members: []": "members", "skills: []\nmcps: []": "mcps",
		"tools: [\"*\"]\nmcps: []": "", "skills: [one]\nmcps: []": "", "tools: []\nmcps: []": "",
	} {
		all, errs := Load(testBase{agents: map[string]string{"a": keys}, skills: []string{"one"}}.make(t), Host{Tools: ours()})
		require.Empty(t, errs)
		if warned == "" {
			assert.Empty(t, all.Warnings, keys)
		} else if assert.Len(t, all.Warnings, 1, keys) {
			assert.ErrorContains(t, all.Warnings[0], warned+`: [] without tools leaves the agent bash, ask_user, and no file tools: write tools: ["*"] beside it for all`)
		}
	}
}

func TestUses(t *testing.T) {
	for keys, want := range map[string]bool{
		"": true, "tools: [read_file]": false, "tools: [mcp]": true, "tools: [\"*\"]": true, "tools: [\"mcp:search:q\"]": true, "tools: [\"mcp:files:q\"]": false,
		"tools: [mcp]\npolicy: {tools: {exclude: [\"mcp:search:*\"]}}": false, "tools: [\"mcp:search:q\"]\npolicy: {tools: {exclude: [\"mcp:search:q\"]}}": false,
		"policy: {tools: {exclude: [\"mcp:search:q\"]}}": true, "policy: {tools: {exclude: [mcp]}}": false, "policy: {tools: {ask: [mcp]}}": true,
		"mcps: [files]": false, "policy: {tools: {allowed: [bash]}}": false, "tools: [\"mcp:se*:a*\"]\npolicy: {tools: {allowed: [\"mcp:search:*b\"]}}": true,
		"mcp_servers: {search: {command: x, include_tools: []}}": false, "mcp_servers: {search: {command: x, include_tools: [q]}}\npolicy: {tools: {exclude: [\"mcp:search:q\"]}}": false,
		"mcp_servers: {search: {command: x, exclude_tools: [\"*\"]}}": false,
	} {
		assert.Equal(t, want, grantsOf(t, keys).Uses("search"), keys)
	}
}
