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
