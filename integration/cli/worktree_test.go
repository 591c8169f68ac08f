package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// worktrees is a repository of a user with a main worktree and linked ones, and run --dir in them without a base.
type worktrees struct {
	t   *testing.T
	m   *harness.Way
	top string
	uid int
}

func newWorktrees(t *testing.T, uid int, linked ...string) *worktrees {
	t.Helper()
	m := harness.Embed(t, uid, nil)
	return newWorktreesAt(t, m, filepath.Join(m.Base, "own"), uid, linked...)
}

func newWorktreesAt(t *testing.T, m *harness.Way, top string, uid int, linked ...string) *worktrees {
	t.Helper()
	w := &worktrees{t, m, top, uid}
	require.NoError(t, os.MkdirAll(w.top+"/home", 0o755))
	harness.Plant(t, w.top, "repo/", "repo/f=1\n")
	require.NoError(t, exec.Command("chown", "-R", fmt.Sprintf("%d:%[1]d", uid), w.top).Run())
	w.git("repo", "init", "-q", "-b", "main")
	w.git("repo", "config", "user.name", "x")
	w.git("repo", "config", "user.email", "x@example.org")
	w.git("repo", "add", ".")
	w.git("repo", "commit", "-q", "-m", "first")
	for _, name := range linked {
		w.git("repo", "worktree", "add", "-q", "-b", name, "../"+name)
	}
	return w
}

func (w *worktrees) as(dir string, argv ...string) harness.Outcome {
	w.t.Helper()
	return harness.Finish(w.t, w.command(dir, argv...))
}

