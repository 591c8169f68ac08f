package integration

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
)

// After its own SIGKILL a daemon takes over what is left.
func TestDaemonKilled(t *testing.T) {
	h := newHost(t, map[string]string{"a": "", "b": ""})
	require.NoError(t, os.WriteFile(h.scope("a", "file"), nil, 0o644))
	m := &way{host: h, tmp: t.TempDir()}
	cmd, out := startTalking(t, m, "echo ready; exec sleep 4712.5")
	out.expect("ready")
	open, err := os.Open(h.view("b")) // busy
	require.NoError(t, err)
	defer open.Close()
	for range 2 {
		h.kill()
		h.start()
		assert.FileExists(t, h.view("a", "file"))
		assert.Equal(t, 2, h.mounted(h.base))
		assert.Zero(t, m.run("a", "--", "touch", "x").code, "at once")
	}
	_ = cmd.Wait()
	assert.Equal(t, 125, cmd.ProcessState.ExitCode())
	h.eventually("the sandbox is gone", func() bool { return m.sandboxed("4712.5") == 0 })
}

// The view of an agent with a user of its own lets not even root look whether it
// is dead. A daemon that was killed leaves such views below the run directory and
// at places that the operator chose.
func TestDaemonKilledPrivate(t *testing.T) {
	h := newHost(t, map[string]string{"a": `user: "4211"`, "b": `user: "4212"`})
	h.must("down", "b")
	at := filepath.Join(h.base, "other")
	h.must("up", "b", "--at", at)
	h.kill()
	require.Equal(t, 2, h.mounted(h.base), "both are left")
	h.start()
	for id, at := range map[string]string{"a": h.view("a"), "b": at} {
		got := h.agent(id)
		assert.Equal(t, "mounted", got.State, "%+v", got)
		assert.Equal(t, at, got.Mount)
	}
	assert.Equal(t, 2, h.mounted(h.base))

	// A view that failed leaves its dead mount to the next.
	require.NoError(t, os.Rename(h.scope("a"), h.scope("moved")))
	h.eventually("the view of a has failed", func() bool { return h.agent("a").State != "mounted" })
	h.must("down", "a")
	require.NoError(t, os.Rename(h.scope("moved"), h.scope("a")))
	h.must("up", "a")
	assert.Equal(t, "mounted", h.agent("a").State)
}

// SIGTERM: all down within the grace time though files are open, and recorded.
func TestDaemonStopBusy(t *testing.T) {
	h := newHost(t, map[string]string{"a": ""})
	m := &way{host: h, tmp: t.TempDir()}
	require.NoError(t, os.WriteFile(h.scope("a", "file"), []byte("x"), 0o644))
	open, err := os.Open(h.view("a", "file"))
	require.NoError(t, err)
	defer open.Close()
	cmd, out := startTalking(t, m, "echo ready; exec sleep 4713.5")
	out.expect("ready")
	began := time.Now()
	h.stop()
	assert.Less(t, time.Since(began), 15*time.Second)
	assert.Zero(t, h.cmd.ProcessState.ExitCode())
	assert.Zero(t, h.mounted(h.base))
	_ = cmd.Wait()
	assert.Equal(t, 125, cmd.ProcessState.ExitCode())
	assert.NoFileExists(t, filepath.Join(h.base, "run", "control.sock"))
	for _, want := range []audit.Event{{Op: "exec", Outcome: "sandbox ended"}, {Event: audit.KindSandbox, Outcome: "ended"}} {
		assert.True(t, h.recorded("a", want), want)
	}
	assert.True(t, h.recorded("", audit.Event{Event: audit.KindDaemon, Outcome: "stopped"}))
}
