package report

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/printable"
)

// TestOwner: whoever begins a project in a directory of another user reads whose rules the agent has.
func TestOwner(t *testing.T) {
	p := &config.Project{}
	p.Dir, p.Base, p.ID = t.TempDir(), "/base", "p"
	assert.Empty(t, Owner(p))
	need.Root(t, "to give a directory away")
	require.NoError(t, os.Chown(p.Dir, 4711, -1))
	assert.Equal(t, p.Dir+" is of user 4711: the agent has the rules of /base/agents.d/p.md, and none that this user has written", Owner(p))
}

// TestApart: a new project below another one is shown with what its agent may do there and the other one's may not, by the
// definition, what the user trusted and the settings. A directory's name makes no line of a terminal.
func TestApart(t *testing.T) {
	home, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for name, value := range map[string]string{"HOME": home, "XDG_STATE_HOME": "", "XDG_CONFIG_HOME": "", "TMPDIR": filepath.Join(home, "tmp")} {
		t.Setenv(name, value)
	}
	sub := filepath.Join(home, "p/sub")
	require.NoError(t, os.MkdirAll(sub, 0o755))
	p, err := config.ProjectOf(filepath.Dir(sub))
	require.NoError(t, err)
	require.NoError(t, p.Make(true))
	at, err := config.ProjectAt(sub)
	require.NoError(t, err)
	require.NotNil(t, at.Above)
	lines := func() []string {
		text, err := Apart(&at)
		require.NoError(t, err)
		assert.Equal(t, printable.Lines(text), text)
		return append([]string{}, strings.Split(text, "\n    ")[1:]...)
	}
	assert.Empty(t, lines(), "of a definition that nobody has edited")

	made, err := os.ReadFile(p.Definition())
	require.NoError(t, err)
	write := func(keys, view, trusted string) {
		text := strings.Replace(strings.Replace(string(made), "name:", keys+"name:", 1), "view:\n", "view:\n"+view, 1)
		require.NoError(t, os.WriteFile(p.Definition(), []byte(text), 0o600))
		require.NoError(t, os.WriteFile(p.Trusted(), []byte(cmp.Or(trusted, "tools: ['*']\n")), 0o600))
	}
	for name, test := range map[string]struct {
		keys, view, trusted string
		want                []string
	}{
		"wider":     {"network: {allow: [a.example]}\nenv: {A: b}\n", "", "", []string{}},
		"elsewhere": {"", "  paths: {other: hide, \"*.md\": read}\n", "", []string{}},
		"paths": {"", "  paths: {\"*/secret/**\": hide, \"su{b,p}/x\": read}\n", "", []string{
			"view: paths can be read and changed, such as secret; before: */secret/**: hide",
			"view: paths can be read and changed, such as x; before: su{b,p}/x: read",
		}},
		"its directory": {"", "  paths: {\"s*\": read}\n", "", []string{"view: paths can be read and changed, such as x; before: s*: read"}},
		"read": {"", "  access: read\n", "", []string{
			"tools: write_file: allowed; before: denied (access: read)", "view: paths can be read and changed, such as x; before: access: read",
		}},
		"tools": {"policy: {tools: {ask: [bash]}}\n", "", "", []string{
			"tools: bash: allowed; before: allowed after approval (policy.tools.ask: bash)",
		}},
		"trusted": {"", "", "limits: {pids: 9}\n", []string{"limits: pids: no limit in place of 9"}},
		"changes": {"history: {age: 1d}\n", "", "", []string{"undecided: history.age: differs"}},
	} {
		write(test.keys, test.view, test.trusted)
		assert.Subset(t, lines(), test.want, name)
		assert.Equal(t, len(test.want) == 0, len(lines()) == 0, name)
	}
	write("", "", "")
	require.NoError(t, os.WriteFile(filepath.Join(p.Base, "scopefs.yaml"), []byte("delegation: {depth: 1}\n"), 0o600))
	assert.Equal(t, []string{"undecided: scopefs.yaml: delegation.depth is of that agent alone, and was not compared"}, lines())
	require.NoError(t, os.Remove(filepath.Join(p.Base, "scopefs.yaml")))

	// Lists of protect and presets of the project above are compared with what they do.
	for name, text := range map[string]string{
		"protect.d/mine.yaml": "description: x\npaths: ['sub/*.lock']\n", "presets.d/unused.yaml": "description: x\nallow: [u.example]\n",
		"presets.d/npm.yaml": "description: x\nallow: [n.example]\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(p.Base, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(p.Base, name), []byte(text), 0o600))
	}
	write("network: {presets: [npm]}\n", "", "")
	assert.Equal(t, []string{"view: paths can be read and changed, such as .lock; before: protect mine"}, lines())

	write("tools: [no-such-tool]\n", "", "")
	_, err = Apart(&at)
	assert.ErrorContains(t, err, "correct it, for its rules may not hold for a new agent")
}
