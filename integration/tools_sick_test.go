package integration

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

const sickServer = "mcp_servers: {sick: {command: no-such-program}}"

// TestServerNotStarted: that an MCP server cannot start the log says, once,
// however many clients meet it.
func TestServerNotStarted(t *testing.T) {
	h := newHost(t, map[string]string{"a": sickServer})
	for range 3 {
		h.must("call", "--agent", "a", "stat", "path=.")
	}
	h.stop()
	assert.Equal(t, 1, strings.Count(h.log.String(), `level=ERROR msg="MCP server" agent=a`), h.log)
	assert.Contains(t, h.log.String(), "no-such-program")
}

// TestServerNotStartedEmbedded: without a daemon standard error does.
func TestServerNotStartedEmbedded(t *testing.T) {
	m := embed(t, 0, map[string]string{"a": sickServer})
	out := finish(t, m.scopefs("call", "--agent", "a", "stat", "path=."))
	assert.Zero(t, out.code)
	assert.Equal(t, 1, strings.Count(out.stderr, `level=ERROR msg="MCP server" agent=a`), out.stderr)
	assert.Contains(t, out.stderr, "no-such-program")
	m.unbroken()
}
