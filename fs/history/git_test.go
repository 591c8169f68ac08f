package history

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope/beneath"
)

// replace writes a file as git does: under another name, which it renames.
func (c *client) replace(rel, text string) {
	c.create(rel+".lock", text)
	require.NoError(c.t, c.rename(rel+".lock", rel, 0))
}

// TestReplacedBeside: with force, what a rename has replaced comes back when the host has put another file in its place, or has removed
// it. A file that was moved there, and was there before, is not given up for that.
func TestReplacedBeside(t *testing.T) {
	for name, removed := range map[string]bool{"another": false, "removed": true} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t)
			c.host("f", "before")
			c.host("g", "older")
			c.host("h", "moved")
			c.replace("f", "one")
			c.replace("f", "two")
			require.NoError(t, c.rename("h", "g", 0))
			c.another("f", "newer")
			c.another("g", "newer")
			if removed {
				require.NoError(t, os.Remove(filepath.Join(c.dir, "f")))
			}
			r := c.undo(Selection{Since: timeOf(1)})
			assert.ElementsMatch(t, []string{"f", "g"}, conflicts(r))
			assert.Equal(t, "newer", c.read("g"))
			r = c.undo(Selection{Since: timeOf(1), Force: true})
			assert.Equal(t, []string{"g"}, conflicts(r))
			assert.Equal(t, "before", c.read("f"))
			assert.Equal(t, "newer", c.read("g"))
			assert.NoFileExists(t, filepath.Join(c.dir, "g.newer1"))
			if removed {
				assert.NoFileExists(t, filepath.Join(c.dir, "f.newer1"))
			} else {
				assert.Equal(t, "newer", c.read("f.newer1"))
			}
			assert.Empty(t, c.undo(Selection{Undo: true}).Conflicts)
			assert.NoFileExists(t, filepath.Join(c.dir, "f.newer1"))
			if removed {
				assert.NoFileExists(t, filepath.Join(c.dir, "f"))
			} else {
				assert.Equal(t, "newer", c.read("f"))
			}
		})
	}
}

// TestUndoGitState: git's state of one repository is undone as a whole, or not at all; what git executes, other repositories and the files
// of the work tree are undone by themselves. Others' objects in a directory do not matter.
func TestUndoGitState(t *testing.T) {
	c := newClient(t)
	for _, dir := range []string{".git/hooks", ".git/objects", "sub/.git"} {
		require.NoError(t, os.MkdirAll(filepath.Join(c.dir, dir), 0o755))
	}
	for _, rel := range []string{"a", ".git/HEAD", ".git/index", ".git/config", "sub/.git/HEAD"} {
		c.host(rel, "before")
	}
	names := []string{"a", ".git/HEAD", ".git/index", ".git/config", ".git/objects/ab/1", ".git/hooks/x", "sub/.git/HEAD"}
	has := func() (all []string) {
		for _, rel := range names {
			if text, err := os.ReadFile(filepath.Join(c.dir, rel)); err == nil {
				all = append(all, rel+" "+string(text))
			}
		}
		return all
	}
	before := has()
	c.write("a", "after")
	c.mkdir(".git/objects/ab")
	c.create(".git/objects/ab/1", "object")
	for _, rel := range []string{".git/index", ".git/index", ".git/HEAD", ".git/config", "sub/.git/HEAD"} {
		c.replace(rel, "after")
	}
	c.create(".git/hooks/x", "hook")
	c.host(".git/objects/ab/2", "of the host")
	c.another(".git/index", "refreshed")

	why := ": git's HEAD, index, refs and objects stay as they are (git reset, or --force)"
	want := []Problem{{".git/index", "another object is there" + why}}
	p, err := c.store.Plan(Selection{Since: timeOf(1)}, Hooks{})
	require.NoError(t, err)
	assert.Equal(t, want, p.Conflicts)
	r := c.undo(Selection{Since: timeOf(1)})
	assert.Equal(t, want, r.Conflicts)
	assert.Equal(t, []string{"a before", ".git/HEAD after", ".git/index refreshed", ".git/config before", ".git/objects/ab/1 object",
		"sub/.git/HEAD before"}, has())
	r = c.undo(Selection{Since: timeOf(1)})
	assert.Equal(t, want, r.Conflicts)
	assert.Zero(t, r.Done)

	r = c.undo(Selection{Since: timeOf(1), Force: true})
	assert.Equal(t, []Problem{{".git/objects/ab", "the directory has files of others"}}, r.Conflicts)
	assert.Equal(t, before, has())
	assert.Equal(t, "refreshed", c.read(".git/index.newer1"))
	c.another(".git/index", "refreshed")
	p, err = c.store.Plan(Selection{Undo: true}, Hooks{})
	require.NoError(t, err)
	require.NotEmpty(t, p.Conflicts)
	assert.Contains(t, p.Conflicts[0].Why, "(git reset)", "redo has no --force")
}

