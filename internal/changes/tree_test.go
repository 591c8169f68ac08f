package changes

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope/beneath"
)

// TestCoarseClock: a file counts whose inode is up to a tick of the kernel's clock older
// than the begin, and no older one.
func TestCoarseClock(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o644))
	root, err := beneath.OpenDir(dir)
	require.NoError(t, err)
	defer root.Close()
	all, err := Walk(t.Context(), root, time.Time{})
	require.NoError(t, err)
	changed := all.found["f"].changed
	for later, want := range map[time.Duration]bool{0: true, clockTick: true, clockTick + 1: false} {
		tree, err := Walk(t.Context(), root, changed.Add(later))
		require.NoError(t, err)
		assert.Equal(t, want, tree.found["f"].kind == "file", later)
	}
}
