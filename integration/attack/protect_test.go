package attack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// The configs of a repository; with the second git status runs a program.
const (
	goodConfig = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
	evilConfig = "[core]\n\trepositoryformatversion = 0\n\tfsmonitor = \"touch planted; false\"\n"
)

// protectAttacks plant what the host would execute later. Each fails with EACCES where
// everything is protected, and works where nothing is.
var protectAttacks = []string{
	"write p/.git/config", "append p/.git/config", "trunc p/.git/config", "mmap p/.git/config", "reopen p/.git/config", "fallocate p/.git/config",
	"rename evil p/.git/config", "xchg evil p/.git/config", "xchg good p/.git/config", "link p/.git/config stolen", "rename p/.git/config stolen", "fdlink p/.git/config stolen",
	"link evil q/.git/config", "symlink ../../evil q/.git/config", "tmplink q/.git q/.git/config", "put q/.git/config x", "node q/.git/config", "rename to-evil q/.git/config",
	"put q/.git/config.worktree x", "rename evil q/.git/config.worktree", "create q/.git/commondir", "put q/.git/modules/m/config x", "create q/.git/.scopefs-config",
	"write p/.git/hooks/pre-commit", "create p/.git/hooks/post-commit", "link evil p/.git/hooks/post-commit", "rename evil p/.git/hooks/post-commit",
	"symlink ../../evil p/.git/hooks/post-commit", "xchg evil p/.git/hooks/pre-commit", "rename p/.git/hooks p/.git/old",
	"symlink ../../evils q/.git/hooks", "rename evils q/.git/hooks", "rename evils q/.git/modules/m/hooks",
	"rename evils r/.git", "rename evils r/r.git", "xchg evils q/.git", "rename q/.git s", "rename q/.git/modules s", "rename evils q/.git/refs/x",
	"create evils/HEAD", "rename evil evils/HEAD", "link evil HEAD", "symlink evil evils/HEAD", "mkdir q/.git/refs/heads/objects",
	"create .vscode/tasks.json", "write .vscode/settings.json", "rename .vscode s", "rename evils .idea", "symlink evils .idea", "create .envrc",
	"write p/.git/index", "put q/.git/index x", "rename evil q/.git/index", "link evil q/.git/index", "symlink ../../evil q/.git/index", "create q/.git/remotes/x", "rename evil q/.git/branches/x",
	"symlink config q/.git/COMMIT_EDITMSG", "rename q/.git/modules/to-config q/.git/COMMIT_EDITMSG", "xchg q/.git/modules/to-config q/.git/MERGE_MSG", "link q/.git/modules/to-config q/.git/COMMIT_EDITMSG",
	"rename q/.git/out q/.git/COMMIT_EDITMSG", "xchg q/.git/out q/.git/MERGE_MSG",
	"symlink p/.git/config notes", "symlink q/.git/modules/m notes", "symlink .vscode/settings.json notes", "symlink .vscode notes", "symlink deep/er/.envrc notes",
	"put bare.git/worktrees/w/index x", "rename evil bare.git/worktrees/w/index", "rename evil bare.git/modules/m/index", "put q/.git/sharedindex.1 x", "rename evil q/.git/sharedindex.1",
	"put q/.git/MERGE_RR x", "create q/.git/objects/pack/multi-pack-index", "rename evil q/.git/objects/pack/multi-pack-index",
	"put q/.git/objects/info/alternates ../../../../x", "rename evil q/.git/objects/info/alternates", "put q/.git/reftable/tables.list ../x",
	"mkdir q/.git/.git", "mkdir bare.git/.git", "rename evil r/.git", "put r/.git gitdir:x", "create r/.scopefs-config", "link evil r/.git", "create q/.git/.git", "symlink ../../evil q/.git/COMMIT_EDITMSG",
	"append p/.git/index.lock", "trunc p/.git/config.lock", "unlink p/.git/index.lock", "rename evil p/.git/index.lock", "rename p/.git/index.lock s", "link p/.git/index.lock s",
	"xchg evil p/.git/config.lock", "rename p/.git/index.lock p/.git/index",
	"create deep/er/.envrc", "link evil .mcp.json", "mkdir .claude", "create .bashrc", "mkdir .direnv", "create .gitconfig", "rename evil x.code-workspace", "mkdir deep/.husky",
}

