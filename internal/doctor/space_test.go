package doctor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWritable: a directory that does not exist yet is tried in the one above it, and nothing is
// left there.
func TestWritable(t *testing.T) {
	dir := t.TempDir()
	l := Writable(t.Context(), "state", filepath.Join(dir, "not", "yet"))
	assert.Contains(t, []Status{OK, Degraded}, l.Status, l) // the disk of the test may be nearly full
	assert.Contains(t, l.Detail, dir)
	assert.Equal(t, "state", l.Check)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	l = Writable(t.Context(), "state", file)
	assert.Equal(t, Missing, l.Status, l)
	assert.Contains(t, l.Detail, "is no directory")
	assert.NotEmpty(t, l.Remedy)
	l = Writable(t.Context(), "state", filepath.Join(file, "below"))
	assert.Equal(t, Missing, l.Status, l)
}
