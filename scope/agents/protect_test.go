package agents

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// TestProtect: each list is read, has a description, and makes a policy. Their patterns
// match in every directory and so prevent no move of one that is not protected.
func TestProtect(t *testing.T) {
	for _, p := range protections() {
		assert.NotEmpty(t, p.description, p.name)
		def, err := ParseDefinition("a.md", []byte("---\nname: a\nprotect: ["+p.name+"]\n---\n"))
		require.NoError(t, err, p.name)
		policy, err := scope.Compile(def.View.PolicySpec())
		require.NoError(t, err, p.name)
		assert.False(t, policy.Uniform(), p.name)
		assert.True(t, policy.Move("a/b").Allow, p.name)
		for _, pattern := range p.paths {
			assert.Regexp(t, `^\*\*/[^/]+$`, pattern)
		}
	}
	def, err := ParseDefinition("a.md", []byte("---\nname: a\nprotect: ['*', editor]\n---\n"))
	require.NoError(t, err)
	assert.Len(t, def.View.Protect, 6)
	assert.True(t, def.View.Git.Hooks)
	assert.Contains(t, def.View.Git.Config, "core.bare")
}

// TestOwnProtect: the operator adds lists in protect.d, by name or with "*". No list of scopefs
// is replaced, and a definition whose list disappears, or breaks, does not lose it.
func TestOwnProtect(t *testing.T) {
	base := t.TempDir()
	define := func(protect string) {
		writeFile(t, base, "agents.d/a.md", "---\nname: a\nprotect: "+protect+"\n---\n")
	}
	readOnly := func(all *Snapshot, path string) bool {
		policy, err := scope.Compile(all.Agents["a"].View.PolicySpec())
		require.NoError(t, err)
		d := policy.File(scope.OpOpenWrite, path)
		assert.Equal(t, d.Allow, d.Kind != scope.KindProtect, d)
		return !d.Allow
	}
	define("[make]")
	_, errs := Load(base, Host{Tools: ours()})
	require.Len(t, errs, 1)
	assert.ErrorContains(t, errs[0], `agents.d/a.md:3: protect: "make" matches no list (there is editor, git-config, git-hooks, mcp, scopefs, shell): correct it, or create protect.d/make.yaml`)

	writeFile(t, base, "protect.d/make.yaml", "description: what make executes\npaths: ['**/Makefile']\n")
	all, errs := Load(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.True(t, readOnly(all, "d/Makefile"))
	assert.False(t, readOnly(all, ".vscode"))
	assert.True(t, later(all).Current(base, "a"))
	define("['*']")
	all, errs = all.Reload(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.True(t, readOnly(all, "Makefile"))
	assert.True(t, readOnly(all, ".vscode"))
	assert.False(t, readOnly(all, "justfile"))

	writeFile(t, base, "protect.d/make.yaml", "paths: ['**/Makefile', '**/justfile']\n")
	assert.False(t, later(all).Current(base, "a"))
	all, errs = all.Reload(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.True(t, readOnly(all, "justfile"))
	for text, want := range map[string]string{
		"paths: []\n":    "protect.d/make.yaml:1: protects nothing",
		"paths: ['[']\n": "protect.d/make.yaml:1: protect make: pattern",
		"paths: [a]\ngit_config: [core.fsmonitor]\n": `protect.d/make.yaml:2: unknown key "git_config"`,
	} {
		writeFile(t, base, "protect.d/make.yaml", text)
		now, errs := all.Reload(base, Host{Tools: ours()})
		require.Len(t, errs, 1)
		assert.ErrorContains(t, errs[0], want)
		assert.True(t, readOnly(now, "justfile"), "the last good list holds")
	}

	// Also one that has loaded before: without its list the agent could do more.
	define("[make]")
	writeFile(t, base, "protect.d/make.yaml", "paths: ['**/Makefile']\n")
	all, errs = Load(base, Host{Tools: ours()})
	require.Empty(t, errs)
	require.NoError(t, os.Remove(filepath.Join(base, "protect.d/make.yaml")))
	now, errs := all.Reload(base, Host{Tools: ours()})
	require.Len(t, errs, 1)
	assert.ErrorContains(t, errs[0], `protect: "make" matches no list`)
	assert.True(t, readOnly(now, "Makefile"))
	later, errs := Resume(all.Seen()).Reload(base, Host{Tools: ours()})
	require.Len(t, errs, 1)
	assert.Empty(t, later.Agents)

	define("['*']")
	writeFile(t, base, "protect.d/make.yaml", "paths: [\n")
	none, errs := Load(base, Host{Tools: ours()})
	require.Len(t, errs, 2)
	assert.ErrorContains(t, errs[1], `agents.d/a.md:3: protect: a list in protect.d does not load, and "*" is all of them: correct it`)
	assert.Empty(t, none.Agents)
	now, errs = all.Reload(base, Host{Tools: ours()})
	require.Len(t, errs, 1, "the last good list holds")
	assert.True(t, readOnly(now, "Makefile"))
	require.NoError(t, os.Remove(filepath.Join(base, "protect.d/make.yaml")))

	define("[editor]")
	writeFile(t, base, "protect.d/editor.yaml", "paths: [x]\n")
	_, errs = Load(base, Host{Tools: ours()})
	require.Len(t, errs, 1)
	assert.ErrorContains(t, errs[0], "protect.d/editor.yaml:1: has the name of a list of scopefs: give it another one")
}
