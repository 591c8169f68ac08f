package agents

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// TestWithinVersion: an approval for one caller's task is none for another's,
// though both have the same rules.
func TestWithinVersion(t *testing.T) {
	all, errs := Load(testBase{agents: map[string]string{"x": "members: [m]", "y": "members: [m]", "m": ""}}.make(t), Host{Tools: ours()})
	require.Empty(t, errs)
	x, y, m := all.Agents["x"].Grants, all.Agents["y"].Grants, all.Agents["m"].Grants
	require.Equal(t, x.Version(), y.Version())
	assert.Equal(t, m.Within(x).Version(), m.Within(x).Version())
	assert.NotEqual(t, m.Within(x).Version(), m.Within(y).Version())
	assert.NotEqual(t, m.Within(x.Within(y)).Version(), m.Within(y.Within(x)).Version())
	assert.False(t, m.Within(x).Equal(m.Within(y)))
}

// TestWithinServerTools: a caller that has a server without some of its tools has a
// member without these on the server of that name, unless the member may widen.
func TestWithinServerTools(t *testing.T) {
	host := Host{Tools: ours(), Servers: Servers{"s": {Command: "x"}}}
	all, errs := Load(testBase{agents: map[string]string{
		"without": "tools: ['*']\nmembers: [m]\nmcp_servers: {s: {command: y, exclude_tools: [rm*]}}",
		"only":    "tools: ['*']\nmembers: [m]\nmcp_servers: {s: {command: y, include_tools: [get]}}",
		"own":     "tools: ['*']\nmembers: [m]\nmcp_servers: {s: {command: y}}",
		"theirs":  "tools: ['*']\nmembers: [m]",
		"m":       "",
	}}.make(t), host)
	require.Empty(t, errs)
	m := all.Agents["m"].Grants
	for caller, want := range map[scope.ID]string{"without": "get", "only": "get", "own": "get rm", "theirs": "get rm"} {
		within, got := m.Within(all.Agents[caller].Grants), []string{}
		for _, tool := range []string{"get", "rm"} {
			if within.Tool("mcp:s:" + tool).Allow {
				got = append(got, tool)
			}
		}
		assert.Equal(t, want, strings.Join(got, " "), caller)
	}
	assert.Equal(t, "caller without: exclude_tools: rm*", m.Within(all.Agents["without"].Grants).Tool("mcp:s:rm").Rule)
	assert.False(t, m.Within(all.Agents["own"].Grants.Within(all.Agents["without"].Grants)).Tool("mcp:s:rm").Allow, "along the chain")
}

// TestWithinComputed: a computed list is what the caller calls itself, and does not bound its member. A written list,
// the policy and access do.
func TestWithinComputed(t *testing.T) {
	callers := map[string]string{
		"computed": "members: [m]", "written": "tools: [bash, delegate]\nmembers: [m]",
		"policy": "members: [m]\npolicy: {tools: {exclude: [read_file]}}", "read": "members: [m]\nview: {access: read}",
		"servers": "members: [m]\nmcps: []",
	}
	files := map[string]string{"m": "tools: [read_file, write_file, mcp]"}
	maps.Copy(files, callers)
	all, errs := Load(testBase{agents: files}.make(t), Host{Tools: ours(), Servers: Servers{"s": {Command: "x"}}})
	require.Empty(t, errs)
	for caller, want := range map[scope.ID]string{
		"computed": "read_file write_file mcp:s:q", "written": "", "policy": "write_file mcp:s:q", "read": "read_file mcp:s:q", "servers": "read_file write_file",
	} {
		within, got := all.Agents["m"].Grants.Delegated(all.Agents[caller].Grants), []string{}
		for _, tool := range []string{"read_file", "write_file", "mcp:s:q", "glob"} {
			if within.Tool(tool).Allow {
				got = append(got, tool)
			}
		}
		assert.Equal(t, want, strings.Join(got, " "), caller)
	}
	require.Len(t, all.Warnings, 1)
	assert.Equal(t, `agents.d/written.md:4: members: m keeps none of its tools in a task of this agent, whose tools bound it: write members: {m: {may: widen}}, or add tools`, all.Warnings[0].Error())
}

// TestWithinBlock: the block of a member's task has no server that its caller may not use.
func TestWithinBlock(t *testing.T) {
	all, errs := Load(testBase{agents: map[string]string{
		"caller": "members: [m]\nmcps: [s]\npolicy: {tools: {exclude: [skill]}}", "m": "skills: ['*']",
	}, skills: []string{"sing"}}.make(t), Host{Tools: ours(), Servers: Servers{"s": {Command: "x"}, "other": {Command: "x"}}})
	require.Empty(t, errs)
	m := all.Agents["m"].Grants
	assert.Contains(t, m.Block(), "sing")
	assert.NotContains(t, m.Delegated(all.Agents["caller"].Grants).Block(), "sing")
}
