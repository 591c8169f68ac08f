package config

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// TestProjectsApart: two directories of one name whose paths have the same first 32 bits of a
// hash are two agents. One that has an id of 32 bits keeps it and its state; the other does not
// get them.
func TestProjectsApart(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	var pair [2]string
	for i, seen := 0, map[[4]byte]string{}; pair[0] == ""; i++ {
		path := filepath.Join(dir, fmt.Sprint(i), "project")
		sum := sha256.Sum256([]byte(path))
		short := [4]byte(sum[:])
		if other, ok := seen[short]; ok {
			pair = [2]string{other, path}
		}
		seen[short] = path
	}
	var projects [2]Project
	for i, path := range pair {
		require.NoError(t, os.MkdirAll(path, 0o700))
		projects[i], err = ProjectOf(path)
		require.NoError(t, err)
		_, err := scope.ParseID(string(projects[i].ID))
		require.NoError(t, err)
	}
	assert.NotEqual(t, projects[0].ID, projects[1].ID)

	old := Project{Dir: pair[0], ID: scope.ID(fmt.Sprintf("project-%x", sha256.Sum256([]byte(pair[0])))[:len("project-")+2*4])}
	old.Base = filepath.Join(state, "scopefs", string(old.ID))
	require.NoError(t, old.Make(true))
	for i, want := range []scope.ID{old.ID, projects[1].ID} {
		now, err := ProjectOf(pair[i])
		require.NoError(t, err)
		assert.Equal(t, want, now.ID)
		assert.Equal(t, i == 0, now.Exists())
	}
	found, ok := FindProject(pair[0])
	assert.True(t, ok)
	assert.Equal(t, old.ID, found.ID)

	// An edited definition, whatever else is in it, is of its directory alone.
	text, err := os.ReadFile(old.Definition())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(old.Definition(), append([]byte("---\nprotect: [mine]\nfoo: x\n"), text[len("---\n"):]...), 0o600))
	for i, want := range []scope.ID{old.ID, projects[1].ID} {
		now, err := ProjectOf(pair[i])
		require.NoError(t, err)
		assert.Equal(t, want, now.ID)
	}

	// A definition that is no YAML is its project's, so that the user sees the error.
	require.NoError(t, os.WriteFile(old.Definition(), []byte("---\na: [\n---\n"), 0o600))
	now, err := ProjectOf(pair[0])
	require.NoError(t, err)
	assert.Equal(t, old.ID, now.ID)
}
