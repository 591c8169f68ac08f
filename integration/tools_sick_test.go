package integration

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/tools"
)

const sickServer = "mcp_servers: {sick: {command: no-such-program}}"

// TestServerNotStarted: that an MCP server cannot start the log says, once,
// however many clients meet it.
func TestServerNotStarted(t *testing.T) {
	h := newHost(t, map[string]string{"a": sickServer})
	for range 3 {
		h.must("call", "--agent", "a", "--list")
	}
	h.stop()
	assert.Equal(t, 1, strings.Count(h.log.String(), `level=ERROR msg="MCP server" agent=a`), h.log)
	assert.Contains(t, h.log.String(), "no-such-program")
}

// TestServerTimeout: a server that does not answer a call holds it for as long as
// its definition says, and hears that the call was cancelled.
func TestServerTimeout(t *testing.T) {
	t.Parallel()
	h := layOut(t, map[string]string{"a": "mcp_servers: {mine: " + serverOf("MINE", "timeout: 1s") + "}"})
	h.plantServer("a")
	h.start()
	u := h.connect("a")
	h.eventually("the server is listed", func() bool { return u.list()["mcp__mine__say"] != nil })
	e := u.fails("mcp__mine__say", args{"text": ""})
	assert.Equal(t, tools.Unavailable, e.Code)
	assert.Equal(t, `MCP server "mine" did not answer within 1s; the call was cancelled`, e.Message)
	assert.Contains(t, e.Hint, "raise the timeout")
	h.eventually("it hears of it", func() bool { _, err := os.Stat(h.scope("a", "cancelled")); return err == nil })
	assert.Contains(t, u.text("mcp__mine__say", args{"text": "x"}), "MINE says x")
}

// TestServerNotStartedEmbedded: without a daemon standard error does.
func TestServerNotStartedEmbedded(t *testing.T) {
	m := embed(t, 0, map[string]string{"a": sickServer})
	out := finish(t, m.scopefs("call", "--agent", "a", "--list"))
	assert.Zero(t, out.code)
	assert.Equal(t, 1, strings.Count(out.stderr, `level=ERROR msg="MCP server" agent=a`), out.stderr)
	assert.Contains(t, out.stderr, "no-such-program")
	m.unbroken()
}
