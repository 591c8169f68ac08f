package cli

import (
	"bytes"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// scopefs runs a command in the first linked worktree.
func (w *worktrees) scopefs(words ...string) harness.Outcome {
	w.t.Helper()
	return w.as("one", append([]string{harness.Program}, words...)...)
}

// whole requires that git of the host finds nothing missing, and returns what the first linked worktree is to it.
func (w *worktrees) whole(after string) string {
	w.t.Helper()
	o := w.as("repo", "git", "fsck", "--no-dangling")
	require.Zero(w.t, o.Code, "%s: %s%s", after, o.Stdout, o.Stderr)
	o = w.as("one", "sh", "-ec", "git --no-optional-locks status --porcelain -b; git log --format='%D %s' --all; git stash list; git --no-optional-locks diff HEAD; cat f")
	require.Zero(w.t, o.Code, "%s: %s%s", after, o.Stdout, o.Stderr)
	return o.Stdout
}

// mounted keeps the views of the first linked worktree mounted, by a session.
func (w *worktrees) mounted() {
	w.t.Helper()
	cmd := w.command("one", harness.Program, "run", "--dir", ".", "-q", "--", "sh", "-c", "echo ready; cat")
	in, err := cmd.StdinPipe()
	require.NoError(w.t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(w.t, err)
	require.NoError(w.t, cmd.Start())
	w.t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	_, err = out.Read(make([]byte, 1))
	require.NoError(w.t, err)
}

// TestUndoWorktree: what git did in a linked worktree, whose HEAD and index are in the repository, is undone and redone as in an ordinary
// repository: with and without a daemon, the repository is whole each time.
func TestUndoWorktree(t *testing.T) {
	for name, c := range map[string]struct {
		uid     int
		mounted bool
	}{"root": {0, false}, "user": {1234, false}, "root, mounted": {0, true}, "user, mounted": {1234, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorktrees(t, c.uid, "one")
			if c.mounted {
				w.mounted()
			}
			for _, work := range []string{
				"echo 3 >>f; git commit -qam three",
				"echo 4 >>f; git commit -qam four; git checkout -q -b side HEAD~1; echo s >s; git add s; git commit -qm side; git rebase -q one; git checkout -q one; git merge -q --no-ff -m merged side",
				"echo 5 >>f; git stash -q; echo 6 >g; git add g; git stash -q; git stash pop -q; git branch other; git tag x; git pack-refs --all",
				"echo 7 >>f; git commit -qam seven; git commit -q --amend -m eight; git gc -q; git reflog expire --expire=now HEAD; git prune",
			} {
				before := w.whole("before")
				o := w.scopefs("run", "--dir", ".", "--", "sh", "-ec", work)
				require.Zero(t, o.Code, "%s: %s", work, o.Stderr)
				assert.Contains(t, o.Stderr, "/repo/.git/*", "git's own files are one entry")
				assert.NotContains(t, o.Stderr, ".git/objects")
				for _, no := range []string{".scopefs-config", "tmp_obj", ".lock"} {
					assert.NotContains(t, w.scopefs("changes").Stdout, no)
				}
				for _, words := range [][]string{{"undo", "--session", "last"}, {"redo"}, {"undo", "--session", "last"}} {
					assert.NotContains(t, w.scopefs(append(words, "-n", "--each")...).Stdout, ".scopefs-config")
					o = w.scopefs(words...)
					assert.Zero(t, o.Code, "%s: %s%s", work, o.Stdout, o.Stderr)
					if after := w.whole(words[0]); words[0] == "undo" {
						assert.Equal(t, before, after, work)
					} else {
						assert.NotEqual(t, before, after, work)
					}
				}
			}
		})
	}
}

// TestUndoWorktreeConflict: an undo that meets what the host did in a linked worktree takes nothing of git's back, in no directory, and
// the remedy that it names works.
func TestUndoWorktreeConflict(t *testing.T) {
	w := newWorktrees(t, 1234, "one")
	commit := func() {
		t.Helper()
		o := w.scopefs("run", "--dir", ".", "-q", "--", "sh", "-ec", "echo 3 >>f; git commit -qam three")
		require.Zero(t, o.Code, o.Stderr)
	}
	stays := func(remedy string) {
		t.Helper()
		o := w.scopefs("undo", "--session", "last")
		assert.Equal(t, 1, o.Code, o.Stdout)
		assert.Equal(t, 1, strings.Count(o.Stdout, "conflict: "), o.Stdout)
		assert.Contains(t, o.Stdout, ": git's HEAD, index, refs and objects stay as they are ("+remedy+")\n")
		assert.NotContains(t, o.Stdout, "moved")
	}
	before := w.whole("")
	commit()
	require.NoError(t, os.WriteFile(w.top+"/one/h", []byte("host"), 0o666))
	w.git("one", "add", "h")
	stays("git reset, or --force")
	assert.Contains(t, w.whole("conflict"), " three\n")
	assert.Zero(t, w.scopefs("undo", "--session", "last", "--force").Code)
	assert.Equal(t, strings.Replace(before, "\n", "\n?? h\n", 1), w.whole("force"))

	commit()
	w.git("one", "commit", "-q", "--allow-empty", "-m", "of the host")
	stays("git reset")
	assert.Contains(t, w.whole("conflict"), " M f\n")
	assert.Equal(t, 1, w.scopefs("undo", "--session", "last", "--force").Code)
	w.whole("force")
	w.git("one", "reset", "-q", "--hard", "HEAD~2")
	assert.Equal(t, strings.Replace(before, "\n", "\n?? h\n", 1), w.whole("reset"))
}

// TestUndoWorktreeKilled: after an undo that is killed when it has changed the worktree, and has changed the repository or not, the next
// one goes on: the repository is whole.
func TestUndoWorktreeKilled(t *testing.T) {
	w := newWorktrees(t, 1234, "one")
	before := w.whole("")
	for _, file := range []string{"one/f", "repo/.git/refs/heads/one", "repo/.git/worktrees/one/index", "one/f"} {
		was, err := os.ReadFile(w.top + "/" + file)
		require.NoError(t, err)
		o := w.scopefs("run", "--dir", ".", "-q", "--", "sh", "-ec", "echo 3 >>f; git commit -qam three")
		require.Zero(t, o.Code, o.Stderr)
		cmd := w.command("one", harness.Program, "undo", "--session", "last")
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.Setpgid = true
		require.NoError(t, cmd.Start())
		w.m.Eventually("the undo has begun", func() bool {
			now, _ := os.ReadFile(w.top + "/" + file)
			return bytes.Equal(now, was)
		})
		require.NoError(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL))
		_ = cmd.Wait()
		o = w.scopefs("undo", "--session", "last")
		t.Logf("%s: %d %s%s", file, o.Code, o.Stdout, o.Stderr)
		assert.Equal(t, before, w.whole("killed"), file)
	}
}

// TestUndoRule: a conflict with the agent's rules names the rule, with and without a mounted view.
func TestUndoRule(t *testing.T) {
	w := newWorktrees(t, 0, "one")
	o := w.scopefs("run", "--dir", ".", "-q", "--", "sh", "-ec", "mkdir d; echo x >d/x; echo x >l; ln -s d/x link")
	require.Zero(t, o.Code, o.Stderr)
	o = w.scopefs("set", "-y", "view.paths", "{d/x: read, l: hide}")
	require.Zero(t, o.Code, o.Stderr)
	for _, mounted := range []bool{false, true} {
		if mounted {
			w.mounted()
		}
		out := w.scopefs("undo", "-n", "--session", "last").Stdout
		assert.Contains(t, out, "conflict: d/x: the agent's rules do not allow it: d/x: read\n")
		assert.Contains(t, out, "conflict: l: the agent's rules do not allow it\n")
	}
}
