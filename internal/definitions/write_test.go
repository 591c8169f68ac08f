package definitions

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReplace: a definition keeps its mode, and what somebody else has written meanwhile stays.
func TestReplace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.md")
	require.NoError(t, os.WriteFile(file, []byte("one"), 0o600))
	require.NoError(t, os.Chmod(file, 0o640))
	require.NoError(t, Replace(file, []byte("one"), []byte("two")))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "two", string(text))
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o640), info.Mode().Perm())

	assert.ErrorContains(t, Replace(file, []byte("one"), []byte("three")), "somebody has changed it meanwhile: repeat the command")
	text, err = os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "two", string(text))
	entries, err := os.ReadDir(filepath.Dir(file))
	require.NoError(t, err)
	assert.Len(t, entries, 1)
}
