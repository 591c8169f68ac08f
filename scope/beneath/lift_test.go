package beneath

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLift: modes are lifted for a moment, those of directories above and of the object, and given back unless another process has
// set others meanwhile. A link is not followed.
func TestLift(t *testing.T) {
	base := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(base, "a/b"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(base, "a/b/f"), nil, 0o200))
	require.NoError(t, os.Symlink("b", filepath.Join(base, "a/link")))
	require.NoError(t, os.Chmod(filepath.Join(base, "a/b"), 0o500))
	root, err := OpenDir(base)
	require.NoError(t, err)
	defer root.Close()
	mode := func(rel string) os.FileMode {
		info, err := os.Stat(filepath.Join(base, rel))
		require.NoError(t, err)
		return info.Mode().Perm()
	}
	restore := root.Lift("a/b/f", 0o400)
	assert.Equal(t, []os.FileMode{0o755, 0o700, 0o600}, []os.FileMode{mode("a"), mode("a/b"), mode("a/b/f")})
	require.NoError(t, os.Chmod(filepath.Join(base, "a/b/f"), 0o640))
	restore()
	assert.Equal(t, []os.FileMode{0o755, 0o500, 0o640}, []os.FileMode{mode("a"), mode("a/b"), mode("a/b/f")})
	for _, rel := range []string{"a/link", "a/link/f", "missing/f", ""} {
		root.Lift(rel, 0o600)()
	}
	assert.Equal(t, []os.FileMode{0o755, 0o500, 0o640}, []os.FileMode{mode("a"), mode("a/b"), mode("a/b/f")})
	require.NoError(t, os.Chmod(base, 0o500))
	restore = root.Lift("a", 0)
	assert.Equal(t, os.FileMode(0o700), mode(""))
	restore()
	assert.Equal(t, os.FileMode(0o500), mode(""))
	require.NoError(t, os.Chmod(base, 0o755))
	require.NoError(t, os.Chmod(filepath.Join(base, "a/b"), 0o755))
}
