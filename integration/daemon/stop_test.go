package daemon

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// After its own SIGKILL a daemon takes over what is left.
func TestDaemonKilled(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "", "b": ""})
	require.NoError(t, os.WriteFile(h.Scope("a", "file"), nil, 0o644))
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	cmd, out := harness.StartTalking(t, m, "echo ready; exec sleep 4712.5")
	out.Expect("ready")
	open, err := os.Open(h.View("b")) // busy
	require.NoError(t, err)
	defer open.Close()
	for range 2 {
		h.Kill()
		h.Start()
		assert.FileExists(t, h.View("a", "file"))
		assert.Equal(t, 2, h.Mounted(h.Base))
		assert.Zero(t, m.Run("a", "--", "touch", "x").Code, "at once")
	}
	_ = cmd.Wait()
	assert.Equal(t, 125, cmd.ProcessState.ExitCode())
	h.Eventually("the sandbox is gone", func() bool { return m.Sandboxed("4712.5") == 0 })
}

// The view of an agent with a user of its own lets not even root look whether it
// is dead. A daemon that was killed leaves such views below the run directory and
// at places that the operator chose.
func TestDaemonKilledPrivate(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `user: "4211"`, "b": `user: "4212"`})
	h.Must("down", "b")
	at := filepath.Join(h.Base, "other")
	h.Must("up", "b", "--at", at)
	h.Kill()
	require.Equal(t, 2, h.Mounted(h.Base), "both are left")
	h.Start()
	for id, at := range map[string]string{"a": h.View("a"), "b": at} {
		got := h.Agent(id)
		assert.Equal(t, "mounted", got.State, "%+v", got)
		assert.Equal(t, at, got.Mount)
	}
	assert.Equal(t, 2, h.Mounted(h.Base))

	// A view that failed leaves its dead mount to the next.
	require.NoError(t, os.Rename(h.Scope("a"), h.Scope("moved")))
	h.Eventually("the view of a has failed", func() bool { return h.Agent("a").State != "mounted" })
	h.Must("down", "a")
	require.NoError(t, os.Rename(h.Scope("moved"), h.Scope("a")))
	h.Must("up", "a")
	assert.Equal(t, "mounted", h.Agent("a").State)
}

// SIGTERM: all down within the grace time though files are open, and recorded.
func TestDaemonStopBusy(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	require.NoError(t, os.WriteFile(h.Scope("a", "file"), []byte("x"), 0o644))
	open, err := os.Open(h.View("a", "file"))
	require.NoError(t, err)
	defer open.Close()
	cmd, out := harness.StartTalking(t, m, "echo ready; exec sleep 4713.5")
	out.Expect("ready")
	began := time.Now()
	h.Stop()
	assert.Less(t, time.Since(began), 15*time.Second)
	assert.Zero(t, h.Cmd.ProcessState.ExitCode())
	assert.Zero(t, h.Mounted(h.Base))
	_ = cmd.Wait()
	assert.Equal(t, 125, cmd.ProcessState.ExitCode())
	assert.NoFileExists(t, filepath.Join(h.Base, "run", "control.sock"))
	for _, want := range []audit.Event{{Op: "exec", Outcome: "sandbox ended"}, {Event: audit.KindSandbox, Outcome: "ended"}} {
		assert.True(t, h.Recorded("a", want), want)
	}
	assert.True(t, h.Recorded("", audit.Event{Event: audit.KindDaemon, Outcome: "stopped"}))
}
