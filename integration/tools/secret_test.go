package tools

import (
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestSocketOfNobody: who connects for an agent whose definition has gone hears nothing of the host.
func TestSocketOfNobody(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	require.NoError(t, os.Remove(h.Base+"/agents.d/a.md"))
	h.Must("reload")
	r := h.Dial("a")
	_, err := io.WriteString(r, harness.Hello)
	require.NoError(t, err)
	assert.Equal(t, "scopefs: unknown agent\n", r.Line())
}

// TestServerArgumentsAreNotLogged: ${VAR} is in arguments as well.
func TestServerArgumentsAreNotLogged(t *testing.T) {
	t.Setenv("SCOPEFS_TEST_SECRET", "x7-do-not-log")
	h := harness.NewHost(t, map[string]string{"a": `mcp_servers: {s: {command: sh, args: ["-c", "cat", "${SCOPEFS_TEST_SECRET}"]}}`})
	h.Connect("a").List()
	started := 0
	for _, e := range h.Events("a") {
		assert.NotContains(t, e.Target+e.Detail, "x7-do-not-log")
		if e.Op == "exec" && e.Target == "sh" {
			started++
		}
	}
	assert.NotZero(t, started)
}
