package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
)

// TestBackup: the base, stopped, packed with tar and unpacked elsewhere on the disk, is what it was: the agents' files, HOME, approvals,
// the log with its proof, and a history that brings back what was removed. A file that was changed before is
// another object then, which an undo leaves alone without --force.
func TestBackup(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "view: {changes: kept}\nsandbox: {home: lasting}\npolicy: {tools: {ask: [bash]}}"})
	harness.Plant(t, h.Scope("a"), "f=before\n", "gone=x\n")
	h.Start()
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	o := m.Run("-q", "a", "--", "sh", "-c", "echo after >f; rm gone; echo 1 >~/h")
	require.Zero(t, o.Code, o.Stderr)
	client := api.NewClient(config.Paths{Base: h.Base, State: h.Base + "/state", Run: h.Base + "/run"})
	_, err := client.Grant(h.Soon(), "a", api.GrantRequest{Tool: "bash", For: 3600e9})
	require.NoError(t, err)
	h.Stop()

	archive := filepath.Join(t.TempDir(), "base.tar")
	tar := func(words ...string) {
		out, err := exec.Command("tar", append([]string{"--xattrs", "--acls", "--numeric-owner", "-C", h.Base, "-f", archive}, words...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	tar("--exclude=./run", "-cp", ".")
	all, err := os.ReadDir(h.Base)
	require.NoError(t, err)
	for _, e := range all {
		require.NoError(t, os.RemoveAll(filepath.Join(h.Base, e.Name())))
	}
	tar("-xp")
	h.Start()

	o = m.Run("-q", "a", "--", "sh", "-c", "cat f ~/h")
	assert.Equal(t, "after\n1\n", o.Stdout, o.Stderr)
	assert.Contains(t, h.Must("approvals"), "stands")
	h.Must("audit", "verify")
	assert.Contains(t, h.Must("audit", "--agent", "a"), "echo after")
	h.Must("undo", "a", "gone")
	out, _, code := h.Try("undo", "a", "f")
	assert.Equal(t, 1, code, "the file that was unpacked is another one")
	assert.Equal(t, "a, undo, the last session: nothing taken back\nconflict: f: another object is there\n", out)
	assert.Equal(t, "before\n", h.Must("show", "a", "f@1h"))
	assert.Contains(t, h.Must("undo", "a", "f", "--force"), "1 newer copied, 1 rewritten")
	assert.Equal(t, "before\n", harness.ReadAll(t, h.Scope("a", "f")))
	assert.Equal(t, "after\n", harness.ReadAll(t, h.Scope("a", "f.newer1")))
	assert.FileExists(t, h.Scope("a", "gone"))
}
