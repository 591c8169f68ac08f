package house

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLeftovers: a program of ours that still runs is left behind, whatever its name after scopefs.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	text, err := os.ReadFile(sleep)
	require.NoError(t, err)
	for name, ours := range map[string]bool{"scopefs": true, "scopefs-init": true, "scopefs-of-tomorrow": true, "other-scopefs": false} {
		program := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(program, text, 0o755))
		cmd := exec.CommandContext(t.Context(), program, "100")
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		out, err := exec.CommandContext(t.Context(), "../../.ci/leftovers").Output()
		require.NoError(t, err)
		if ours {
			assert.Contains(t, string(out), "-> "+program+"\n")
		} else {
			assert.NotContains(t, string(out), program)
		}
	}
}
