package tools

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestClientsUndo: what the agent programs of others do in a repository is taken back, byte for byte: edits by their own tools,
// npm ci, a commit, and the removal of the sources.
func TestClientsUndo(t *testing.T) {
	need.Once(t)
	needClients(t)
	need.Program(t, "git")
	for name, c := range programCases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			undone(t, name, c)
		})
	}
}

func undone(t *testing.T, name string, c programCase) {
	clients, err := filepath.Abs("../../bin/clients")
	require.NoError(t, err)
	h := harness.LayOut(t, nil)
	var results []string
	after := func(next turn) func(string) turn {
		return func(last string) turn { results = append(results, last); return next }
	}
	h.Put("scopefs.yaml", fmt.Sprintf("sandbox: {expose: [%s, %s]}\n", clients+"/node", clients+"/npm"))
	dir := h.Scope("a")
	makeApp(t, dir)
	c.serve(t, h, "protect: [\"*\"]\nview: {changes: auto}", "",
		func(string) turn { return c.read("/workspace/src/main.js") },
		after(c.edit("/workspace/src/main.js", "// two", "// 2")),
		after(c.bash("cd /workspace && "+clients+"/node/bin/node "+clients+"/npm/bin/npm-cli.js ci --offline --no-audit --no-fund && node -p 'require(\"greet\")'")),
		after(c.bash("git -C /workspace commit -qam 'of the agent'")), // alone: Droid refuses it otherwise
		after(c.bash("cd /workspace && git log --oneline | wc -l && git gc -q && echo packed")),
		after(c.bash("cd /workspace && rm -r src && ls")),
		after(turn{answer: "all is done"}),
	)
	before := harness.Dumped(t, dir, harness.Times)
	_, errs := c.run(t, h, name)
	t.Logf("%q", results)
	require.Len(t, results, 6)
	assert.Contains(t, results[2], "hello of npm")
	assert.Contains(t, results[4], "packed")
	assert.Contains(t, results[5], "node_modules")
	assert.NoDirExists(t, filepath.Join(dir, "src"))
	assert.NoFileExists(t, filepath.Join(dir, "node_modules/old/index.js"))
	assert.Contains(t, git(t, dir, "log", "--oneline"), "of the agent")
	assert.NotContains(t, errs, "not kept")

	t.Log(h.Must("undo", "a", "--session", "last"))
	harness.SameTrees(t, before, harness.Dumped(t, dir, harness.Times), "after the undo")
	assert.Empty(t, git(t, dir, "fsck", "--strict", "--full"))
	assert.Empty(t, git(t, dir, "status", "--porcelain"))
	assert.NotContains(t, git(t, dir, "log", "--oneline"), "of the agent")
}

func git(t *testing.T, dir string, words ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "safe.directory=*", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"}, words...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "git %q: %s", words, out)
	return string(out)
}

// makeApp makes a repository with sources of several kinds, a dependency, and an older installation that npm ci removes.
func makeApp(t *testing.T, dir string) {
	ball := packed(t)
	text := func(v any) string {
		out, err := json.Marshal(v)
		require.NoError(t, err)
		return string(out)
	}
	const from = "file:vendor/greet-1.0.0.tgz"
	app := args{"name": "app", "version": "1.0.0", "dependencies": args{"greet": from}}
	harness.Plant(t, dir, "src/main.js=// one\n// two\n// three\n", "src/run=#!/bin/sh\n", "src/secret=x", "src/deep/er/", "src/deep/file", "src/link => main.js",
		".gitignore=node_modules/\n", "vendor/greet-1.0.0.tgz="+string(ball), "package.json="+text(app), "node_modules/old/index.js=old", "node_modules/.bin/old => ../old/index.js",
		"package-lock.json="+text(args{"name": "app", "version": "1.0.0", "lockfileVersion": 3, "requires": true, "packages": args{
			"": app, "node_modules/greet": args{"version": "1.0.0", "resolved": from, "integrity": integrity(ball)}}}))
	src := filepath.Join(dir, "src")
	require.NoError(t, os.Chmod(src+"/run", 0o755))
	require.NoError(t, os.Chmod(src+"/secret", 0o600))
	require.NoError(t, os.Chmod(src+"/deep/er", 0o700))
	require.NoError(t, os.Link(src+"/deep/file", src+"/hard"))
	git(t, dir, "init", "-q")
	git(t, dir, "config", "user.name", "a")
	git(t, dir, "config", "user.email", "a@b")
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-qm", "of the host")
	old := time.Date(2001, 2, 3, 4, 5, 6, 7, time.UTC)
	require.NoError(t, os.Chtimes(src+"/deep/file", old, old))
	require.NoError(t, os.Chtimes(src+"/deep", old, old))
	assert.Empty(t, git(t, dir, "status", "--porcelain"))
}
