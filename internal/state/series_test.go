package state

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSeriesLeft: what a command that was killed has left is known once it has ended, and no other command begins beside one that runs.
func TestSeriesLeft(t *testing.T) {
	dir := t.TempDir()
	assert.Nil(t, Interrupted(dir, "a"))
	s, err := BeginSeries(dir, "a", Plan{Op: "undo", Command: "scopefs undo", Dirs: []string{"/p", "/lib", "/other"}})
	require.NoError(t, err)
	require.NoError(t, s.Changed("/p"))
	assert.Equal(t, []string{"/lib", "/other"}, s.Left())
	assert.Nil(t, Interrupted(dir, "a"), "it runs")
	_, err = BeginSeries(dir, "a", Plan{})
	assert.ErrorIs(t, err, ErrSeries)
	other, err := BeginSeries(dir, "b", Plan{})
	require.NoError(t, err)
	other.End()

	f, err := os.OpenFile(filepath.Join(dir, "series/a"), os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`"/li`)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	s.Close() // killed
	left := Interrupted(dir, "a")
	require.NotNil(t, left)
	assert.Equal(t, Plan{"undo", "scopefs undo", []string{"/p", "/lib", "/other"}}, left.Plan)
	assert.Equal(t, []string{"/p"}, left.Done, "a line that was not written to its end is none")
	left.Close()
	s, err = BeginSeries(dir, "a", Plan{Dirs: []string{"/p"}})
	require.NoError(t, err)
	s.End()
	assert.Nil(t, Interrupted(dir, "a"))
}
