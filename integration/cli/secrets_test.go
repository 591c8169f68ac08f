package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestSecretsGit: a secret that git tracks is no change in the sandbox, and no commit loses it. What the user has changed in
// it is a change that git cannot read: no command keeps it or removes it.
func TestSecretsGit(t *testing.T) {
	const uid = 1234
	m := harness.Embed(t, uid, nil)
	dir := filepath.Join(m.Base, "own")
	require.NoError(t, os.Mkdir(dir, 0o755))
	harness.Plant(t, dir, ".env=TRACKED", "web/dev.pem=TRACKED", "main.go=one\n")
	for _, name := range []string{".", ".env", "web", "web/dev.pem", "main.go"} {
		require.NoError(t, os.Chown(filepath.Join(dir, name), uid, uid))
	}
	as := func(cmd *exec.Cmd) harness.Outcome {
		cmd.Dir = dir
		cmd.Env = append(cmd.Env, "TMPDIR="+m.Tmp, "HOME="+filepath.Join(m.Base, "agents"), "XDG_STATE_HOME=", "SCOPEFS_BASE=")
		return harness.Finish(t, cmd)
	}
	host := func(script string) string {
		o := as(harness.AsUser(t, uid, "sh", "-c", script))
		require.Zero(t, o.Code, o.Stderr)
		return o.Stdout
	}
	inside := func(script string) harness.Outcome {
		return as(harness.AsUser(t, uid, harness.Program, "run", "--dir", dir, "--", "sh", "-c", script))
	}
	host(`touch -d 2020-01-01 .env web/dev.pem && git init -q && git config user.name u && git config user.email u@x &&
		git add -A && git commit -qm one && echo UNTRACKED >web/.env.local`)
	const tree = ".env\nmain.go\nweb/dev.pem\n"

	o := inside("echo more >>main.go; git status --porcelain")
	assert.Equal(t, " M main.go\n", o.Stdout, o.Stderr)
	for _, commit := range []string{"git commit -qam two", "echo more >>main.go; git add -A && git commit -qm three && git status --porcelain"} {
		o := inside(commit)
		assert.Zero(t, o.Code, o.Stderr)
		assert.Empty(t, o.Stdout)
		assert.Equal(t, tree, host("git ls-tree -r --name-only HEAD"))
	}

	host("echo CHANGED >.env")
	assert.Equal(t, " M .env\n", inside("git status --porcelain").Stdout)
	for _, command := range []string{"git commit -qam four", "git add -A", "git stash", "git diff --text", "git hash-object -w .env", "git rm -qf .env", "git checkout .env", "git reset -q --hard"} {
		o := inside(command)
		assert.NotZero(t, o.Code, command)
		assert.Contains(t, o.Stderr, "Permission denied", command)
		assert.NotContains(t, o.Stdout+o.Stderr, "CHANGED", command)
	}
	o = inside("echo more >>main.go; git commit -qm four main.go")
	assert.Zero(t, o.Code, o.Stderr)
	assert.Equal(t, tree, host("git ls-tree -r --name-only HEAD"))
	assert.NotRegexp(t, "CHANGED|UNTRACKED", host("git cat-file --batch --batch-all-objects"))
	assert.Equal(t, "CHANGED\n", harness.ReadAll(t, filepath.Join(dir, ".env")))
}