// TestProtect tries them as a process in the view.
func TestProtect(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`, "free": ""})
	for i, attack := range protectAttacks {
		for agent, want := range map[string]string{"a": "EACCES", "free": "ok"} {
			dir := h.Scope(agent, fmt.Sprint(i))
			harness.Plant(t, dir, "evil="+evilConfig, "good="+goodConfig, "p/.git/config="+goodConfig, "p/.git/hooks/pre-commit=#!/bin/sh", ".vscode/settings.json",
				"q/.git/modules/m/", "q/.git/refs/heads/", "r/", "evils/x", "deep/er/", "to-evil => evil",
				"p/.git/index", "p/.git/index.lock", "p/.git/config.lock", "bare.git/worktrees/w/", "bare.git/modules/m/", "q/.git/objects/info/", "q/.git/objects/pack/", "q/.git/reftable/", "q/.git/remotes/", "q/.git/branches/", "q/.git/MERGE_MSG", "q/.git/modules/to-config => config", "q/.git/out => /etc/hostname")
			got := harness.HostOps(t, h.View(agent, fmt.Sprint(i)), attack)
			assert.Equal(t, []string{want}, got, "%s: %s", agent, attack)
			if agent == "a" {
				assert.Equal(t, goodConfig, harness.ReadAll(t, filepath.Join(dir, "p/.git/config")), attack)
			}
		}
	}
}

// TestProtectOpenDescriptor: a config is what was judged, though the agent has the file
// open that it renamed, and opens every name in the directory for writing meanwhile.
func TestProtectOpenDescriptor(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`})
	harness.Plant(t, h.Scope("a"), "p/.git/config="+goodConfig)
	dir := h.View("a", "p/.git")
	lock := filepath.Join(dir, "config.lock")
	stop := make(chan struct{})
	var others sync.WaitGroup
	var during atomic.Bool // the file to be renamed changes while it is judged
	for _, name := range []string{"config", "config.lock", ".scopefs-config"} {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if name == "config.lock" && !during.Load() {
					runtime.Gosched()
				} else if f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0); err == nil {
					_, _ = f.WriteAt([]byte(evilConfig), 0)
					f.Close()
				}
			}
		})
	}
	renamed := 0
	for i := range 90 {
		during.Store(i%3 == 0)
		f, err := os.OpenFile(lock, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			continue
		}
		_ = f.Truncate(0)
		_, _ = f.WriteAt([]byte(goodConfig), 0)
		if os.Rename(lock, filepath.Join(dir, "config")) == nil {
			renamed++
		}
		_, _ = f.WriteAt([]byte(evilConfig), 0)
		f.Close()
		require.NotContains(t, harness.ReadAll(t, h.Scope("a", "p/.git/config")), "fsmonitor")
	}
	close(stop)
	others.Wait()
	assert.NotZero(t, renamed)
	h.Eventually("the view shows the same", func() bool { return !strings.Contains(harness.ReadAll(t, filepath.Join(dir, "config")), "fsmonitor") })
}

