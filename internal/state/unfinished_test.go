package state

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestUnfinished(t *testing.T) {
	dir := t.TempDir()
	left := func(u *Unfinished, drop bool) map[string]string {
		all := map[string]string{}
		u.Of("a").Left(func(token, path string) bool {
			all[token] = path
			return drop
		})
		return all
	}
	one, two := NewUnfinished(dir), NewUnfinished(dir)
	assert.Empty(t, left(one, true))
	one.Of("a").Begin("T1", "d/f\n")
	one.Of("a").Begin("T2", "clean")
	one.Of("a").Begin("T3", "under way")
	one.Of("b").Begin("T4", "another's")
	two.Of("a").Begin("T5", "f")
	one.Of("a").End("T2", true)
	assert.Empty(t, left(one, true), "all are under way")
	one.Of("a").End("T1", false)
	assert.Empty(t, left(two, true), "the daemon lives")
	assert.Equal(t, map[string]string{"T1": "d/f\n"}, left(one, false))
	assert.Equal(t, map[string]string{"T1": "d/f\n"}, left(one, true))
	assert.Empty(t, left(one, true))

	require.NoError(t, one.own.Close()) // as when it is killed
	assert.Equal(t, map[string]string{"T3": "under way"}, left(two, true))
	one.Of("b").Left(func(string, string) bool { return true })
	two.Of("a").End("T5", true)
	require.NoError(t, two.Close())
	entries, err := os.ReadDir(filepath.Join(dir, "unfinished"))
	require.NoError(t, err)
	assert.Len(t, entries, 1, "what another agent left")
	NewUnfinished(dir).Of("b").Left(func(token, _ string) bool { return token == "T4" })
	entries, err = os.ReadDir(filepath.Join(dir, "unfinished"))
	require.NoError(t, err)
	assert.Empty(t, entries)
	assert.NoError(t, NewUnfinished(dir).Close())
}
