package clients

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var server = Server{Command: "/usr/bin/scopefs", Args: []string{"--base", `/srv/a "b"`, "mcp", "--agent", "x"}}

func put(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, []byte(text), 0o640))
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// TestInstallKeeps: other entries keep their form and order, and Undo restores every byte
// and mode.
func TestInstallKeeps(t *testing.T) {
	i := Installation{"claude", t.TempDir(), t.TempDir()}
	settings := filepath.Join(i.Dir, ".claude", "settings.json")
	const had = "{ \"z\": 1,\n  \"permissions\": {\"deny\": [\"Bash\", \"WebFetch\"]}, \"a\": [ ] }"
	put(t, settings, had)
	for range 2 { // the second replaces the first
		all, err := i.Install(server)
		require.NoError(t, err)
		require.Len(t, all, 2)
	}
	text := read(t, settings)
	assert.Contains(t, text, "{ \"z\": 1,\n  \"permissions\": {\"deny\": [\"Bash\", \"WebFetch\"")
	assert.JSONEq(t, `{"z": 1, "a": [], "enabledMcpjsonServers": ["scopefs"], "permissions": {"allow": ["mcp__scopefs"],
		"deny": ["Bash", "WebFetch", "Read", "Edit", "Write", "NotebookEdit", "Glob", "Grep"]}}`, text)
	assert.JSONEq(t, `{"mcpServers": {"scopefs": {"command": "/usr/bin/scopefs", "args": ["--base", "/srv/a \"b\"", "mcp", "--agent", "x"]}}}`,
		read(t, filepath.Join(i.Dir, ".mcp.json")))
	_, err := i.Undo()
	require.NoError(t, err)
	assert.Equal(t, had, read(t, settings))
	info, err := os.Stat(settings)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o640), info.Mode().Perm())
	assert.NoFileExists(t, filepath.Join(i.Dir, ".mcp.json"))
	_, err = i.Undo()
	assert.ErrorIs(t, err, fs.ErrNotExist)
	left, err := os.ReadDir(i.State)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// TestInstallRefuses: an error changes no file.
func TestInstallRefuses(t *testing.T) {
	for name, c := range map[string]struct{ program, file, text, want string }{
		"comments":    {"opencode", "opencode.json", "{ // mine\n}", "opencode.json: is no JSON object: correct it, or remove its comments"},
		"a list":      {"gemini", ".gemini/settings.json", "[]", "is no JSON object"},
		"a text":      {"gemini", ".gemini/settings.json", `{"tools": "all"}`, "tools is no object: correct it"},
		"no list":     {"claude", ".claude/settings.json", `{"permissions": {"deny": {}}}`, "permissions.deny is no list: correct it"},
		"a table":     {"codex", ".codex/config.toml", "[features]\nx = true\n", "has [features] already: add these settings by hand"},
		"a directory": {"opencode", "opencode.json/x", "", "opencode.json is no regular file: replace it by one"},
	} {
		t.Run(name, func(t *testing.T) {
			i := Installation{c.program, t.TempDir(), t.TempDir()}
			put(t, filepath.Join(i.Dir, c.file), c.text)
			_, err := i.Install(server)
			require.ErrorContains(t, err, c.want)
			assert.Equal(t, c.text, read(t, filepath.Join(i.Dir, c.file)))
			assert.NoFileExists(t, filepath.Join(i.Dir, ".mcp.json"))
			_, err = i.Undo()
			assert.ErrorIs(t, err, fs.ErrNotExist)
		})
	}
}

// TestInstallBeneath: a link that an agent has made leads no settings out of the directory.
func TestInstallBeneath(t *testing.T) {
	outside := t.TempDir()
	put(t, filepath.Join(outside, "settings.json"), "{}")
	for _, link := range [][3]string{{outside, ".claude", ".claude is no directory"}, {filepath.Join(outside, "settings.json"), ".mcp.json", "path escapes from parent"}} {
		i := Installation{"claude", t.TempDir(), t.TempDir()}
		require.NoError(t, os.Symlink(link[0], filepath.Join(i.Dir, link[1])))
		_, err := i.Install(server)
		assert.ErrorContains(t, err, link[2])
	}
	inside := Installation{"claude", t.TempDir(), t.TempDir()}
	put(t, filepath.Join(inside.Dir, "other.json"), "{}")
	require.NoError(t, os.Symlink("other.json", filepath.Join(inside.Dir, ".mcp.json")))
	_, err := inside.Install(server)
	assert.ErrorContains(t, err, "is no regular file")
	assert.Equal(t, "{}", read(t, filepath.Join(inside.Dir, "other.json")))
	assert.Equal(t, "{}", read(t, filepath.Join(outside, "settings.json")))
}

// TestInstallWhereAgentsWork: an agent that may not write a file cannot have the operator
// write it, and neither hangs the operator nor fills the memory.
func TestInstallWhereAgentsWork(t *testing.T) {
	made := func(make func(dir string) error) (Installation, error) {
		i := Installation{"claude", t.TempDir(), t.TempDir()}
		put(t, filepath.Join(i.Dir, "closed", "settings.json"), `{"mine": 1}`)
		require.NoError(t, make(i.Dir))
		_, err := i.Install(server)
		assert.Equal(t, `{"mine": 1}`, read(t, filepath.Join(i.Dir, "closed", "settings.json")))
		return i, err
	}
	_, err := made(func(dir string) error { return os.Symlink("closed", filepath.Join(dir, ".claude")) })
	assert.ErrorContains(t, err, ".claude is no directory: replace it by one")
	_, err = made(func(dir string) error { return unix.Mkfifo(filepath.Join(dir, ".mcp.json"), 0o600) })
	assert.ErrorContains(t, err, ".mcp.json is no regular file: replace it by one")
	_, err = made(func(dir string) error {
		put(t, filepath.Join(dir, ".mcp.json"), "{}")
		return os.Truncate(filepath.Join(dir, ".mcp.json"), 1<<40)
	})
	assert.ErrorContains(t, err, ".mcp.json is larger than 1048576 bytes: shorten it")
}

// TestUndoChanged: Undo does not overwrite what was changed since.
func TestUndoChanged(t *testing.T) {
	i := Installation{"opencode", t.TempDir(), t.TempDir()}
	_, err := i.Install(server)
	require.NoError(t, err)
	name := filepath.Join(i.Dir, "opencode.json")
	put(t, name, `{"theme": "dark"}`)
	_, err = i.Undo()
	require.ErrorContains(t, err, "has changed since: remove its entries for scopefs by hand, and then delete "+i.path())
	_, err = i.Install(server)
	require.ErrorContains(t, err, "has changed since")
	assert.JSONEq(t, `{"theme": "dark"}`, read(t, name))
}

// TestTOML: Codex's settings stand where TOML wants them.
func TestTOML(t *testing.T) {
	text, err := inCodex([]byte("model = \"x\"\n[tui]\na = 1"), Server{Command: "/a\"b\\c\n", Args: []string{"mcp"}})
	require.NoError(t, err)
	assert.Equal(t, `sandbox_mode = "read-only" # of what Codex itself would run
model = "x"
[tui]
a = 1

[mcp_servers.scopefs]
command = "/a\"b\\c\u000A"
args = ["mcp"]
default_tools_approval_mode = "approve"

[features]
shell_tool = false
view_image = false
`, string(text))
}