// TestProtectIndex: the host's git writes what an index has, wherever that is. The view lets
// no index in that has a path out of the work tree.
func TestProtectIndex(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`, "free": ""})
	for _, agent := range []string{"a", "free"} {
		git := func(dir string, args ...string) error {
			cmd := exec.Command("git", append([]string{"-c", "safe.directory=*"}, args...)...)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
			out, err := cmd.CombinedOutput()
			t.Logf("git %v: %s", args, out)
			return err
		}
		view := h.View(agent)
		require.NoError(t, git(view, "init", "-q"))
		harness.Plant(t, view, "xxxxxxx=evil")
		require.NoError(t, git(view, "add", "xxxxxxx"))
		index := filepath.Join(view, ".git/index")
		text := harness.ReadAll(t, index)
		require.NoError(t, os.WriteFile(index+".lock", []byte(strings.Replace(text, "xxxxxxx", "../evil", 1)), 0o644))
		err := os.Rename(index+".lock", index)
		if agent == "a" {
			assert.ErrorIs(t, err, os.ErrPermission)
			assert.Equal(t, text, harness.ReadAll(t, h.Scope(agent, ".git/index")))
			assert.True(t, h.Recorded(agent, audit.Event{Op: "rename", Path: ".git/index", Verdict: audit.Deny, Rule: "protect git-config: index has the path \"../evil\""}))
		} else {
			require.NoError(t, err)
		}
		_ = git(h.Scope(agent), "restore", ".")
		_, err = os.Stat(h.Scope(agent, "../evil"))
		assert.Equal(t, agent == "free", err == nil, agent)
		_ = os.Remove(h.Scope(agent, "../evil"))
		require.NoError(t, os.RemoveAll(filepath.Join(view, ".git")))
	}
}

// TestProtectGit: git works in a sandbox where its files are protected. What the agent
// tries to plant with git itself does not run when the host uses git there.
func TestProtectGit(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`})
	mine := func(dir string, args ...string) string {
		cmd := exec.Command("git", append([]string{"-c", "safe.directory=*", "-c", "user.name=x", "-c", "user.email=x@y"}, args...)...)
		cmd.Dir = h.Scope("a", dir)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, "%s", out)
		return string(out)
	}
	mine("", "init", "-q", "mine")
	mine("mine", "config", "alias.own", "!true")
	harness.Plant(t, h.Scope("a"), "script="+`
		export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
		must() { "$@" >out 2>&1 || { echo "must: $*"; cat out; }; }
		mustnot() { "$@" >out 2>&1 && echo "must not: $*"; }
		plant() {
			mustnot git -C "$1" config core.fsmonitor 'touch planted; false'
			mustnot git -C "$1" config core.hooksPath .
			mustnot git -C "$1" config include.path ../../evil
			mustnot git -C "$1" config core.worktree /
			mustnot cp script "$1/.git/hooks/post-checkout"
			mustnot cp evil "$1/.git/config"
		}
		must git init -q new
		must git -C new commit -q --allow-empty -m one
		must git -C new remote add origin ../bare.git
		must git -C new branch feature/hooks
		must git -C new branch config
		must git clone -q new clone
		must git clone -q --bare new bare.git
		echo x >clone/file
		must git -C clone add file
		must git -C clone commit -q -m two
		must git -C clone push -q origin HEAD:refs/heads/pushed
		must git -C clone rebase -q HEAD~1
		must git -C clone gc -q
		must git -C mine commit -q --allow-empty -m one
		must git -C mine remote add new ../new
		must git -C mine fetch -q new
		must git -C mine config user.name me
		mustnot git -C mine config branch.main.remote /home
		mustnot git -C mine remote add up ../../x
		mustnot git -C mine config extensions.objectformat sha256
		must git -C clone config index.version 4
		must git -C clone update-index --force-write-index
		echo more >>clone/file
		must git -C clone stash -q
		must git -C clone diff --quiet
		must git -C clone stash pop -q
		mustnot git -C clone diff --quiet
		must git -C clone stash -q
		blob=$(git -C new hash-object -w --stdin </dev/null)
		seq 25000 | sed "s|.*|100644 $blob\tmany/&|" >list
		must git -C new -c index.threads=4 update-index --index-info <list
		must grep -q IEOT new/.git/index
		must git -C new reset -q --hard
		must git -C clone diff --quiet
		plant mine; plant new; plant clone
		mustnot git -C bare.git config core.fsmonitor 'touch planted; false'
		mustnot git init -q --separate-git-dir elsewhere separate
		mustnot git clone -q --bare new bare
		must cp -r new/.git/objects new/.git/refs evils
		mustnot cp new/.git/HEAD evils/HEAD
		mustnot bash -c "env echo 'gitdir: ../evils' >sub/.git"
		mustnot ln -s ../evils sub/.git
		mustnot mv script sub/.git
		mustnot git -C mine config core.worktree hooks
		mustnot git -C mine remote add private /home
		must git clone -q new gone
		must rm -rf gone
	`, "evil="+evilConfig, "evils/config="+evilConfig+"\tworktree = \"../evils\"\n", "sub/x")
	assert.Empty(t, h.Must("run", "a", "--", "bash", "script"))

	for _, dir := range []string{"mine", "new", "clone"} {
		assert.NotContains(t, mine(dir, "status"), "fsmonitor")
		mine(dir, "checkout", "-q", "-b", "other")
		assert.NotContains(t, mine(dir, "config", "--local", "--list"), "filemode=false", dir)
	}
	assert.Equal(t, "!true\n", mine("mine", "config", "alias.own"))
	assert.Equal(t, "me\n", mine("mine", "config", "--local", "user.name"))
	for _, dir := range []string{"evils", "sub"} {
		cmd := exec.Command("git", "status")
		cmd.Dir = h.Scope("a", dir)
		_ = cmd.Run()
	}
	assert.NoError(t, filepath.WalkDir(h.Scope("a"), func(name string, _ os.DirEntry, err error) error {
		assert.False(t, strings.HasSuffix(name, "/planted") || strings.HasSuffix(name, ".scopefs-config"), name)
		return err
	}))
}

