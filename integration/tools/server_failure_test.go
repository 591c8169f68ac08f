package tools

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
)

const sickServer = "mcp_servers: {sick: {command: no-such-program}}"

// TestServerNotStarted: that an MCP server cannot start the log says, once,
// however many clients meet it.
func TestServerNotStarted(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": sickServer})
	for range 3 {
		h.Must("call", "--agent", "a", "--list")
	}
	h.Stop()
	assert.Equal(t, 1, strings.Count(h.Log.String(), `level=ERROR msg="MCP server" agent=a`), h.Log)
	assert.Contains(t, h.Log.String(), "no-such-program")
}

// TestServerTimeout: a server that does not answer a call holds it for as long as
// its definition says, and hears that the call was cancelled.
func TestServerTimeout(t *testing.T) {
	t.Parallel()
	h := harness.LayOut(t, map[string]string{"a": "mcp_servers: {mine: " + serverOf("MINE", "timeout: 1s") + "}"})
	plantServer(h, "a")
	h.Start()
	u := h.Connect("a")
	h.Eventually("the server is listed", func() bool { return u.List()["mcp__mine__say"] != nil })
	e := u.Fails("mcp__mine__say", args{"text": ""})
	assert.Equal(t, tools.Unavailable, e.Code)
	assert.Equal(t, `MCP server "mine" did not answer within 1s; the call was cancelled`, e.Message)
	assert.Contains(t, e.Hint, "ask your operator for more time")
	h.Eventually("it hears of it", func() bool { _, err := os.Stat(h.Scope("a", "cancelled")); return err == nil })
	assert.Contains(t, u.Text("mcp__mine__say", args{"text": "x"}), "MINE says x")
}

// TestServerNotStartedEmbedded: without a daemon standard error does.
func TestServerNotStartedEmbedded(t *testing.T) {
	m := harness.Embed(t, 0, map[string]string{"a": sickServer})
	out := harness.Finish(t, m.Command("call", "--agent", "a", "--list"))
	assert.Zero(t, out.Code)
	assert.Equal(t, 1, strings.Count(out.Stderr, `level=ERROR msg="MCP server" agent=a`), out.Stderr)
	assert.Contains(t, out.Stderr, "no-such-program")
	m.Unbroken()
}
