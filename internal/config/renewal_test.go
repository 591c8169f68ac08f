package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/scope/agents"
)

// TestRenewed: a directory that was made anew at the path of a project is another project. It begins with what all rules of the
// last one take away, with nothing that they allow, and by the name of the directory only. The old one has its own name.
func TestRenewed(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	dir := filepath.Join(t.TempDir(), "hello")
	remake := func() Project {
		require.NoError(t, os.RemoveAll(dir))
		require.NoError(t, os.Mkdir(dir, 0o700))
		p, err := ProjectOf(dir)
		require.NoError(t, err)
		return p
	}
	first := remake()
	require.Nil(t, first.Before)
	require.NoError(t, Make(first, false))
	again, err := ProjectOf(dir)
	require.NoError(t, err)
	assert.True(t, again.Exists())
	assert.Equal(t, first.ID, again.ID)

	second := remake()
	require.NotNil(t, second.Before, "the file system of TMPDIR keeps no birth times")
	assert.Equal(t, first.ID, second.Before.ID)
	assert.False(t, second.Exists())
	assert.NotEqual(t, first.Base, second.Base)
	assert.Equal(t, first.Short(), second.Short())
	found, ok := FindProject(filepath.Join(dir))
	assert.True(t, ok, "a directory above must not be found in its place")
	assert.Equal(t, second.ID, found.ID)
	require.NoError(t, Make(second, true))
	text, err := os.ReadFile(second.Definition())
	require.NoError(t, err)
	assert.Equal(t, second.Text(true), string(text), "of an unedited definition, but with secrets")

	require.NoError(t, os.WriteFile(second.Definition(), []byte(`---
name: `+string(second.ID)+`
dir: "`+dir+`"
protect: [git-hooks]
network: {presets: [npm], allow: [a.example], deny: [bad.example], limit: {bytes: 1GiB/day}}
view: {paths: {"private/**": hide, "docs/**": read}, secrets: hide, changes: held, xattrs: true}
env: {TOKEN: x}
mcp_servers: {git: {command: git-mcp}}
tools: [read_file, "mcp:git:*", bash]
policy: {tools: {exclude: ["mcp:git:push"], ask: [bash]}, commit: allow}
skills: [deploy]
limits: {memory: 1GiB}
---
You are careful.
`), 0o600))
	require.NoError(t, os.WriteFile(second.Trusted(), []byte(`{env: {A: b}, network: {allow: [c.example], deny: [d.example]}, view: {paths: {".env": hide}}, protect: [build], tools: [bash]}`), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(second.Base, "protect.d"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(second.Base, "protect.d", "own.yaml"), []byte("paths: [x]\n"), 0o600))

	third := remake()
	require.NotNil(t, third.Before)
	assert.Equal(t, second.ID, third.Before.ID, "the last one's rules hold, not the first one's")
	require.NoError(t, Make(third, true))
	text, err = os.ReadFile(third.Definition())
	require.NoError(t, err)
	assert.Equal(t, `---
name: `+string(third.ID)+`
dir: "`+dir+`"
protect: ["*"]
sandbox: {home: lasting}
view:
  secrets: hide
  changes: held
  paths: {"private/**": hide, "docs/**": read}
limits: {memory: 1GiB}
network:
  deny: [bad.example]
  limit: {bytes: 1GiB/day}
tools: [read_file, bash]
policy:
  tools: {exclude: [], ask: [bash]}
skills: []
---
You are careful.
`, string(text))
	text, err = os.ReadFile(third.Trusted())
	require.NoError(t, err)
	assert.Equal(t, "protect: [build]\nview:\n  paths: {\".env\": hide}\nnetwork:\n  deny: [d.example]\ntools: [bash]\n", string(text))
	assert.FileExists(t, filepath.Join(third.Base, "protect.d", "own.yaml"))

	finder := paths.Finder{DirOf: agents.DirOf}
	for name, gone := range map[string]bool{string(first.ID): true, string(second.ID): true, string(third.ID): false, "hello": false} {
		found, err := finder.Projects(name)
		require.NoError(t, err)
		if assert.Len(t, found, 1, name) {
			assert.Equal(t, gone, found[0].Gone, name)
		}
	}
}
