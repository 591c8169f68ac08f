package view

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope"
)

// TestHistoryView: a view that keeps changes works as others do, and its process has the scope and the history and nothing
// else of their mount.
func TestHistoryView(t *testing.T) {
	other, err := os.MkdirTemp("", harness.TempPrefix) // a dir: is not in the base
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(other)) })
	require.NoError(t, os.Chmod(other, 0o755))
	const front = "user: 4321\nview: {changes: kept}\ndir: %s\nhistory: {dir: %s}"
	h := harness.LayOut(t, map[string]string{
		"kept":   "user: 4321\nview: {changes: kept}",
		"direct": "user: 4321",
		"dir":    fmt.Sprintf(front, other+"/files/project", other+"/keep"),
		"within": fmt.Sprintf(front, other+"/files/other", other+"/files/project/.history"),
	})
	harness.Plant(t, other, "files/project/.history/", "files/other/", "keep/")
	for _, dir := range []string{h.Scope("kept"), h.Scope("direct"), other + "/files/project", other + "/files/other"} {
		require.NoError(t, os.Chown(dir, 4321, 4321))
	}
	h.Start()
	assert.Contains(t, h.Agent("within").Error, "choose a history.dir apart from the files of agent dir")
	assert.NoDirExists(t, other+"/files/project/.history/within", "dir would be refused for it")

	for id, history := range map[string]string{"kept": h.Base + "/history/kept", "dir": other + "/keep/dir", "direct": ""} {
		t.Run(id, func(t *testing.T) {
			got := h.OpsAsUser(4321, h.View(id), "create f", "write f", "mkdir d", "rename f d/f", "read d/f", "list d f", "unlink d/f")
			assert.Equal(t, []string{"ok", "ok", "ok", "ok", "ok", "ok", "ok"}, got)
			proc := fmt.Sprintf("/proc/%d/", h.ViewPID(id))
			if history == "" {
				assert.Equal(t, 1, strings.Count(harness.ReadAll(t, proc+"mountinfo"), "\n"))
				assert.NoDirExists(t, filepath.Join(h.Base, "history/direct"))
				return
			}
			assert.Empty(t, harness.ReadAll(t, proc+"mountinfo"), "its root is a directory in the only mount")
			kept, err := os.Stat(history)
			require.NoError(t, err)
			assert.Equal(t, os.ModeDir|0o700, kept.Mode())
			own, err := os.Stat(proc + "cwd/.")
			require.NoError(t, err)
			assert.True(t, os.SameFile(kept, own))
			assert.DirExists(t, proc+"root/d")
			fds, err := os.ReadDir(proc + "fd")
			require.NoError(t, err)
			dirs := []string{"root", "cwd"}
			for _, fd := range fds {
				if info, err := os.Stat(proc + "fd/" + fd.Name()); err == nil && info.IsDir() {
					dirs = append(dirs, "fd/"+fd.Name())
				}
			}
			assert.GreaterOrEqual(t, len(dirs), 4)
			for _, dir := range dirs { // by a process with another root, which no chroot(2) stops
				for up := "/.."; len(up) < 30; up += "/.." {
					if above, err := os.Stat(proc + dir + up); err == nil && os.SameFile(above, kept) {
						continue // of a generation
					}
					entries, err := os.ReadDir(proc + dir + up)
					assert.NoError(t, err)
					assert.Empty(t, entries, "%s%s", dir, up)
				}
			}
		})
	}
}

// TestHistoryMoved: a view whose history is moved away is replaced by one with a new history.
func TestHistoryMoved(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"kept": "user: 4321\nview: {changes: kept}"})
	require.NoError(t, os.Chown(h.Scope("kept"), 4321, 4321))
	h.Start()
	was := h.ViewPID("kept")
	require.NotZero(t, was)
	require.NoError(t, os.Rename(h.Base+"/history/kept", h.Base+"/moved"))
	h.Eventually("another process serves the view", func() bool { pid := h.ViewPID("kept"); return pid != 0 && pid != was })
	assert.DirExists(t, h.Base+"/history/kept")
	assert.Equal(t, []string{"ok"}, h.OpsAsUser(4321, h.View("kept"), "create f"))
}

// TestHistoryRequest: a request about a history has an answer whether the agent is mounted or not.
func TestHistoryRequest(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"kept": "user: 4321\nview: {changes: kept}", "direct": ""})
	require.NoError(t, os.Chown(h.Scope("kept"), 4321, 4321))
	h.Start()
	client := api.NewClient(config.Paths{Base: h.Base, State: h.Base + "/state", Run: h.Base + "/run"})
	ask := func(id scope.ID) string {
		_, err := client.History(t.Context(), id, json.RawMessage(`{"none":{}}`))
		require.Error(t, err)
		return err.Error()
	}
	assert.Contains(t, ask("direct"), "write view: {changes: kept}")
	mounted := ask("kept")
	h.Must("down", "kept")
	h.Must("down", "direct")
	assert.Contains(t, ask("direct"), "write view: {changes: kept}")
	assert.Contains(t, ask("kept"), mounted, "the same answer, from a process without a mount")
	assert.Empty(t, harness.ChildrenOf(h.Cmd.Process.Pid, "scopefs-view"), "it has ended")
	h.Must("up", "kept")
	assert.Equal(t, mounted, ask("kept"))
}

// TestHistoryOfUser: the view of an ordinary user's agent keeps changes as well. The mounts below those of the user namespace
// are locked.
func TestHistoryOfUser(t *testing.T) {
	m := harness.Embed(t, 4321, map[string]string{"kept": "view: {changes: kept}"})
	locked := filepath.Join(m.Base, "other")
	require.NoError(t, os.Mkdir(locked, 0o755))
	run := func() {
		t.Helper()
		said := m.Run("kept", "--", "sh", "-ec", "mkdir d; echo text > f; mv f d; cat d/f; rm -r d; ls -A")
		assert.Equal(t, 0, said.Code, "%s", said.Stderr)
		assert.Equal(t, "text\n", said.Stdout)
		info, err := os.Stat(m.Base + "/history/kept")
		require.NoError(t, err)
		assert.Equal(t, os.ModeDir|0o700, info.Mode())
	}
	run()
	require.NoError(t, unix.Mount("none", locked, "tmpfs", 0, ""))
	defer func() { assert.NoError(t, unix.Unmount(locked, unix.MNT_DETACH)) }()
	run()
}
