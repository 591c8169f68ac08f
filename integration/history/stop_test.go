package history

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestStopElsewhere: scopefs daemon --stop unmounts the overlays that killed daemons of its base have left, also in a directory that
// a definition names, which is another one or gone by then, and none of another base.
func TestStopElsewhere(t *testing.T) {
	dir := t.TempDir()
	mounted := func(name string) int {
		mounts, err := os.ReadFile("/proc/self/mounts")
		require.NoError(t, err)
		return strings.Count(string(mounts), " "+filepath.Join(dir, name)+"/")
	}
	left := func(name string) *harness.Host {
		at := filepath.Join(dir, name)
		require.NoError(t, os.Mkdir(at, 0o755))
		h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf("history: {dir: %q}\nview: {changes: held}", at), "b": "view: {changes: held}"})
		harness.Plant(t, h.Scope("a"), "f=1")
		k := started(h)
		assert.Equal(t, "2\n", k.run("a", "echo 2 >f; cat f"))
		h.Kill()
		require.Equal(t, 1, mounted(name))
		return h
	}
	one, two := left("one"), left("two")
	require.NoError(t, os.Remove(one.Base+"/agents.d/a.md"))
	require.NoError(t, os.Rename(filepath.Join(dir, "one", "a"), filepath.Join(dir, "one", "moved")))
	one.Must("daemon", "--stop")
	assert.Zero(t, mounted("one"))
	assert.Zero(t, one.Mounted(one.Base))
	assert.Equal(t, 1, mounted("two"), "of another base")
	two.Start()
	k := started(two)
	assert.Equal(t, "2\n", k.run("a", "cat f"))
	two.Kill()
	two.Must("daemon", "--stop")
	assert.Zero(t, mounted("two"))
}
