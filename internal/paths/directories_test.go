package paths

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDirectories: the directories in a directory, also where files come before them, and none that a link leads to.
func TestDirectories(t *testing.T) {
	dir := t.TempDir()
	for i := range 2000 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
	}
	require.NoError(t, os.Symlink(t.TempDir(), filepath.Join(dir, "link")))
	assert.Empty(t, directories(dir))
	below := filepath.Join(dir, "below")
	require.NoError(t, os.Mkdir(below, 0o700))
	assert.Equal(t, []string{below}, directories(dir))
	assert.Empty(t, directories(below))
	require.NoError(t, os.Remove(below))
	assert.Empty(t, directories(dir))
	assert.Empty(t, directories(filepath.Join(dir, "link")))
}
