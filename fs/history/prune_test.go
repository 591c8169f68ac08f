package history

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
)

// TestFull: on a full file system files can be removed, and nothing is left of a generation that has no room for its journal.
func TestFull(t *testing.T) {
	need.Root(t, "it mounts a file system")
	const files = 200
	base := t.TempDir()
	require.NoError(t, unix.Mount("none", base, "tmpfs", 0, "size=256k"))
	t.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
	c := &client{t: t, dir: filepath.Join(base, "tree"), kept: filepath.Join(base, "history")}
	require.NoError(t, os.Mkdir(c.dir, 0o755))
	require.NoError(t, os.Mkdir(c.kept, 0o700))
	c.open(Options{})
	defer c.close()
	for i := range files {
		require.NoError(t, os.WriteFile(filepath.Join(c.dir, strconv.Itoa(i)), nil, 0o644))
	}
	require.ErrorIs(t, os.WriteFile(filepath.Join(c.dir, "large"), bytes.Repeat([]byte("x"), 300<<10), 0o644), unix.ENOSPC)
	before := entries(t, "/proc/self/fd")
	for i := range files {
		c.unlink(strconv.Itoa(i))
	}
	assert.Less(t, entries(t, "/proc/self/fd"), before+files/10)
	assert.Less(t, entries(t, c.kept), files/10)
	assert.Equal(t, 1, entries(t, c.dir), "what is large")
}

func entries(t *testing.T, dir string) int {
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	return len(list)
}
