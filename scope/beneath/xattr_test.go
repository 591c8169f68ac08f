package beneath

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
)

// TestXattrsInside: what Name does without getxattrat(2) happens in the directory, with the caller's credentials, on the
// object itself and not what it leads to, and leaves the process's working directory alone.
func TestXattrsInside(t *testing.T) {
	root, path := testRoot(t, "f", "link => f")
	dir, err := root.Dir("")
	require.NoError(t, err)
	defer dir.Close()
	before, err := os.Getwd()
	require.NoError(t, err)
	get := func(base string) (string, error) {
		value := make([]byte, 10)
		n := Name{dir, base}
		size, err := n.inside(func() (int, error) { return unix.Lgetxattr(n.Base, "user.a", value) })
		return string(value[:max(size, 0)]), err
	}
	_, err = get("f")
	require.Equal(t, unix.ENODATA, err)
	require.NoError(t, unix.Setxattr(filepath.Join(path, "f"), "user.a", []byte("text"), 0))
	text, err := get("f")
	require.NoError(t, err)
	assert.Equal(t, "text", text)
	_, err = get("link")
	assert.Error(t, err, "of the file that it leads to")
	_, err = get("absent")
	assert.Equal(t, unix.ENOENT, err)
	after, err := os.Getwd()
	require.NoError(t, err)
	assert.Equal(t, before, after)

	need.Root(t, "acts as another user")
	require.NoError(t, os.Chmod(filepath.Join(path, "f"), 0))
	require.NoError(t, os.Chmod(path, 0o711))
	require.Equal(t, unix.EACCES, Caller{UID: 4321, GID: 4321}.Do(func() error {
		_, err := get("f")
		return err
	}))
	_, err = get("f")
	assert.NoError(t, err, "the thread that is the caller is gone")
}
