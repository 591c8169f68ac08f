package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestTakeOverRoots: a sandbox outlives the daemon with its roots, also one that the command alone has, and ends when the view of
// a root has died.
func TestTakeOverRoots(t *testing.T) {
	for name, kill := range map[string]bool{"restart": false, "view of a root has died": true} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			for _, dir := range []string{"proj", "lib", "lent"} {
				require.NoError(t, os.Mkdir(filepath.Join(top, dir), 0o755))
			}
			h := harness.NewHost(t, map[string]string{"a": "dir: " + top + "/proj\nview: {roots: [{dir: " + top + "/lib}]}"})
			run := beginThin(h, "run", "a", "--with", top+"/lent", "--", "sh", "-c",
				"echo in; while ! [ -e ../lib/go ]; do sleep 0.01; done; echo out >../lent/out && cat ../lent/out; exit 7")
			h.Eventually("it runs", func() bool { return harness.ReadAll(t, run.out) != "" })
			pid := sandboxOf(h, "a")
			var roots []int
			for _, a := range h.PS() {
				if a.ID != "a" {
					roots = append(roots, a.ViewPID)
				}
			}
			require.Len(t, roots, 2)
			h.Terminate()
			if kill {
				for _, pid := range roots {
					require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
				}
			}
			h.Start()
			if kill {
				h.Eventually("it has ended", func() bool { s := harness.StateOf(pid); return s == 0 || s == 'Z' })
				endThin(h, run)
				return
			}
			assert.Equal(t, pid, sandboxOf(h, "a"))
			for _, a := range h.PS() {
				assert.True(t, a.ID == "a" || slices.Contains(roots, a.ViewPID), "%s has another view", a.ID)
			}
			require.NoError(t, os.WriteFile(top+"/lib/go", nil, 0o644))
			code, errs := endThin(h, run)
			assert.Equal(t, 7, code, errs)
			assert.FileExists(t, top+"/lent/out")
			h.Eventually("what was lent is unmounted", func() bool { return len(h.PS()) == 2 })
		})
	}
}
