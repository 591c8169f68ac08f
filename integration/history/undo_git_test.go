package history

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestUndoGitRefreshed: the host's git status writes the index that a session, an undo or a redo has left. It is no conflict.
func TestUndoGitRefreshed(t *testing.T) {
	t.Parallel()
	p := newProject(t, 12345)
	p.host("git init -q -b main; echo 1 >a; echo c >c; git add .; " + git + "commit -q -m first")
	state := func() string {
		p.host("touch c; git status --short")
		return p.host("git fsck --strict --no-dangling 2>&1; git rev-parse HEAD; git ls-files -s; git --no-optional-locks status --short")
	}
	before := state()
	o := p.scopefs("run", "-q", "--dir", ".", "--", "sh", "-ec", "echo b >b; echo 2 >a; git add .; "+git+"commit -qm second")
	require.Zero(t, o.Code, o.Stderr)
	after := state()
	for range 2 {
		o = p.scopefs("undo", "--session", "last")
		require.Zero(t, o.Code, o.Stdout)
		assert.Equal(t, before, state())
		o = p.scopefs("redo")
		require.Zero(t, o.Code, o.Stdout)
		assert.Equal(t, after, state())
	}
}

// TestUndoGitHeld: an undo of a held commit of git takes back git's files that the view has judged, too, without a mounted view, and a redo
// brings them again, unless the host has changed its index since.
func TestUndoGitHeld(t *testing.T) {
	t.Parallel()
	p := newProject(t, 12345)
	p.host("git init -q -b main; echo 1 >a; echo c >c; git add .; " + git + "commit -q -m first")
	held := func(script string) string {
		o := p.scopefs("run", "-q", "--dir", ".", "--changes", "held", "--", "sh", "-ec", script)
		require.Zero(t, o.Code, o.Stderr)
		return o.Stdout
	}
	const look = "git fsck --strict --no-dangling; git rev-parse HEAD; git ls-files -s; git --no-optional-locks status --short; cat a"
	before := held(look)
	held("echo 2 >a; git add .; " + git + "commit -qm second")
	after := held(look)
	require.NotEqual(t, before, after)
	for range 2 {
		o := p.scopefs("undo", "--session", "last")
		require.Zero(t, o.Code, o.Stdout)
		assert.Equal(t, before, held(look))
		assert.Empty(t, p.scopefs("diff", "--name-only").Stdout)
		p.host("touch c; git status --short") // writes the index
		o = p.scopefs("redo")
		require.Zero(t, o.Code, o.Stdout)
		assert.Equal(t, after, held(look))
	}
	require.Zero(t, p.scopefs("undo", "--session", "last").Code)
	p.host("git update-index --assume-unchanged a")
	o := p.scopefs("redo")
	assert.Equal(t, 1, o.Code)
	assert.Contains(t, o.Stdout, "conflict: .git/.scopefs-config: changed since by the host", o.Stderr)
	assert.Equal(t, strings.TrimSuffix(before, "1\n")+"2\n", held(look), "of git's state the redo brings nothing")
}

// TestUndoGit: the host's git changes an entry of the index that a session has left. An undo then takes nothing of git's state back and
// says why: the repository stays whole. With --force all of it comes back, at once and after such an undo, and a redo takes that back.
func TestUndoGit(t *testing.T) {
	for name, one := range map[string]struct {
		uid    int
		before bool // an undo without --force
	}{"root": {0, true}, "user": {12345, true}, "root, forced at once": {0, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProject(t, one.uid)
			p.host("git init -q -b main; echo 1 >a; echo c >c; git add .; " + git + "commit -q -m first")
			state := func() string {
				return p.host("git fsck --strict --no-dangling 2>&1; git rev-parse HEAD; git log --format=%s; git ls-files -s; cat .git/logs/HEAD")
			}
			before := state()
			o := p.scopefs("run", "-q", "--dir", ".", "--", "sh", "-ec", "echo b >b; echo 2 >a; git add .; "+git+"commit -qm second")
			require.Zero(t, o.Code, o.Stderr)
			p.host("git update-index --assume-unchanged c")
			after := state()
			require.NotEqual(t, before, after)

			if one.before {
				o = p.scopefs("undo", "--session", "last")
				assert.Equal(t, 1, o.Code)
				assert.Contains(t, o.Stdout, "conflict: .git/index: another object is there: "+
					"git's HEAD, index, refs and objects stay as they are (git reset, or --force)", o.Stderr)
				assert.Equal(t, after, state())
				assert.Equal(t, "1\n", p.host("cat a"))
				assert.NoFileExists(t, filepath.Join(p.dir, "b"))
			}
			o = p.scopefs("undo", "--session", "last", "--force")
			assert.Zero(t, o.Code, o.Stdout)
			assert.Equal(t, before, state())
			assert.Empty(t, p.host("git --no-optional-locks status --short"))
			assert.FileExists(t, filepath.Join(p.dir, ".git/index.newer1"))
			if o = p.scopefs("redo"); one.before {
				p.host("git checkout -q .") // which an undo of its own has taken back
			}
			assert.Zero(t, o.Code, o.Stdout)
			assert.Equal(t, after, state())
			assert.Empty(t, p.host("git --no-optional-locks status --short"))
			assert.NoFileExists(t, filepath.Join(p.dir, ".git/index.newer1"))
		})
	}
}

// TestUndoGitCommits: a commit of the host builds on those of the session. An undo leaves git's state, also with --force.
func TestUndoGitCommits(t *testing.T) {
	for name, more := range map[string]string{"plain": "true", "packed": "git gc -q; git checkout -q w; git merge -q main; git checkout -q main"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProject(t, 0)
			p.host("git init -q -b main; echo 1 >a; git add .; " + git + "commit -q -m first; git branch w")
			o := p.scopefs("run", "-q", "--dir", ".", "--", "sh", "-ec", "echo b >b; git add .; "+git+"commit -qm second; "+more)
			require.Zero(t, o.Code, o.Stderr)
			p.host("echo h >h; git add h; " + git + "commit -qm host")
			state := func() string { return p.host("git fsck --strict --no-dangling 2>&1; git log --all; git ls-files -s") }
			before := state()
			for _, force := range []string{"--force=false", "--force"} {
				o = p.scopefs("undo", "--session", "last", force)
				assert.Equal(t, 1, o.Code)
				assert.Contains(t, o.Stdout, "git's HEAD, index, refs and objects stay as they are (git reset)", o.Stderr)
				assert.Equal(t, before, state())
				assert.NoFileExists(t, filepath.Join(p.dir, "b"))
			}
		})
	}
}
