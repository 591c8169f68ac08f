package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// packageTree has an installed package n/x that ships what protect names, others, and files of the project.
var packageTree = []string{
	"n/node_modules/x/.vscode/tasks.json", "n/node_modules/x/lib/f", "n/node_modules/plain/lib/f",
	"n/node_modules/.tmp/.npmrc", "lib/site-packages/x/.gdbinit", "target/package/x-1/.cargo/config.toml", "vendor/a/b/captainhook.json",
	"src/f", "src/hooks/use.js", "src/own/.vscode/settings.json", "src/deep/hooks/pre-commit", "empty/", "other/", "tool/pre-commit", "l => n",
}

// packageAttacks bring what a package has to where programs of the host read it.
var packageAttacks = []string{
	"rename n/node_modules/x/.vscode .vscode", "rename n/node_modules/x/.vscode src/.vscode", "xchg n/node_modules/x/.vscode src/own/.vscode", "rename n/node_modules/.tmp/.npmrc .npmrc",
	"link n/node_modules/.tmp/.npmrc .npmrc", "rename n/node_modules/x x", "xchg n/node_modules/x src", "xchg src n/node_modules/x", "xchg n/node_modules/x empty",
	"rename n/node_modules n/modules", "xchg n/node_modules empty", "rename n/node_modules other/lib", "rename lib/site-packages lib/packages", "rename target t", "rename target/package target/p",
	"rename target/package p", "rename vendor v", "rename vendor/a v", "rename vendor/a vendor2", "rename vendor/a/b b",
	"rename src/own n/node_modules/own", "xchg src/own n/node_modules/plain", "rename src n/node_modules/src", "rename src/own n/node_modules/x/own",
	"symlink n/node_modules/x app", "symlink n/node_modules app", "symlink n/node_modules/missing app", "symlink l/node_modules/x app", "symlink /workspace/n/node_modules/x src/app",
	"symlink n/node_modules/../../l/node_modules/x app", "symlink n/node_modules/x/.vscode .vscode", "symlink target t", "symlink vendor/a v", "rename n/node_modules/k k", "xchg n/node_modules/k src/f", "link n/node_modules/k k",
	"create n/node_modules/x/.mcp.json", "mkdir n/node_modules/x/.claude", "mkdir n/node_modules/x/.hg", "put n/node_modules/x/.git gitdir:/x", "create n/.vscode", "create node_modules2/.vscode",
	"rename tool src/tools/hooks", "rename src/deep/hooks src/deep/h", "xchg src/hooks tool",
}

// packageUses are what package managers and people do.
var packageUses = []string{
	"create n/node_modules/x/.vscode/launch.json", "write n/node_modules/x/.vscode/tasks.json", "mkdir n/node_modules/plain/.idea", "mkdir n/node_modules/plain/.husky", "create n/node_modules/x/.envrc",
	"rename n/node_modules/.tmp n/node_modules/y", "rename n/node_modules/x n/node_modules/@s", "xchg n/node_modules/x n/node_modules/plain", "unlink n/node_modules/.tmp/.npmrc",
	"rename n/node_modules/x/.vscode n/node_modules/x/vscode", "rename n/node_modules/plain plain", "rename n m", "rename n/node_modules empty/node_modules", "rename src/hooks src/lib", "rename src/hooks n/node_modules/hooks",
	"symlink ../../src n/node_modules/src", "symlink ../n/node_modules other/node_modules", "rename lib/site-packages/x lib/site-packages/z", "rename src/f n/node_modules/f",
	"rename target/package/x-1 target/package/x-2", "rename vendor/a/b vendor/a/c", "rename other src/other", "create lib/site-packages/x/.vscode", "create vendor/a/b/.envrc", "create target/package/x-1/.envrc",
}

// TestProtectPackages: names of editors and hooks are free in installed packages. No move and no link brings one to another place.
func TestProtectPackages(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`, "held": `protect: {answer: hold}`, "free": ""})
	try := func(i int, agent, op string) []string {
		dir := h.Scope(agent, fmt.Sprint(i))
		harness.Plant(t, dir, append(packageTree, fmt.Sprintf("n/node_modules/k => /workspace/%d/n/node_modules/x", i))...)
		// The paths of operations begin in dir; /workspace is the view.
		got := harness.HostOps(t, h.View(agent, fmt.Sprint(i)), strings.ReplaceAll(op, "/workspace", fmt.Sprint("/workspace/", i)))
		if agent == "a" {
			assert.FileExists(t, filepath.Join(dir, "src/own/.vscode/settings.json"), op)
			assert.FileExists(t, filepath.Join(dir, "src/deep/hooks/pre-commit"), op)
		}
		return got
	}
	for i, attack := range packageAttacks {
		want := []string{"EACCES"}
		if strings.Contains(attack, "node_modules2") || strings.Contains(attack, "src/tools/") {
			want = []string{"ENOENT"}
		}
		assert.Equal(t, want, try(i, "a", attack), attack)
		assert.Contains(t, [][]string{{"ok"}, {"ENOENT"}, {"EEXIST"}}, try(i, "free", attack), attack)
		if strings.HasPrefix(attack, "xchg") || strings.HasPrefix(attack, "rename") && !strings.Contains(attack, ".npmrc") { // .npmrc is held
			assert.NotEqual(t, "ok", try(i, "held", attack)[0], attack)
		}
	}
	for i, use := range packageUses {
		assert.Equal(t, []string{"ok"}, try(1000+i, "a", use), use)
	}
	assert.True(t, h.Recorded("a", audit.Event{Op: "rename", Path: "5/x/.vscode", Verdict: audit.Deny, Rule: "protect editor"}), "the name that must not arrive")
}

// TestProtectPackagesMany: a directory of more objects than the view looks at does not leave a package by a rename.
func TestProtectPackagesMany(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`})
	dir := h.Scope("a", "node_modules/x/many")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for i := range 10_000 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o644))
	}
	assert.Equal(t, []string{"ok", "EXDEV", "ok"}, harness.HostOps(t, h.View("a"), "rename node_modules/x node_modules/y", "rename node_modules/y y", "rename node_modules/y/many many"))
}
