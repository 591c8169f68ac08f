package importer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/imports"
)

// TestDefinitionsWiden: an import names what it allows beyond the definition that it replaces, else beyond one without keys; names
// that the source chooses make no line of their own. What does not load is undecided.
func TestDefinitionsWiden(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
	write := func(name, text string) string {
		name = filepath.Join(base, name)
		require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
		return name
	}
	write("agents.d/old.md", "---\nname: old\ntools: [read_file]\nview: {access: read}\n---\n")
	write("agents.d/m.md", "---\nname: m\n---\n")
	imported := func(text string) []string {
		all, err := Definitions([]string{write("source.md", text)}, imports.Source{Format: imports.Scopes}, Options{To: filepath.Join(base, "agents.d"), Force: true})
		require.NoError(t, err)
		require.Len(t, all, 1)
		var out, err2 strings.Builder
		require.NoError(t, all[0].Print(&out, &err2))
		for _, line := range all[0].Widens {
			assert.Contains(t, err2.String(), "source.md: allows: "+line+"\n")
		}
		return all[0].Widens
	}
	assert.Contains(t, imported("---\nname: old\ntools: [read_file, bash]\n---\n"), "tools: bash: allowed; before: denied (tools: [read_file])")
	assert.Empty(t, imported("---\nname: old\ntools: [read_file, bash]\n---\n"), "now that is the definition before")
	assert.Empty(t, imported("---\nname: new\ntools: [read_file]\n---\n"))
	assert.Contains(t, imported("---\nname: newer\nmembers: [m]\nmcp_servers:\n  s: {command: \"x\\e[2J\\ny\"}\n---\n"), "members: gives tasks to m: allowed; before: denied (no members)")
	for _, line := range imported("---\nname: odd\nmcp_servers:\n  s: {command: \"x\\e[2J\\ny\"}\n---\n") {
		assert.NotContains(t, line, "\x1b")
		assert.NotContains(t, line, "\n")
	}
	lines := imported("---\nname: broken\nmembers: [nobody]\n---\n")
	require.Len(t, lines, 1)
	assert.Contains(t, lines[0], "undecided: all of it: does not load yet: ")
}
