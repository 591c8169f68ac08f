package programs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope/hosts"
)

// TestPrograms: the programs of this package load, with presets that there are, and the
// operator's replace them.
func TestPrograms(t *testing.T) {
	base := t.TempDir()
	presets, errs := hosts.Presets(base, "")
	require.Empty(t, errs)
	for _, name := range Builtin() {
		p, err := Of(base, "", name)
		require.NoError(t, err)
		assert.NotEmpty(t, p.Description)
		assert.NotEmpty(t, p.Install)
		for _, network := range p.Networks {
			require.Contains(t, presets, network)
			assert.NotEmpty(t, presets[network].Credentials, network)
		}
	}
	require.NoError(t, os.Mkdir(filepath.Join(base, dir), 0o755))
	put := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(base, dir, name), []byte(text), 0o644))
	}
	const text = "command: my-claude\nargs: [--x]\nenv: {A: b}\nexpose: [/opt/x]\n"
	put("claude.yaml", text)
	p, err := Of(base, "", "claude")
	require.NoError(t, err)
	assert.Equal(t, &Program{Name: "claude", Command: "my-claude", File: "programs.d/claude.yaml", Args: []string{"--x"}, Env: map[string]string{"A": "b"}, Expose: []string{"/opt/x"}, Text: text}, p)
	all, errs := All(base, "")
	assert.Empty(t, errs)
	assert.Equal(t, p, all["claude"])
	assert.Len(t, all, len(Builtin()))
	for text, want := range map[string]string{
		"comand: x":       `programs.d/x.yaml:1: unknown key "comand"`,
		"command: bin/x":  "programs.d/x.yaml:1: command: \"bin/x\" is a path: write a name",
		"expose: [x]":     `"x" is relative: write an absolute path`,
		"env: {A B: c}":   `"A B" is no name of a variable`,
		"args: [1, {}]":   "args: an entry",
		"network: {a: b}": "network",
	} {
		put("x.yaml", text)
		_, err := Of(base, "", "x")
		assert.ErrorContains(t, err, want)
	}
	for _, name := range []string{"../agents.d/a", "", "nobody"} {
		_, err := Of(base, "", name)
		assert.ErrorContains(t, err, "there are claude, cline, codex, copilot, droid, gemini, opencode, qwen", name)
	}
}
