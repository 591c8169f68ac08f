package history

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const git = "git -c user.name=x -c user.email=x@y -c commit.gpgsign=false "

// TestCommitGit: the commits of two branches of an agent become two branches of the host's repository. Its HEAD, index and files stay, and
// no hook runs.
func TestCommitGit(t *testing.T) {
	for who, uid := range map[string]int{"root": 0, "user": 12345} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			p := newProject(t, uid)
			p.host("git init -q -b main; echo 1 >a; git add .; " + git + "commit -q -m first; echo mine >>a; echo new >b; git add b; " +
				"for h in reference-transaction post-merge post-checkout; do printf '#!/bin/sh\\ntouch " + p.dir + "/../hooked 2>/dev/null || true\\n' >.git/hooks/$h; chmod +x .git/hooks/$h; done")
			state := func() string {
				return p.host("git rev-parse HEAD; git status --porcelain; cat a b; git diff --cached --stat; sha1sum .git/HEAD .git/index")
			}
			before := state()
			require.Zero(t, p.scopefs("run", "--dir", ".", "--", "true").Code)
			for _, name := range []string{"one", "two"} {
				require.Zero(t, p.scopefs("branch", name).Code)
				o := p.scopefs("run", "--dir", ".", "--branch", name, "--", "sh", "-ec", "git checkout -q -b work; echo "+name+" >c; git add c; "+git+"commit -q -m "+name+"; echo "+name+" >>c; "+git+"commit -qam more")
				require.Zero(t, o.Code, o.Stderr)
				if name == "one" {
					o = p.scopefs("commit", "--branch", name, "--git", "by-one", "--json")
					assert.JSONEq(t, `{"agent":"one","branch":"by-one","commits":2}`, o.Stdout, o.Stderr)
					continue
				}
				o = p.scopefs("commit", "--branch", name, "--git", "by-"+name)
				require.Zero(t, o.Code, o.Stderr)
				assert.Contains(t, o.Stdout, "2 commits are the branch by-"+name+": git merge by-"+name+", then scopefs branch remove "+name+"\n")
			}
			assert.Equal(t, before, state())
			assert.Equal(t, "by-one\nby-two\nmain\n", p.host("git for-each-ref --format='%(refname:short)'"))
			assert.Equal(t, "more\none\nfirst\n", p.host("git log --format=%s by-one"))
			assert.Equal(t, "one\none\n", p.host("git show by-one:c"))
			p.host("git fsck --strict")
			assert.NoFileExists(t, filepath.Join(p.dir, "../hooked"))

			for words, why := range map[string]string{
				"--branch one --git by-one":          "has no commit that the directory's repository lacks",
				"--branch one --git main":            "has no commit that the directory's repository lacks",
				"--branch one --git -x":              "is no name of a branch",
				"--branch one --git a..b":            "is no name of a branch",
				"--branch one --git new --path c":    "have no --path",
				"--branch one --git new --theirs":    "--theirs",
				"--git by-one":                       "which changes: give --branch one, or --branch two",
				"--branch none --git by-one":         "none",
				"--branch two --git by-two --json x": "is no flag",
			} {
				o := p.scopefs(append([]string{"commit"}, strings.Fields(words)...)...)
				assert.NotZero(t, o.Code, words)
				assert.Contains(t, o.Stderr, why, words)
			}
			require.Zero(t, p.scopefs("run", "--dir", ".", "--branch", "one", "--", "sh", "-ec", git+"commit -q --allow-empty -m again").Code)
			o := p.scopefs("commit", "--branch", "one", "--git", "by-two")
			assert.Contains(t, o.Stderr, `the branch "by-two" of `+p.dir+" stays as it is (another name may do)")
			assert.Contains(t, o.Stderr, "non-fast-forward")
			o = p.scopefs("commit", "--branch", "one", "--git", "main")
			assert.Contains(t, o.Stderr, "checked out")
			o = p.scopefs("commit", "--branch", "one", "--git", "by-one")
			assert.Contains(t, o.Stdout, "1 commit is", o.Stderr)
			assert.Equal(t, before, state())

			o = p.scopefs("run", "--dir", ".", "--changes", "held", "--", "sh", "-ec", git+"commit -q --allow-empty -m flagged")
			require.Zero(t, o.Code, o.Stderr)
			o = p.scopefs("commit", "--branch", "held", "--git", "by-flag")
			assert.Contains(t, o.Stdout, "1 commit is", o.Stderr)
			assert.Equal(t, before, state())
		})
	}
}

// TestCommitGitAttack: what an agent puts into its repository neither runs on the host nor gets there unchecked.
func TestCommitGitAttack(t *testing.T) {
	t.Parallel()
	p := newProject(t, 12345)
	p.host("git init -q -b main; echo 1 >a; git add .; " + git + "commit -q -m first")
	require.Zero(t, p.scopefs("run", "--dir", ".", "--", "true").Code)
	require.Zero(t, p.scopefs("branch", "one").Code)
	hostile := map[string]string{
		"a tree with .git": `blob=$(echo x | git hash-object -w --stdin); tree=$(printf '100644 blob %s\t.git\n' $blob | git mktree); c=$(` + git + `commit-tree -p HEAD -m x $tree); git update-ref HEAD $c`,
		"a submodule that is an option": `printf '[submodule "x"]\n\tpath = x\n\turl = --upload-pack=touch /tmp/x\n' >m; blob=$(git hash-object -w m); ` +
			`tree=$(printf '100644 blob %s\t.gitmodules\n' $blob | git mktree); c=$(` + git + `commit-tree -p HEAD -m x $tree); git update-ref HEAD $c`,
		"no repository":   "rm -rf .git",
		"a broken HEAD":   "echo 'ref: refs/heads/none' >.git/HEAD",
		"another program": "mkdir -p .git/x; printf '#!/bin/sh\necho hello; exit 0\n' >/tmp/git; git update-ref -d HEAD",
		"a replaced HEAD": "c=$(" + git + "commit-tree -m orphan HEAD^{tree}); git update-ref HEAD $c; git replace HEAD main",
	}
	for name, script := range hostile {
		p.scopefs("run", "--dir", ".", "--branch", "one", "--", "sh", "-c", script) // the view refuses some of it
		o := p.scopefs("commit", "--branch", "one", "--git", "by")
		if name != "a replaced HEAD" { // a history of its own is a history
			assert.NotZero(t, o.Code, "%s: %s", name, o.Stdout)
			assert.NotEmpty(t, o.Stderr, name)
			assert.Equal(t, "main\n", p.host("git for-each-ref --format='%(refname:short)'"), name)
		}
		p.host("git update-ref -d refs/heads/by")
		require.Zero(t, p.scopefs("discard", "--branch", "one", "--all").Code, name)
	}
	left, err := filepath.Glob(filepath.Join(p.way.Tmp, "scopefs-git-*"))
	require.NoError(t, err)
	assert.Empty(t, left)
	_, err = os.Stat("/tmp/x")
	assert.ErrorIs(t, err, os.ErrNotExist)
}
