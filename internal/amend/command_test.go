package amend

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
)

// agentOf returns the base of an agent a with the keys.
func agentOf(t *testing.T, keys string) config.Paths {
	t.Helper()
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d/a.md"), []byte("---\nname: a\n"+keys+"\n---\n"), 0o644))
	p, err := config.Paths{Base: base}.Complete()
	require.NoError(t, err)
	return p
}

// command returns the command alone.
func command(p config.Paths, known *definitions.Set, id scope.ID, kind Kind, name string) string {
	line, _ := Command(p, known, id, kind, name)
	return line
}

// names returns names that an agent may give to its files: of characters that patterns and shells read as more than themselves.
func names() []string {
	all := []string{
		"**", "*", "?", "docs/**", "docs/*", "docs/other", "docs/a", "d*cs/a", "[a]", "[!a]", "[^b]", "a", "b", "{a,b}", `\a`, `\*`, `*\`, `\\`, `a\`, `[`, `]`, `{`, `}`,
		"$(a)", "`a`", "a b", "a'b", `a"b`, "!a", "~", "~/a", "-a", "--all", "#a", "a;b", "a|b", "a&b", ">a", "=a", "a\nb", "\x1b[2J", "ä", "a\xff", "\ufffd", "npm", "bash",
		"example.com", "a:8443", "http:a", "...",
	}
	const characters = "ab*?[]{}\\,!^-/ '\"$`~=."
	random := rand.New(rand.NewPCG(1, 2))
	for range 150 {
		var name strings.Builder
		for range 1 + random.IntN(6) {
			name.WriteByte(characters[random.IntN(len(characters))])
		}
		if rel := filepath.Clean(name.String()); filepath.IsLocal(rel) && rel != "." {
			all = append(all, rel)
		}
	}
	return all
}

// TestCommandNamesOne: the command that allows a file which an agent has named allows that file, what is below it, and no other.
// Not every name has a command; those of patterns have one.
func TestCommandNamesOne(t *testing.T) {
	t.Parallel()
	p, all := agentOf(t, "view: {access: read}"), names()
	known := definitions.Read(p, nil)
	for _, name := range all {
		line, _ := Command(p, known, "a", Path, name, "--dir", "/a b")
		if line == "" {
			assert.False(t, strings.ContainsAny(name, "*?[]{}\\") && strings.Trim(name, "*?[]{}\\ab/") == "", "%q has no command", name)
			continue
		}
		words := wordsOf(t, line)
		require.Equal(t, []string{"scopefs", "allow"}, words[:2], line)
		require.Equal(t, []string{"--dir", "/a b"}, words[len(words)-2:], line)
		d, err := Open(p, "a")
		require.NoError(t, err)
		change := Change{Name: words[len(words)-3], Access: scope.Write}
		if len(words) > 5 {
			require.Equal(t, "--path", words[2], line)
			change.Kind = Path
		}
		_, err = d.Allow(change)
		require.NoError(t, err, line)
		policy, err := scope.Compile(d.agent.View.PolicySpec())
		require.NoError(t, err)
		for _, other := range all {
			below := other == name || strings.HasPrefix(other, name+"/")
			assert.Equal(t, below, policy.File(scope.OpCreate, other).Allow, "%s, the command of %q: %q", line, name, other)
		}
	}
}

