package mount

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFileSystem: a directory of this machine is on a local file system, and one of a type that nobody knows counts as shared.
func TestFileSystem(t *testing.T) {
	var table Table
	for dir, want := range map[string]FileSystem{"/dev/shm": {"tmpfs", false}, "/proc": {"proc", true}} {
		f, err := os.Open(dir)
		require.NoError(t, err)
		defer f.Close()
		got, err := table.FileSystem(int(f.Fd()))
		require.NoError(t, err)
		assert.Equal(t, want, got, dir)
	}
	_, err := table.FileSystem(-1)
	assert.Error(t, err)
}
