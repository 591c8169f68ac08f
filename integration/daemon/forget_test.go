package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
)

// TestDaemonForget: a daemon forgets no agent that has a view, and says what ends that. Then HOME and standing approvals are gone, the
// event is in the log, and the agent can start again.
func TestDaemonForget(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "policy: {tools: {ask: [bash]}}\nsandbox: {home: lasting}"})
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	o := m.Run("a", "--", "sh", "-c", "echo >~/h")
	require.Zero(t, o.Code, o.Stderr)
	client := api.NewClient(config.Paths{Base: h.Base, State: h.Base + "/state", Run: h.Base + "/run"})
	_, err := client.Grant(h.Soon(), "a", api.GrantRequest{Tool: "bash", For: 3600e9})
	require.NoError(t, err)
	home := filepath.Join(h.Base, "state", "home", "a")
	require.FileExists(t, filepath.Join(home, "h"))
	_, errs, code := h.Try("forget", "a", "--yes")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "scopefs down a ends that")
	assert.FileExists(t, filepath.Join(home, "h"))
	h.Must("down", "a")
	assert.Contains(t, h.Must("forget", "a", "--yes"), "/approvals/")
	assert.NoDirExists(t, home)
	assert.NotContains(t, h.Must("approvals"), "bash")
	left, err := os.ReadDir(filepath.Join(h.Base, "state", "approvals"))
	require.NoError(t, err)
	assert.Empty(t, left)
	assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindAgent, Outcome: "forgotten"}))
	h.Must("up", "a")
	o = m.Run("a", "--", "sh", "-c", "ls -A ~")
	assert.Empty(t, o.Stdout, o.Stderr)
}
