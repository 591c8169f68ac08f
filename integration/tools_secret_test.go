package integration

import (
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSocketOfNobody: who connects for an agent whose definition has gone hears nothing of the host.
func TestSocketOfNobody(t *testing.T) {
	h := newHost(t, map[string]string{"a": ""})
	require.NoError(t, os.Remove(h.base+"/agents.d/a.md"))
	h.must("reload")
	r := h.dial("a")
	_, err := io.WriteString(r, hello)
	require.NoError(t, err)
	assert.Equal(t, "scopefs: unknown agent\n", r.line())
}

// TestServerArgumentsAreNotLogged: ${VAR} is in arguments as well.
func TestServerArgumentsAreNotLogged(t *testing.T) {
	t.Setenv("SCOPEFS_TEST_SECRET", "x7-do-not-log")
	h := newHost(t, map[string]string{"a": `mcp_servers: {s: {command: sh, args: ["-c", "cat", "${SCOPEFS_TEST_SECRET}"]}}`})
	h.connect("a").list()
	started := 0
	for _, e := range h.events("a") {
		assert.NotContains(t, e.Target+e.Detail, "x7-do-not-log")
		if e.Op == "exec" && e.Target == "sh" {
			started++
		}
	}
	assert.NotZero(t, started)
}
