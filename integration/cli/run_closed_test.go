package cli

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// A base that the agent's user cannot reach is told, with the way out of it.
func TestRunClosedBase(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `user: "1234"`})
	require.NoError(t, os.Chown(h.Scope("a"), 1234, 1234))
	require.NoError(t, os.Chmod(h.Base, 0o700))
	_, errs, code := h.Try("run", "a", "true")
	assert.Equal(t, 125, code)
	assert.Contains(t, errs, `is closed to the agent's user 1234: chmod o+x it, or start the daemon with another --run`)
	require.NoError(t, os.Chmod(h.Base, 0o711))
	h.Must("run", "a", "true")
}
