// Package origins tests that files and calls in the forms of the projects that scopefs was founded on work as typed:
// scopes_test.go agent scopes, strategies_test.go scoped-mcp, context_test.go the scoped context protocol,
// gemini_test.go gemini-cli's agents and extensions. docs/origins.md lists where scopefs differs.
package origins

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// echoing lays out a host whose runner answers with its input, an object.
func echoing(t *testing.T, agents map[string]string) *harness.Host {
	h := harness.LayOut(t, agents)
	h.Put("runner", "#!/bin/sh\nif [ \"$1\" ]; then env; fi\nexec cat\n")
	require.NoError(t, os.Chmod(h.Base+"/runner", 0o755))
	h.Put("scopefs.yaml", "runner: ["+h.Base+"/runner]\nsandbox: {expose: ["+h.Base+"/runner]}\ndelegation: {input: json}\n")
	return h
}
