package scope

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inPackagesPolicy protects names everywhere, and others outside of installed packages.
func inPackagesPolicy(t testing.TB) *Policy {
	p, err := Compile(PolicySpec{Git: &GitRules{Hooks: true, Config: someKeys}, Protect: []Protect{
		{Name: "editor", Paths: []string{"**/.vscode", "**/hooks/pre-commit", "**/.moon/*.yml"}, Packages: true},
		{Name: "mcp", Paths: []string{"**/.claude", "**/.hg", "**/.github/hooks"}},
		{Name: "git-hooks", Paths: []string{"node_modules/tool/hooks"}}, // core.hooksPath
	}})
	require.NoError(t, err)
	return p
}

// TestPolicyPackages: names of a list with Packages are free in installed packages, and nowhere else.
func TestPolicyPackages(t *testing.T) {
	p := inPackagesPolicy(t)
	for rel, free := range map[string]bool{
		"node_modules/a/.vscode": true, "node_modules/.vscode/x": true, "a/node_modules/@b/c/.vscode/tasks.json": true, "node_modules/.pnpm/a@1/node_modules/a/hooks/pre-commit": true,
		"lib/python3/site-packages/a/.vscode": true, "target/package/a-1.0/.vscode": true, "vendor/a/b/.vscode": true, "a/vendor/a/b/c/hooks/pre-commit": true,
		".vscode": false, "node_modules.x/.vscode": false, "NODE_MODULES/a/.vscode": false, "node_modules\u200c/a/.vscode": false, "vendor/.vscode": false, "vendor/a/.vscode": false,
		"target/.vscode": false, "target/packages/a/.vscode": false, "package/a/.vscode": false, "target/x/package/a/.vscode": false,
		"node_modules/a/.claude": false, "node_modules/a/.hg/hgrc": false, "node_modules/a/.github/hooks/x": false, "node_modules/tool/hooks/x": false,
		"node_modules/a/.git/hooks/pre-commit": false, "node_modules/a/.git/.vscode": false, "a.git/node_modules/a/.vscode": false, ".git/node_modules/a/hooks/pre-commit": false,
	} {
		assert.Equal(t, free, p.File(OpCreate, rel).Allow, rel)
		assert.Equal(t, free, p.File(OpRename, rel).Allow, rel)
		assert.Equal(t, free, p.Remedy(OpCreate, rel) == "", rel)
	}
	for name, placed := range map[string]bool{".vscode": true, ".VSCode": true, "pre-commit": true, "a.yml": true, "hooks": true, ".claude": false, "x": false} {
		assert.Equal(t, placed, p.Placed(name), name)
	}
	assert.False(t, new(Policy).Placed(".vscode"))
}

// TestPolicyAlike: where Alike says so, and File lets both names move, the lists decide alike about each name below two directories, and below a link to one of them.
func TestPolicyAlike(t *testing.T) {
	p := inPackagesPolicy(t)
	names := []string{"node_modules", "site-packages", "target", "package", "vendor", "a", "hooks", ".moon", "tool", ".github"}
	below := []string{".vscode", "a/.vscode", "a/b/.vscode", "package/a/.vscode", "a/package/.vscode", "pre-commit", "hooks/pre-commit", "a/hooks/pre-commit", "b/c/hooks/pre-commit", "x.yml", "hooks", "tool/hooks"}
	random := rand.New(rand.NewPCG(1, 2))
	dir := func() string {
		parts := make([]string, 1+random.IntN(4))
		for i := range parts {
			parts[i] = names[random.IntN(len(names))]
		}
		return strings.Join(parts, "/")
	}
	alike, linked := 0, 0
	for range 20_000 {
		from, to := dir(), dir()
		if !p.File(OpRenameFrom, from).Allow || !p.File(OpRename, to).Allow {
			continue
		}
		link := p.Link(to, "/workspace/"+from, from).Allow
		for _, name := range below {
			was, _ := p.Listed(from + "/" + name)
			is, _ := p.Listed(to + "/" + name)
			if p.Alike(from, to) {
				alike++
				require.Equal(t, was, is, "%q moves to %q: %s", from, to, name)
			}
			if link {
				linked++
				require.False(t, was < is, "%q is a link to %q: %s", to, from, name)
			}
		}
	}
	assert.Greater(t, alike, 10_000)
	assert.Greater(t, linked, 10_000)
	for _, c := range []struct {
		rel, text, target string
		free              bool
	}{
		{"app", "node_modules/x", "node_modules/x", false}, {"app", "node_modules/x", "src/x", false}, {"app", "nm/x", "node_modules/x", false},
		{"app", "node_modules/x/../../q", "q", false}, {"a/app", "../vendor/a", "vendor/a", false}, {"app", "vendor", "vendor", false}, {"app", "target", "t", false},
		{"app", "target/debug", "target/debug", true}, {"a/node_modules", "../node_modules", "node_modules", true}, {"node_modules/a", "../packages/a", "packages/a", true},
		{"node_modules/a", ".pnpm/a/node_modules/a", "node_modules/.pnpm/a/node_modules/a", true}, {"a/vendor", "../vendor", "vendor", true}, {"app", "src", "src", true},
	} {
		assert.Equal(t, c.free, p.Link(c.rel, c.text, c.target).Allow, c)
	}
}
