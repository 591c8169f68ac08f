package tools

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

func init() {
	// An MCP server that fetches URLs, and says where it is at home.
	harness.Roles["mcp-fetch"] = func([]string) error {
		s := mcp.NewServer(&mcp.Implementation{Name: "fetch", Version: "v1"}, nil)
		client := http.Client{Timeout: 20 * time.Second}
		mcp.AddTool(s, &mcp.Tool{Name: "fetch", Description: "fetches"}, func(_ context.Context, _ *mcp.CallToolRequest, in struct{ URL string }) (*mcp.CallToolResult, any, error) {
			said := ""
			res, err := client.Get(in.URL)
			if err == nil {
				defer res.Body.Close()
				var text []byte
				text, err = io.ReadAll(res.Body)
				said = string(text)
			}
			_, lasting := os.Stat("/home/agent")
			said += fmt.Sprintf(" err=%v home=%s %v own=%q", err, os.Getenv("HOME"), lasting == nil, os.Getenv("OWN"))
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: said}}}, nil, nil
		})
		return s.Run(context.Background(), &mcp.StdioTransport{})
	}
}

// TestServerNetwork: the connections of an MCP server are decided by its own rules and
// recorded with its name. The agent's do not apply to it, and neither do its own to the
// agent. It has neither the agent's HOME nor its variables.
func TestServerNetwork(t *testing.T) {
	t.Parallel()
	need.Program(t, "curl")
	at := webServer(t, nil)
	server := func(network string) string {
		return "{command: /workspace/test-program, env: {" + harness.RoleEnv + ": mcp-fetch}" + network + "}"
	}
	h := harness.LayOut(t, map[string]string{"a": allowed(at, "agent.test") + "\nenv: {OWN: agent}\nmcp_servers:\n  mine: " + server(", "+allowed(at, "server.test")) + "\n  dark: " + server("") + "\n"})
	plantServer(h, "a")
	h.Start()
	u := h.Connect("a")
	fetch := func(server, host string) string {
		u.List()
		return u.Text("mcp__"+server+"__fetch", args{"URL": "http://" + host + "/"})
	}
	assert.Equal(t, "hello from server.test\n err=<nil> home=/tmp/home false own=\"\"", fetch("mine", "server.test"))
	assert.Contains(t, fetch("mine", "agent.test"), `"hint":"ask your operator"`)
	dark := fetch("dark", "agent.test")
	assert.NotContains(t, dark, "hello")
	assert.Contains(t, u.Bash("curl -sS http://agent.test/"), "hello from agent.test")
	assert.Contains(t, u.Bash("curl -sS http://server.test/"), "ask your operator: scopefs allow server.test")
	h.Stop()
	assert.Contains(t, h.Log.String(), "set network: {allow: [agent.test]} in mcp_servers: dark", "the operator reads what the server's network lacks")

	decided := map[string]audit.Verdict{}
	sandboxes := map[string]int{}
	for _, e := range h.Events("a") {
		switch {
		case e.Event == audit.KindNetwork && e.Outcome != "end":
			decided[e.Server+" "+e.Target] = e.Verdict
		case e.Event == audit.KindSandbox && e.Outcome == "started":
			sandboxes[e.Server]++
		}
	}
	for what, want := range map[string]audit.Verdict{
		"mine GET http://server.test/": audit.Allow, "mine GET http://agent.test/": audit.Deny, " GET http://agent.test/": audit.Allow, " GET http://server.test/": audit.Deny,
	} {
		assert.Equal(t, want, decided[what], what)
	}
	assert.Equal(t, map[string]int{"": 1, "mine": 1, "dark": 1}, sandboxes)
}

// TestServerNetworkAsk: what the operator approves for a connection of an MCP server holds
// for that server, and not for the agent's own commands.
func TestServerNetworkAsk(t *testing.T) {
	t.Parallel()
	need.Program(t, "curl")
	at := webServer(t, nil)
	ask := fmt.Sprintf("network: {ask: [{host: ok.test, address: '%s'}]}", at)
	h := harness.LayOut(t, map[string]string{"a": ask + "\nmcp_servers:\n  mine: {command: /workspace/test-program, env: {" + harness.RoleEnv + ": mcp-fetch}, " + ask + "}\n"})
	plantServer(h, "a")
	h.Start()
	u := h.Connect("a")
	u.List()
	got := make(chan string, 1)
	go func() { got <- u.Text("mcp__mine__fetch", args{"URL": "http://ok.test/"}) }()
	id := waiting(h, 1)[0]
	assert.Contains(t, h.Must("approvals", "approve", id, "--always"), "network:mine of a")
	assert.Contains(t, <-got, "hello from ok.test")
	go func() { got <- u.Bash("curl -sS http://ok.test/") }()
	id = waiting(h, 1)[0]
	h.Must("approvals", "deny", id)
	assert.Contains(t, <-got, "the operator has denied")
	assert.Contains(t, u.Text("mcp__mine__fetch", args{"URL": "http://ok.test/"}), "hello from ok.test")
}