// wordsOf returns what a shell makes of a line.
func wordsOf(t *testing.T, line string) []string {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", `printf '%s\0' `+line)
	cmd.Dir = t.TempDir()
	out, err := cmd.Output()
	require.NoError(t, err, line)
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

// TestCommandOfPattern: an agent calls a tool or connects to a host by a name that is a pattern. No command names it.
func TestCommandOfPattern(t *testing.T) {
	t.Parallel()
	p := agentOf(t, "mcp_servers: {s: {command: x}}\npolicy: {tools: {allowed: [bash]}}\nnetwork: {allow: [one.example]}")
	known := definitions.Read(p, nil)
	assert.Equal(t, "scopefs allow mcp:s:t", command(p, known, "a", Tool, "mcp:s:t"))
	assert.Equal(t, "scopefs allow two.example", command(p, known, "a", Host, "two.example"))
	for kind, names := range map[Kind][]string{Tool: {"*", "mcp:s:*", "mcp:*:*", "r*"}, Host: {"*", "*.example", "*.two.example", "*:8443"}} {
		for _, name := range names {
			assert.Empty(t, command(p, known, "a", kind, name), name)
		}
	}
}

// TestPatternOrFile: an agent gives a file the name of a pattern that the operator writes. The operator says which is meant.
func TestPatternOrFile(t *testing.T) {
	t.Parallel()
	p := agentOf(t, "")
	dir := filepath.Join(p.Base, "agents/a/docs")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for _, name := range []string{"**", `\*\*`} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
		for _, do := range []func(*Draft, Change) (string, error){(*Draft).Deny, (*Draft).Allow} {
			d, err := Open(p, "a")
			require.NoError(t, err)
			_, err = do(d, Change{Name: "docs/" + name, Access: scope.Hide})
			if assert.Error(t, err, name) {
				assert.Contains(t, err.Error(), "is a pattern, and a file has this name: write "+map[string]string{
					"**": `'docs/\*\*' for the file`, `\*\*`: `'docs/\\\*\\\*' for the file`}[name])
			}
		}
		require.NoError(t, os.Remove(filepath.Join(dir, name)))
		d, err := Open(p, "a")
		require.NoError(t, err)
		_, err = d.Deny(Change{Name: "docs/" + name, Access: scope.Hide})
		assert.NoError(t, err, name)
	}
}

// TestSaidIsPrintable: what allow and deny say of a path goes to a terminal, and an agent may have chosen the name.
func TestSaidIsPrintable(t *testing.T) {
	t.Parallel()
	p := agentOf(t, "view: {access: write}")
	for _, name := range []string{"e\x1bcx", "new\nline", "\u202eab"} {
		d, err := Open(p, "a")
		require.NoError(t, err)
		denied, err := d.Deny(Change{Name: name, Kind: Path, Access: scope.Read})
		require.NoError(t, err)
		again, err := d.Deny(Change{Name: name, Kind: Path, Access: scope.Read})
		require.NoError(t, err)
		allowed, err := d.Allow(Change{Name: name, Kind: Path, Access: scope.Write, RemoveDeny: true})
		require.NoError(t, err)
		for _, said := range []string{denied, again, allowed} {
			assert.Equal(t, printable.Text(said), said)
		}
	}
}

// TestAllowInRoot: allow of a path of a root names the root, its access and the file to edit.
func TestAllowInRoot(t *testing.T) {
	t.Parallel()
	p := agentOf(t, "dir: /p/own\nview: {roots: [{dir: /p/lib, access: read}, {dir: /p/repo/.git, worktree: own}]}")
	d, err := Open(p, "a")
	require.NoError(t, err)
	file := " of it in view: {roots} of " + filepath.Join(p.Base, "agents.d/a.md")
	for name, want := range map[string]string{
		"../lib":             `"/p/lib" is in the root /p/lib, with access: read: edit access or paths` + file,
		"/p/lib/x":           `"/p/lib/x" is in the root /p/lib, with access: read: edit access or paths` + file,
		"../repo/.git/hooks": `where git's rules for a linked worktree hold: edit access or paths` + file,
		"../library":         "is not in the view of /p/own",
	} {
		_, err := d.Allow(Change{Name: name, Kind: Path})
		assert.ErrorContains(t, err, want, name)
	}
}

// TestAllowOwnAddress: allowing this host, or an address that is not public, by its name alone writes the address, without which the rule
// would reach nothing.
func TestAllowOwnAddress(t *testing.T) {
	for name, rule := range map[string]string{
		"localhost:22":    "{host: localhost, ports: [22], address: 127.0.0.1}",
		"127.0.0.1:22":    "{host: 127.0.0.1, ports: [22], address: 127.0.0.1}",
		"10.0.0.5":        "{host: 10.0.0.5, address: 10.0.0.5}",
		"192.0.2.7:22":    "{host: 192.0.2.7, ports: [22]}",
		"host.example:22": "{host: host.example, ports: [22]}",
	} {
		d, err := Open(agentOf(t, "description: x"), "a")
		require.NoError(t, err)
		said, err := d.Allow(Change{Name: name})
		require.NoError(t, err, name)
		_, after := d.Changes()
		assert.Contains(t, string(after), "network: {allow: ["+rule+"]}\n", said)
	}
	d, err := Open(agentOf(t, "network: {allow: [{host: localhost, ports: [22]}]}"), "a")
	require.NoError(t, err)
	_, err = d.Allow(Change{Name: "localhost:22"})
	assert.ErrorContains(t, err, "write address: 127.0.0.1 into its rule in ")
}
