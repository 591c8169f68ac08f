package answers

import (
	"context"
	"os"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/scope/effect"
)

// server is an MCP server with a tool that does what static does.
func server([]string) error {
	s := mcp.NewServer(&mcp.Implementation{Name: "server"}, nil)
	type words struct {
		Words []string `json:"words"`
	}
	mcp.AddTool(s, &mcp.Tool{Name: "do"}, func(_ context.Context, _ *mcp.CallToolRequest, in words) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil, static(in.Words)
	})
	return s.Run(context.Background(), &mcp.StdioTransport{})
}

// TestServer: the answer of a server's tool has what the server's process changed during the call, and no more.
func TestServer(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "view: {changes: kept}\nmcp_servers: {s: {command: /workspace/tool, env: {" + harness.RoleEnv + ": server}}}"})
	plantTool(t, h.Scope("a"))
	harness.Plant(t, h.Scope("a"), "one", "two", "three")
	h.Start()
	u := h.Connect("a")
	h.Eventually("the server is listed", func() bool { return u.List()["mcp__s__do"] != nil })
	a := call(t, u, "mcp__s__do", map[string]any{"words": []string{"one", "new=text"}})
	assert.Equal(t, []string{"one"}, paths(a.effects.Removed))
	assert.Equal(t, []string{"new"}, paths(a.effects.Created))
	assert.Contains(t, a.told, "removed one")
	assert.NotContains(t, a.told, "new")
	a = call(t, u, "mcp__s__do", map[string]any{"words": []string{"two"}})
	assert.Equal(t, []string{"two"}, paths(a.effects.Removed))
	assert.Empty(t, a.effects.Created)
	a = call(t, u, "mcp__s__do", map[string]any{"words": []string{}})
	assert.Equal(t, nothing, a.told)
	call(t, u, "mcp__s__do", map[string]any{"words": []string{"three+"}})
	a = call(t, u, "mcp__s__do", map[string]any{"words": []string{}})
	assert.Equal(t, []effect.Object{{Path: "three", Marks: []string{effect.Open}}}, a.effects.Changed, "nobody sees when a file is written that is open")
}

// TestActivity: the answer of an activity has what its program changed, and so has the error of one that fails.
func TestActivity(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "view: {changes: kept}"})
	harness.Plant(t, h.Scope("a"), "one", "two")
	for name, script := range map[string]string{"works": "rm one", "fails": "rm two; exit 1"} {
		h.Put("activities.d/"+name+".json", `{"description": "d", "inputSchema": {"type": "object", "properties": {}}}`)
		h.Put("activities.d/"+name, "#!/bin/sh\n"+script+"\n")
		require.NoError(t, os.Chmod(h.Base+"/activities.d/"+name, 0o755))
	}
	h.Start()
	u := h.Connect("a")
	a := call(t, u, "works", nil)
	assert.Equal(t, []string{"one"}, paths(a.effects.Removed))
	failed := u.Fails("fails", nil)
	require.NotNil(t, failed.Effects)
	assert.Equal(t, []string{"two"}, paths(failed.Effects.Removed))
	last := h.Last("a", "fails")
	require.NotNil(t, last.Changed)
	assert.Equal(t, 1, *last.Changed)
}

// TestCallOnTerminal: scopefs call prints what a tool changed on standard error, and its output alone on standard output.
func TestCallOnTerminal(t *testing.T) {
	h, _ := kept(t, "", "one")
	stdout, stderr, code := h.Try("call", "--agent", "a", "bash", "command=rm one; echo done")
	assert.Zero(t, code)
	assert.Equal(t, "done\n", stdout)
	assert.Regexp(t, `^scopefs: removed one \(to take it back: undo call=[a-z2-7]{13}\)\n$`, stderr)
	stdout, stderr, _ = h.Try("call", "--agent", "a", "bash", "command=pwd")
	assert.Equal(t, "/workspace\n", stdout)
	assert.Empty(t, stderr)
}

// TestProfile: the answer under the names of another program has the text, too.
func TestProfile(t *testing.T) {
	h, _ := kept(t, "", "one")
	u := h.Connect("a", "--profile", "claude")
	assert.Regexp(t, `removed one \(to take it back: undo call=`, call(t, u, "Bash", map[string]any{"command": "rm one"}).told)
}
