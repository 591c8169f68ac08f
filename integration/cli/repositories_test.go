package cli

import (
	"cmp"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestRepositories: git inside does what it does on the host, wherever the directory has its repository, or a line says what it takes.
func TestRepositories(t *testing.T) {
	for name, uid := range map[string]int{"root": 0, "user": 1234} {
		t.Run(name, func(t *testing.T) {
			top, err := os.MkdirTemp("/opt", "scopefs-integration-") // not below /tmp, which is another one inside
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, os.RemoveAll(top)) })
			require.NoError(t, os.Chmod(top, 0o755))
			w := newWorktreesAt(t, harness.Embed(t, uid, nil), top, uid)
			w.git(".", "config", "--global", "user.name", "x")
			w.git(".", "config", "--global", "user.email", "x@example.org")
			w.git(".", "config", "--global", "protocol.file.allow", "always")
			w.git(".", "init", "-q", "-b", "main", "--separate-git-dir", "apart.git", "apart")
			w.git("apart", "commit", "-q", "--allow-empty", "-m", "first")
			w.git(".", "clone", "-q", "--bare", "repo", "bare.git")
			w.git("bare.git", "worktree", "add", "-q", "../frombare", "-b", "frombare")
			w.git("bare.git", "worktree", "add", "-q", "inbare", "-b", "inbare")
			w.git(".", "clone", "-q", "--bare", "repo", "hidden/.bare")
			harness.Plant(t, top, "hidden/.git=gitdir: ./.bare\n")
			require.NoError(t, os.Chown(top+"/hidden/.git", uid, uid))
			w.git("hidden", "worktree", "add", "-q", "main")
			w.git("hidden", "worktree", "add", "-q", "fix")
			w.git("repo", "worktree", "add", "-q", ".claude/worktrees/x")
			w.git(".", "clone", "-q", "repo", "mid")
			w.git("mid", "submodule", "add", "-q", "../repo", "inner")
			w.git("mid", "commit", "-q", "-m", "inner")
			for _, super := range []string{"super", "other"} {
				w.git(".", "clone", "-q", "repo", super)
				w.git(super, "submodule", "add", "-q", "../mid", "libs/mid")
				w.git(super, "submodule", "update", "-q", "--init", "--recursive")
				w.git(super, "commit", "-q", "-m", "mid")
			}
			w.git("super", "worktree", "add", "-q", "../linked")
			w.git("linked", "submodule", "update", "-q", "--init", "--recursive")

			const work = "echo new >>made; git add made; git commit -q -m inside; git status --porcelain -uno; git tag t-$(basename $PWD)"
			for _, row := range []struct {
				dir, as string // as: what --dir has
				with    []string
				says    string
			}{
				{"repo", "", nil, ""},
				{"repo/.claude/worktrees/x", top + "/repo/.claude/worktrees/x", nil, "is a worktree of " + top + "/repo/.git"},
				{"frombare", "", nil, "is a worktree of " + top + "/bare.git"},
				{"hidden/main", "", nil, "is a worktree of " + top + "/hidden/.bare"},
				{"super", "", nil, ""},
				{"super/libs/mid", "", nil, "the agent is that of " + top + "/super"},
				{"super/libs/mid/inner", "", nil, "the agent is that of " + top + "/super"},
				{"linked", "", nil, "is a worktree of " + top + "/super/.git"},
				{"apart", "", []string{"--with", "../apart.git"}, ""},
				{"other/libs/mid", "", []string{"--with", "../../.git/modules/libs/mid"}, ""},
			} {
				argv := append(append([]string{harness.Program, "run", "--dir", cmp.Or(row.as, "."), "-q"}, row.with...), "--", "sh", "-ec", work)
				o := w.as(row.dir, argv...)
				assert.Zero(t, o.Code, "%s: %s", row.dir, o.Stderr)
				assert.Empty(t, o.Stdout, row.dir)
				assert.Contains(t, o.Stderr, row.says, row.dir)
				assert.Equal(t, "inside\n", w.as(row.dir, "git", "log", "-1", "--format=%s").Stdout, row.dir)
				assert.Empty(t, w.git(row.dir, "status", "--porcelain", "-uno", "--ignore-submodules"), row.dir)
				fsck := w.as(row.dir, "git", "fsck", "--no-dangling")
				assert.Zero(t, fsck.Code, "%s: %s", row.dir, fsck.Stderr)
			}
			o := w.run("super", "cd libs/mid/inner; git commit -q --allow-empty -m deep; cd ..; git add inner; git commit -qm deeper; cd ../..; "+
				"git add libs/mid; git commit -qm deepest; git submodule update --recursive; "+
				"git submodule foreach -q --recursive git fsck; git status --porcelain -uno")
			assert.Zero(t, o.Code, o.Stderr)
			assert.NotContains(t, w.git("super", "submodule", "status", "--recursive"), "+")

			o = w.run("bare.git/inbare", "git status")
			assert.NotZero(t, o.Code)
			assert.Contains(t, o.Stderr, "its .git leads to "+top+"/bare.git/worktrees/inbare: one is inside the other")
			w.git(".", "init", "-q", "--separate-git-dir", "far.git", "far")
			o = w.run("far", "git status")
			assert.NotZero(t, o.Code)
			assert.Contains(t, o.Stderr, "its .git leads to "+top+
				"/far.git, which is followed only if you name it: scopefs run --with "+top+"/far.git")
			o = w.run("bare.git", "cd inbare; git commit -q --allow-empty -m inside")
			assert.Zero(t, o.Code, "all of the repository: %s", o.Stderr)
		})
	}
}
