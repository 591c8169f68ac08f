package definitions

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/config"
)

// TestReadAgain: a set that was read with an earlier one has what one without has: nothing of a file that no longer loads.
func TestReadAgain(t *testing.T) {
	base := t.TempDir()
	p := config.Paths{Base: base, State: filepath.Join(base, "state"), Run: filepath.Join(base, "run")}
	put := func(name, front string) {
		require.NoError(t, os.MkdirAll(filepath.Join(base, "agents.d"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", name+".md"), []byte("---\nname: "+name+"\ndescription: "+front+"\n---\n"), 0o644))
	}
	put("a", "one")
	put("b", "one")
	first := Read(p, nil)
	require.NoError(t, first.Err)
	require.Empty(t, first.Errs)
	again := Read(p, first)
	assert.Same(t, first.All.Agents["a"], again.All.Agents["a"])
	put("b", "another one")
	again = Read(p, again)
	assert.Equal(t, "another one", again.All.Agents["b"].Description)
	put("b", "x\ntools: [no-such-tool]")
	again = Read(p, again)
	assert.Len(t, again.Errs, 1)
	_, err := again.Agent("b")
	assert.Error(t, err, "the daemon keeps the last good state, a fresh one has none")
	require.NoError(t, os.Remove(filepath.Join(base, "agents.d", "a.md")))
	put("b", "good again")
	again = Read(p, again)
	assert.Empty(t, again.Errs)
	assert.Len(t, again.All.Agents, 1)
}
