package integration

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
	"github.com/scopefs/scopefs/tools"
)

func init() {
	// An MCP server that tells what it sees.
	roles["mcp-look"] = func([]string) error {
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

// started counts the starts of MCP servers of an agent's.
func (h *host) started(id string) (n int) {
	for _, e := range h.events(id) {
		if e.Event == audit.KindSandbox && e.Op == "exec" && strings.Contains(e.Target, "test-program") && e.Outcome == "" {
			n++
		}
	}
	return n
}

// TestServerApart: the agent's commands see nothing of a server, which sees of
// the agent what its definition says.
func TestServerApart(t *testing.T) {
	const secret = "sesame-4711"
	look := "args: [], env: {NAME: N, KEY: " + secret + ", " + roleEnv + ": mcp-look}"
	h := layOut(t, map[string]string{"a": "mcp_servers: {mine: {command: /workspace/test-program, " + look + "}}"})
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(h.base+"/opt", 0o755))
	text, err := os.ReadFile(self)
	require.NoError(t, err)
	h.put("opt/test-program", string(text))
	require.NoError(t, os.Chmod(h.base+"/opt/test-program", 0o755))
	shown := func(name, more string) string {
		return fmt.Sprintf("  %s: {command: %s/opt/test-program, %s%s}\n", name, h.base, look, more)
	}
	h.put("scopefs.yaml", "sandbox: {expose: ["+h.base+"/opt]}\nmcp_servers:\n"+
		shown("blind", "")+shown("reader", ", workspace: read")+shown("online", ", network: host"))
	h.plantServer("a")
	h.start()
	u := h.connect("a")
	assert.Zero(t, h.started("a"), "nobody has asked for its tools")
	h.eventually("all are listed", func() bool {
		all := u.list()
		return all["mcp__mine__look"] != nil && all["mcp__blind__look"] != nil && all["mcp__reader__look"] != nil && all["mcp__online__look"] != nil
	})
	for server, want := range map[string]string{
		"mine":   "workspace write, network none",
		"blind":  "workspace none, network none",
		"reader": "workspace read, network none",
		"online": "workspace none, network host",
	} {
		assert.Equal(t, want, u.text("mcp__"+server+"__look", nil), server)
	}
	assert.Equal(t, "0", u.bash("cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '[s]esame'; true"))
	assert.Equal(t, "", u.bash("ps ax -o args 2>/dev/null | grep '[t]est-program'; true"))
	assert.Len(t, h.agent("a").Sandboxes, 5, "one a server, one for the tools")
}

// TestServerIdle: a server of which the rules leave no tool is not started, nor
// one that is not needed for the call.
func TestServerIdle(t *testing.T) {
	h := layOut(t, map[string]string{
		"none": "tools: [stat]\nmcp_servers: {mine: " + serverOf("MINE") + "}",
		"out":  "policy: {tools: {exclude: [\"mcp:mine:*\"]}}\nmcp_servers: {mine: " + serverOf("MINE") + "}",
		"two":  "mcp_servers: {mine: " + serverOf("MINE") + ", other: " + serverOf("OTHER") + "}",
	})
	h.plantServer("none", "out", "two")
	h.start()
	for _, id := range []string{"none", "out"} {
		u := h.connect(id)
		u.list()
		u.call("stat", args{"path": "."})
		assert.Equal(t, tools.Denied, u.fails("mcp__mine__say", args{"text": "x"}).Code)
		assert.Zero(t, h.started(id), id)
	}
	h.must("call", "--agent", "two", "stat", "path=.")
	assert.Zero(t, h.started("two"))
	assert.Contains(t, h.must("call", "--agent", "two", "mcp__mine__say", "text=hello"), "MINE says hello")
	assert.Equal(t, 1, h.started("two"), "the one that was called")
}

// TestServerSlow: a call waits for a server that starts; one that does not start
// in its time is unavailable, and no denial.
func TestServerSlow(t *testing.T) {
	t.Parallel()
	slow := func(seconds string) string {
		return `{command: sh, args: ["-c", "sleep ` + seconds + `; exec /workspace/test-program"], env: {NAME: SLOW, ` + roleEnv + `: mcp-server}, start_timeout: 20s}`
	}
	h := layOut(t, map[string]string{"a": "mcp_servers: {slow: " + slow("7") + ", never: " + strings.Replace(slow("1000"), "20s", "1s", 1) + "}"})
	h.plantServer("a")
	h.start()
	assert.Contains(t, h.must("call", "--agent", "a", "mcp__slow__say", "text=hello"), "SLOW says hello")
	e := h.connect("a").fails("mcp__never__say", args{"text": "x"})
	assert.Equal(t, tools.Unavailable, e.Code)
	assert.Contains(t, e.Message, "no answer within 1s")
	last := h.last("a", "mcp:never:say")
	assert.Equal(t, audit.Allow, last.Verdict)
	assert.Equal(t, "unavailable", last.Outcome)
}