// TestUndoGitBetween: a later call has committed, too. An undo of the first one leaves the objects on which the second one builds, also
// an undo of .git alone.
func TestUndoGitBetween(t *testing.T) {
	c := newClient(t)
	require.NoError(t, os.MkdirAll(filepath.Join(c.dir, ".git/objects"), 0o755))
	c.host(".git/HEAD", "before")
	for _, call := range []string{"c1", "c2"} {
		c.label.Call = call
		c.create(".git/objects/"+call, "object")
		c.replace(".git/HEAD", call)
		c.create(call, "file")
	}
	for _, paths := range [][]string{{".git"}, nil} {
		r := c.undo(Selection{Calls: []string{"c1"}, Paths: paths})
		assert.Equal(t, []string{".git/HEAD"}, conflicts(r))
		assert.Equal(t, "c2", c.read(".git/HEAD"))
		assert.FileExists(t, filepath.Join(c.dir, ".git/objects/c1"))
	}
	assert.NoFileExists(t, filepath.Join(c.dir, "c1"))
	assert.Empty(t, c.undo(Selection{Calls: []string{"c1", "c2"}}).Conflicts)
	assert.Equal(t, "before", c.read(".git/HEAD"))
	assert.NoFileExists(t, filepath.Join(c.dir, ".git/objects/c1"))
}

// TestUndoRefreshedIndex: the host's git status writes the index that the changes, or an undo of them, have left: undo and redo go on. An
// index with another entry is a conflict. A later redo does what was refused, once nothing is in the way.
func TestUndoRefreshedIndex(t *testing.T) {
	program := need.Program(t, "git")
	c := newClient(t)
	git := func(words ...string) {
		cmd := exec.Command(program, words...)
		cmd.Dir = c.dir
		text, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", text)
	}
	times := 1_000_000_000
	refresh := func() {
		was := c.read(".git/index")
		times++
		require.NoError(t, os.Chtimes(filepath.Join(c.dir, "same"), time.Time{}, time.Unix(int64(times), 0)))
		git("status")
		require.NotEqual(t, was, c.read(".git/index"))
	}
	git("init", "-q")
	c.host("same", "text")
	c.host("staged", "text")
	git("add", "same")
	before := c.read(".git/index")
	git("add", "staged")
	after := c.read(".git/index")
	c.host(".git/index", before)
	c.replace(".git/index", after)

	entries := func() string {
		out, err := exec.Command(program, "-C", c.dir, "ls-files").Output()
		require.NoError(t, err)
		return string(out)
	}
	for range 3 {
		refresh()
		r := c.undo(Selection{Since: timeOf(1)})
		require.Empty(t, r.Conflicts)
		require.Equal(t, "same\n", entries())
		refresh()
		r = c.undo(Selection{Undo: true})
		require.Empty(t, r.Conflicts)
		require.Equal(t, "same\nstaged\n", entries())
	}
	_, err := c.store.Undo(t.Context(), Selection{Undo: true}, Hooks{})
	require.ErrorContains(t, err, "there is no undo that could be taken back")

	c.create("f", "f")
	require.Empty(t, c.undo(Selection{Since: timeOf(1)}).Conflicts)
	before = c.read(".git/index")
	git("add", "-N", "staged")
	for range 2 {
		assert.Equal(t, []string{".git/index"}, conflicts(c.undo(Selection{Undo: true})))
		assert.Equal(t, "f", c.read("f"))
	}
	c.another(".git/index", before)
	assert.Empty(t, c.undo(Selection{Undo: true}).Conflicts)
	assert.Equal(t, "same\nstaged\n", entries())
}

// TestUndoGitWithin: in the directory of a repository itself, a refusal of one file of git's state, also of a linked worktree, leaves all of
// it: the objects which the index names stay.
func TestUndoGitWithin(t *testing.T) {
	c := newClient(t)
	c.close()
	c.open(Options{Within: ".git/"})
	for _, dir := range []string{"worktrees/one", "objects", "refs/heads"} {
		require.NoError(t, os.MkdirAll(filepath.Join(c.dir, dir), 0o755))
	}
	c.host("worktrees/one/index", "before")
	c.host("refs/heads/one", "before")
	c.host("config", "before")
	for _, rel := range []string{"worktrees/one/index", "refs/heads/one", "config"} {
		c.replace(rel, "after")
	}
	c.create("objects/1", "object")
	for refused, remedy := range map[string]string{"worktrees/one/index": "git reset, or --force", "refs/heads/one": "git reset"} {
		may := func(rel string, _ *beneath.Stat) error {
			if rel == refused {
				return errors.New("access: read")
			}
			return nil
		}
		p, err := c.store.Plan(Selection{Since: timeOf(1)}, Hooks{May: may})
		require.NoError(t, err)
		assert.Equal(t, []Problem{{refused, "access: read: git's HEAD, index, refs and objects stay as they are (" + remedy + ")"}}, p.Conflicts)
		for _, s := range p.Steps {
			assert.Contains(t, []string{"config", "config.lock", ""}, s.Path)
		}
	}
	e, _, err := c.store.Effects(Work{Session: c.label.Session})
	require.NoError(t, err)
	require.Len(t, e.Changed, 2, "%v", e.Changed)
	assert.Equal(t, []string{"config", "*"}, []string{e.Changed[0].Path, e.Changed[1].Path})
}
