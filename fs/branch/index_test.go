package branch

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// TestIndex: an index of git that differs in what git notes of files, but in no entry, is no change of the branch and no conflict.
func TestIndex(t *testing.T) {
	program := need.Program(t, "git")
	refresh := func(t *testing.T, git func(string, ...string), dir string) {
		was, err := os.ReadFile(filepath.Join(dir, ".git/index"))
		require.NoError(t, err)
		require.NoError(t, os.Chtimes(filepath.Join(dir, "same"), time.Time{}, time.Unix(1_000_000_000, 0)))
		git(dir, "status")
		is, err := os.ReadFile(filepath.Join(dir, ".git/index"))
		require.NoError(t, err)
		require.NotEqual(t, was, is)
	}
	for name, c := range map[string]struct {
		agent    bool // stages a file
		again    bool // refreshes its index
		host     bool // refreshes its index
		stages   bool // the host stages a file
		listed   bool
		conflict bool
	}{
		"nobody has staged anything":       {again: true, host: true},
		"the agent has refreshed":          {again: true},
		"the host has refreshed":           {agent: true, host: true, listed: true},
		"both have refreshed":              {agent: true, again: true, host: true, listed: true},
		"the host has staged another file": {agent: true, stages: true, listed: true, conflict: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFork(t)
			git := func(dir string, args ...string) {
				cmd := exec.Command(program, args...)
				cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, "%s", out)
			}
			f.make(f.base, "same=1", "other=1", "edited=1")
			git(f.base, "init", "-q")
			git(f.base, "add", "same", "edited")
			time.Sleep(10 * time.Millisecond)
			if c.agent {
				f.make(f.merged, "edited=2")
				git(f.merged, "add", "edited")
			}
			if c.again {
				refresh(t, git, f.merged)
			}
			if c.host {
				refresh(t, git, f.base)
			}
			if c.stages {
				git(f.base, "add", "other")
			}
			s, err := f.Diff(t.Context(), []string{".git/index"}, false)
			require.NoError(t, err)
			listed, why := false, ""
			for _, e := range s.Entries {
				if e.Path == ".git/index" {
					listed, why = true, e.Conflict
				}
			}
			assert.Equal(t, c.listed, listed)
			assert.Equal(t, c.conflict, why != "", why)
			r, err := f.Commit(t.Context(), Options{})
			require.NoError(t, err)
			if c.conflict {
				assert.NotEmpty(t, r.Conflicts)
				return
			}
			assert.Empty(t, r.Conflicts)
			cmd := exec.Command(program, "diff", "--stat")
			cmd.Dir = f.base
			out, err := cmd.Output()
			require.NoError(t, err)
			assert.Empty(t, string(out), "the index has what the files have")
		})
	}
}