// command is a command of the user in a directory of worktrees.top.
func (w *worktrees) command(dir string, argv ...string) *exec.Cmd {
	w.t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	if w.uid != 0 {
		cmd = harness.AsUser(w.t, w.uid, argv...)
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Dir = filepath.Join(w.top, dir)
	cmd.Env = append(cmd.Env, "TMPDIR="+w.m.Tmp, "HOME="+w.top+"/home", "XDG_STATE_HOME="+w.top+"/home/state", "XDG_CONFIG_HOME=", "SCOPEFS_BASE=", "XDG_RUNTIME_DIR=")
	return cmd
}

func (w *worktrees) git(dir string, args ...string) string {
	w.t.Helper()
	o := w.as(dir, append([]string{"git"}, args...)...)
	require.Zero(w.t, o.Code, "git %q: %s", args, o.Stderr)
	return o.Stdout
}

// run runs a script in the sandbox of a worktree.
func (w *worktrees) run(dir, script string) harness.Outcome {
	w.t.Helper()
	return w.as(dir, harness.Program, "run", "--dir", ".", "-q", "--", "sh", "-ec", script)
}

// TestWorktree: git works in a linked worktree at the first run, for root and for an ordinary user. Two agents in two worktrees commit,
// fetch, stash, tag and collect garbage at once; the main worktree stays as it is.
func TestWorktree(t *testing.T) {
	for name, uid := range map[string]int{"root": 0, "user": 1234} {
		t.Run(name, func(t *testing.T) {
			w := newWorktrees(t, uid, "one", "two")
			o := w.run("one", "git status --porcelain; git log --oneline | wc -l; pwd")
			require.Zero(t, o.Code, o.Stderr)
			assert.Equal(t, "1\n"+w.top+"/one\n", o.Stdout)
			assert.Equal(t, 1, strings.Count(o.Stderr, "is a worktree of "+w.top+"/repo/.git"), o.Stderr)
			assert.NotContains(t, w.run("one", "true").Stderr, "worktree", "once")

			// git makes objects/xx and then a file in it; git gc of the other worktree may remove the directory between the two.
			const work = `again() { until "$@" 2>again; do grep -q "unable to create temporary file" again || { cat again >&2; return 1; }; done; rm -f again; }
			for i in 1 2 3 4 5 6; do
				echo $i >>$N.txt; again git add $N.txt; again git commit -q -m "$N $i"; git tag $N-$i
				echo s >>$N.txt; s=$(again git stash create); git checkout -q -- .; git stash store $s; git stash apply -q $s; git checkout -q $N
				git fetch -q . $N:refs/copies/$N-$i; git branch -q $N-b$i; git branch -q -D $N-b$i
				git pack-refs --all; [ $i != 3 ] || until git gc -q 2>gc; do grep -q "already running" gc; sleep 0.1; done; rm -f gc; [ $i != 5 ] || git repack -q -d
			done; git log --oneline $N | wc -l; git tag -l "$N-*" | wc -l; git for-each-ref refs/copies/$N-* | wc -l; git status --porcelain`
			var both sync.WaitGroup
			for _, name := range []string{"one", "two"} {
				both.Go(func() {
					o := w.run(name, "N="+name+"; "+work)
					assert.Zero(t, o.Code, o.Stderr)
					assert.Equal(t, "7\n6\n6\n M "+name+".txt\n", o.Stdout, o.Stderr)
				})
			}
			both.Wait()
			assert.Empty(t, w.git("repo", "status", "--porcelain"))
			assert.Equal(t, "main\n", w.git("repo", "branch", "--show-current"))
			assert.Equal(t, "12\n", w.git("repo", "-c", "core.pager=", "rev-list", "--count", "one", "two", "^main"))
			o = w.as("repo", "git", "fsck", "--strict", "--no-dangling")
			assert.Zero(t, o.Code, o.Stderr)
			assert.Empty(t, o.Stdout)
			assert.Equal(t, 3, strings.Count(w.git("repo", "worktree", "list"), "\n"))
			o = w.run("two", "git stash -q; git stash pop -q; git checkout -q .; git worktree prune; git worktree list; git merge -q one -m merged; git rev-parse one^{tree}")
			assert.Zero(t, o.Code, o.Stderr)
			assert.Equal(t, 3, strings.Count(w.git("repo", "worktree", "list"), "\n"))
		})
	}
}

// TestAttackWorktree: what an agent in a worktree does to the repository makes git of the host execute nothing, and changes neither the
// main worktree nor another one.
func TestAttackWorktree(t *testing.T) {
	w := newWorktrees(t, 0, "one", "two")
	w.git("repo", "config", "extensions.worktreeConfig", "true")
	require.Zero(t, w.run("one", "git status").Code)
	common := w.top + "/repo/.git"
	before := w.as("repo", "sh", "-c", "cd .git; ls -d HEAD index config worktrees hooks info worktrees/two; cat HEAD config worktrees/two/* | sha256sum; sha256sum index").Stdout
	for _, attack := range []string{
		"printf '#!/bin/sh\\ntouch planted\\n' >$C/hooks/post-commit", "mkdir $C/hooks/x", "ln -s /bin/sh $C/hooks/pre-commit", "mv $C/hooks $C/h",
		"git config core.fsmonitor 'touch planted'", "git config --worktree core.fsmonitor 'touch planted'", "git config core.hooksPath $PWD/h",
		"echo x >$C/HEAD", "echo x >$C/index", "rm $C/index", "echo x >$C/ORIG_HEAD", "rm $C/logs/HEAD", "mv $C/logs $C/l",
		"echo x >$C/logs/HEAD.new; mv $C/logs/HEAD.new $C/logs/HEAD", "echo '* filter=x' >$C/info/attributes", "echo x >$C/info/exclude",
		"echo ref: refs/heads/one >$C/worktrees/two/HEAD", "rm -r $C/worktrees/two", "mkdir $C/worktrees/three", "mv $C/worktrees/two $C/worktrees/four",
		"ln -s /etc $C/refs/heads/x", "ln -s ../../repo $C/refs/heads/x", "ln $C/HEAD $C/refs/heads/h",
		"mkdir $C/worktrees/one/hooks; echo x >$C/worktrees/one/hooks/post-commit",
		"git worktree add ../new", "git worktree add new", "git worktree remove --force ../two", "ls " + w.top + "/two", "ls " + w.top + "/repo/f", "mkdir $C/modules/x",
	} {
		o := w.run("one", "C="+common+"; "+attack)
		assert.NotZero(t, o.Code, "%s: %s %s", attack, o.Stdout, o.Stderr)
	}
	// A shell says nothing of the error of close(2): what it wrote in place is refused there.
	own := w.as("repo", "sh", "-c", "cat .git/worktrees/one/gitdir .git/worktrees/one/commondir").Stdout
	w.run("one", "C="+common+"; echo /etc >$C/objects/info/alternates; echo /etc >$C/worktrees/one/commondir; echo $C/worktrees/two >$C/worktrees/one/gitdir; "+
		"printf '[core]\\n\\tfsmonitor = touch planted\\n' >>$C/config")
	assert.Equal(t, own, w.as("repo", "sh", "-c", "cat .git/worktrees/one/gitdir .git/worktrees/one/commondir").Stdout)
	alternates, err := os.ReadFile(common + "/objects/info/alternates")
	require.NoError(t, err)
	assert.Empty(t, alternates)
	after := w.as("repo", "sh", "-c", "cd .git; ls -d HEAD index config worktrees hooks info worktrees/two; cat HEAD config worktrees/two/* | sha256sum; sha256sum index").Stdout
	assert.Equal(t, before, after)
	w.git("repo", "status")
	w.git("one", "commit", "-q", "--allow-empty", "-m", "x")
	assert.NoFileExists(t, w.top+"/repo/planted")
	assert.NoFileExists(t, w.top+"/one/planted")
	assert.Zero(t, w.as("repo", "git", "fsck").Code)
}

// TestAttackWorktreeLink: a .git file is followed to a repository that names the directory as its worktree, and to no other.
func TestAttackWorktreeLink(t *testing.T) {
	w := newWorktrees(t, 0, "one", "two")
	private := filepath.Join(w.top, "private")
	require.NoError(t, os.Mkdir(private, 0o755))
	w.git("private", "init", "-q")
	w.git("private", "-c", "user.name=x", "-c", "user.email=x", "commit", "-q", "--allow-empty", "-m", "secret")
	admin := func(name string, files ...string) string {
		at := filepath.Join(w.top, name)
		harness.Plant(t, at, files...)
		return at
	}
	for name, link := range map[string]string{
		"another worktree":  w.top + "/repo/.git/worktrees/two",
		"a repository":      private + "/.git",
		"no back pointer":   admin("forged/worktrees/x", "commondir="+private+"/.git\n", "HEAD=ref: refs/heads/main\n"),
		"commondir leads":   admin("forged2/worktrees/x", "commondir="+private+"/.git\n", "gitdir="+w.top+"/victim/.git\n"),
		"no repository":     admin("forged3/worktrees/x", "commondir=../..\n", "gitdir="+w.top+"/victim/.git\n"),
		"a missing one":     w.top + "/gone/.git/worktrees/x",
		"a line more":       w.top + "/repo/.git/worktrees/one\nx",
		"out of a worktree": w.top + "/repo/.git/worktrees/../../../private/.git/worktrees/x",
	} {
		victim := filepath.Join(w.top, "victim")
		require.NoError(t, os.RemoveAll(victim))
		require.NoError(t, os.Mkdir(victim, 0o755))
		require.NoError(t, os.WriteFile(victim+"/.git", []byte("gitdir: "+link+"\n"), 0o644))
		o := w.run("victim", "set +e; ls -d "+private+" "+w.top+"/repo "+w.top+"/forged* 2>/dev/null; git log 2>&1; true")
		assert.Zero(t, o.Code, "%s: %s", name, o.Stderr)
		assert.NotContains(t, o.Stdout, w.top+"/private\n", name)
		assert.NotContains(t, o.Stdout, w.top+"/repo\n", name)
		assert.NotContains(t, o.Stdout, "secret", name)
	}
	// What the agent writes into .git later leads nowhere: the definition has the root.
	require.Zero(t, w.run("one", "git status").Code)
	require.NoError(t, os.WriteFile(w.top+"/one/.git", []byte("gitdir: "+private+"/.git\n"), 0o644))
	o := w.run("one", "set +e; ls "+private+"; git log")
	assert.NotZero(t, o.Code)
	assert.NotContains(t, o.Stdout, "secret")
}