// TestProtectFriends: worktrees and submodules work in a sandbox. Their pointers lead to
// repositories of the view, and the host finds nothing else there.
func TestProtectFriends(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`})
	harness.Plant(t, h.Scope("a"), "script="+`
		export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
		must() { "$@" >/tmp/out 2>&1 || { echo "must: $*"; cat /tmp/out; }; }
		mustnot() { "$@" >/tmp/out 2>&1 && echo "must not: $*"; }
		local="-c protocol.file.allow=always"
		must git init -q -b main local
		must git -C local commit -q --allow-empty -m one
		must git init -q -b main r
		cd r
		echo x >f
		must git add f
		must git commit -q -m one
		must git worktree add ../wt
		echo y >../wt/f
		must git -C ../wt commit -q -a -m two
		must git -C ../wt stash list
		must git -C ../wt gc -q
		must git worktree move ../wt ../moved
		must git -C ../moved status
		must git worktree list
		must git worktree add -b deep ../d/e/wt
		must git -C ../d/e/wt status
		must git worktree remove ../d/e/wt
		must git $local submodule add ../local sub
		must git commit -q -m sub
		must git -C sub commit -q --allow-empty -m three
		must git -C sub push -q origin HEAD:refs/heads/other
		must git submodule status
		must git $local submodule update --init
		must git -C .. clone -q -s local shares
		must git -C ../shares log
		must git -C .. $local clone -q --recurse-submodules r again
		must test -e ../again/sub/.git
		must git -C sub config user.name me
		mustnot git -C sub config core.fsmonitor 'touch planted; false'
		mustnot git -C ../moved config --worktree core.hooksPath .
		mustnot git -C sub config core.worktree /
		mustnot git -C sub config core.worktree ../../../../..
		mustnot git -C . config core.worktree sub
		mustnot bash -c 'env echo gitdir: ../../../outside/.git >sub/.git'
		mustnot bash -c 'env echo gitdir: /outside/.git >sub/.git'
		mustnot bash -c 'env printf "gitdir: ../.git/modules/sub/../../../.." >sub/.git'
		mustnot bash -c 'env printf x >>../moved/.git'
		mustnot bash -c 'env printf "gitdir: ../../" >sub/.git'
		mustnot cp f .git/worktrees/wt/commondir
		true
	`)
	assert.Empty(t, h.Must("run", "a", "--", "bash", "script"))
	assert.Equal(t, "gitdir: ../.git/modules/sub\n", harness.ReadAll(t, h.Scope("a", "again/sub/.git")))
}

// TestProtectCheckout: git leaves a protected file as it is where a branch changes it, checks
// out the others, and goes back with -f. It refuses a branch with a new protected directory.
func TestProtectCheckout(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`})
	harness.Plant(t, h.Scope("a"), "script="+`
		cd r
		exec 2>/dev/null
		git checkout -q other && cat f .vscode/s.json && git status --short
		git checkout -q -f main; cat f .vscode/s.json; git status --short
		git checkout -q new || cat f
	`)
	set := exec.Command("bash", "-c", `
		git init -q -b main r && cd r && git config user.name x && git config user.email x@y && mkdir .vscode && echo 1 | tee f >.vscode/s.json
		git add . && git commit -qm 1 && git checkout -qb other && echo 2 | tee f >.vscode/s.json && git commit -qam 2 && git checkout -q main
		git checkout -qb new && mkdir -p a/.vscode && echo 3 >a/.vscode/n.json && git add . && git commit -qm 3 && git checkout -q main
		chown -R $(stat -c %u:%g ..) .`)
	set.Dir = h.Scope("a")
	out, err := set.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, "2\n1\n M .vscode/s.json\n1\n1\n1\n", h.Must("run", "a", "--", "bash", "script"))
}

// TestProtectOwn: a list in protect.d holds in a mounted view as soon as it is written, and is
// not lost when its file is.
func TestProtectOwn(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`, "free": ""})
	for _, agent := range []string{"a", "free"} {
		harness.Plant(t, h.Scope(agent), "Makefile=all:", "evil=all: evil", "d/")
	}
	list := filepath.Join(h.Base, "protect.d", "make.yaml")
	require.NoError(t, os.Mkdir(filepath.Dir(list), 0o755))
	require.NoError(t, os.WriteFile(list, []byte("paths: ['**/Makefile']\n"), 0o644))
	h.Eventually("the list holds", func() bool { return harness.HostOps(t, h.View("a"), "write Makefile")[0] == "EACCES" })
	attacks := []string{"rename evil Makefile", "xchg evil Makefile", "link evil d/Makefile", "symlink Makefile notes", "create d/Makefile"}
	for _, attack := range attacks {
		assert.Equal(t, []string{"EACCES"}, harness.HostOps(t, h.View("a"), attack), attack)
	}
	assert.Equal(t, []string{"ok"}, harness.HostOps(t, h.View("free"), "create d/Makefile"))
	assert.True(t, h.Recorded("a", audit.Event{Op: "create", Path: "d/Makefile", Verdict: audit.Deny, Rule: "protect make"}))
	require.NoError(t, os.WriteFile(list, []byte("paths: ["), 0o644))
	_, errs, code := h.Try("reload")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "protect.d/make.yaml:1: is not YAML")
	assert.Equal(t, []string{"EACCES"}, harness.HostOps(t, h.View("a"), "write Makefile"))
}
