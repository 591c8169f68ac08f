package tools

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools"
)

func init() {
	// An MCP server that tells what it sees.
	harness.Roles["mcp-look"] = func([]string) error {
		s := mcp.NewServer(&mcp.Implementation{Name: "look", Version: "v1"}, nil)
		mcp.AddTool(s, &mcp.Tool{Name: "look", Description: "looks"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			workspace, network := "none", "none"
			if _, err := os.ReadDir("/workspace"); err == nil {
				workspace = "read"
				if os.WriteFile("/workspace/"+os.Getenv("NAME"), nil, 0o644) == nil {
					workspace = "write"
				}
			}
			if links, err := net.Interfaces(); err == nil && len(links) > 1 {
				network = "host"
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "workspace " + workspace + ", network " + network}}}, nil, nil
		})
		return s.Run(context.Background(), &mcp.StdioTransport{})
	}
}

// startsOf counts the starts of MCP servers of an agent's.
func startsOf(h *harness.Host, id string) (n int) {
	for _, e := range h.Events(id) {
		if e.Event == audit.KindSandbox && e.Op == "exec" && strings.Contains(e.Target, "test-program") && e.Outcome == audit.OutcomeBegin {
			n++
		}
	}
	return n
}

// TestServerApart: the agent's commands see nothing of a server, which sees of
// the agent what its definition says.
func TestServerApart(t *testing.T) {
	const secret = "sesame-4711"
	look := "args: [], env: {NAME: N, KEY: " + secret + ", " + harness.RoleEnv + ": mcp-look}"
	h := harness.LayOut(t, map[string]string{"a": "mcp_servers: {mine: {command: /workspace/test-program, " + look + "}}"})
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(h.Base+"/opt", 0o755))
	text, err := os.ReadFile(self)
	require.NoError(t, err)
	h.Put("opt/test-program", string(text))
	require.NoError(t, os.Chmod(h.Base+"/opt/test-program", 0o755))
	shown := func(name, more string) string {
		return fmt.Sprintf("  %s: {command: %s/opt/test-program, %s%s}\n", name, h.Base, look, more)
	}
	h.Put("scopefs.yaml", "sandbox: {expose: ["+h.Base+"/opt]}\nmcp_servers:\n"+
		shown("blind", "")+shown("reader", ", workspace: read")+shown("online", ", network: host"))
	plantServer(h, "a")
	h.Start()
	u := h.Connect("a")
	assert.Zero(t, startsOf(h, "a"), "nobody has asked for its tools")
	h.Eventually("all are listed", func() bool {
		all := u.List()
		return all["mcp__mine__look"] != nil && all["mcp__blind__look"] != nil && all["mcp__reader__look"] != nil && all["mcp__online__look"] != nil
	})
	for server, want := range map[string]string{
		"mine":   "workspace write, network none",
		"blind":  "workspace none, network none",
		"reader": "workspace read, network none",
		"online": "workspace none, network host",
	} {
		assert.Equal(t, want, u.Text("mcp__"+server+"__look", nil), server)
	}
	assert.Equal(t, "0", u.Bash("cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '[s]esame'; true"))
	assert.Equal(t, "", u.Bash("ps ax -o args 2>/dev/null | grep '[t]est-program'; true"))
	assert.Len(t, h.Agent("a").Sandboxes, 5, "one a server, one for the tools")
}

// TestServerIdle: a server of which the rules leave no tool is not started, nor
// one that is not needed for the call.
func TestServerIdle(t *testing.T) {
	h := harness.LayOut(t, map[string]string{
		"none": "tools: [stat]\nmcp_servers: {mine: " + serverOf("MINE") + "}",
		"out":  "policy: {tools: {exclude: [\"mcp:mine:*\"]}}\nmcp_servers: {mine: " + serverOf("MINE") + "}",
		"two":  "mcp_servers: {mine: " + serverOf("MINE") + ", other: " + serverOf("OTHER") + "}",
	})
	plantServer(h, "none", "out", "two")
	h.Start()
	for _, id := range []string{"none", "out"} {
		u := h.Connect(id)
		u.List()
		u.Call("stat", args{"path": "."})
		assert.Equal(t, tools.Denied, u.Fails("mcp__mine__say", args{"text": "x"}).Code)
		assert.Zero(t, startsOf(h, id), id)
	}
	h.Must("call", "--agent", "two", "stat", "path=.")
	assert.Zero(t, startsOf(h, "two"))
	assert.Contains(t, h.Must("call", "--agent", "two", "mcp__mine__say", "text=hello"), "MINE says hello")
	assert.Equal(t, 1, startsOf(h, "two"), "the one that was called")
}

// TestServerSlow: a call waits for a server that starts; one that does not start
// in its time is unavailable, and no denial.
func TestServerSlow(t *testing.T) {
	need.Once(t)
	t.Parallel()
	slow := func(seconds string) string {
		return `{command: sh, args: ["-c", "sleep ` + seconds + `; exec /workspace/test-program"], env: {NAME: SLOW, ` + harness.RoleEnv + `: mcp-server}, start_timeout: 20s}`
	}
	h := harness.LayOut(t, map[string]string{"a": "mcp_servers: {slow: " + slow("7") + ", never: " + strings.Replace(slow("1000"), "20s", "1s", 1) + "}"})
	plantServer(h, "a")
	h.Start()
	assert.Contains(t, h.Must("call", "--agent", "a", "mcp__slow__say", "text=hello"), "SLOW says hello")
	e := h.Connect("a").Fails("mcp__never__say", args{"text": "x"})
	assert.Equal(t, tools.Unavailable, e.Code)
	assert.Contains(t, e.Message, "cannot be used now")
	last := h.Last("a", "mcp:never:say")
	assert.Equal(t, audit.Allow, last.Verdict)
	assert.Equal(t, "unavailable", last.Outcome)
	assert.Contains(t, last.Detail, "no answer within 1s")
}
