package cli

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSharedDaemonEnvironment: a run that would share the daemon of another one has no value of that one's environment.
func TestSharedDaemonEnvironment(t *testing.T) {
	layered(t, func(t *testing.T, m *mounted, daemon bool) {
		if daemon {
			return // it has one environment
		}
		text, err := os.ReadFile(m.definition())
		require.NoError(t, err)
		named := strings.Replace(string(text), "---\n", "---\nenv: {TOKEN: '${PROJECT_TOKEN}'}\n", 1)
		require.NoError(t, os.WriteFile(m.definition(), []byte(named), 0o644))
		command := m.command
		with := func(variables ...string) {
			m.command = func(args ...string) *exec.Cmd {
				cmd := command(args...)
				cmd.Env = slices.Concat(cmd.Environ(), variables)
				return cmd
			}
		}
		with("PROJECT_TOKEN=one", "OPENAI_API_KEY=one")
		first := m.pausing(nil, "echo began; read x; echo $TOKEN")
		for _, variables := range [][]string{{"PROJECT_TOKEN=two"}, {}, {"PROJECT_TOKEN=one", "OPENAI_API_KEY=two"}} {
			with(variables...)
			o := m.run([]string{"-q"}, "echo $TOKEN")
			assert.Equal(t, 125, o.Code, variables)
			assert.Empty(t, o.Stdout, variables)
			assert.Regexp(t, "another command of project-.* runs, with another value of (PROJECT_TOKEN|OPENAI_API_KEY) in its environment", o.Stderr)
		}
		with("PROJECT_TOKEN=one", "OTHER=two")
		assert.Equal(t, "one\n", m.run([]string{"-q"}, "echo $TOKEN").Stdout, "variables that nothing names may differ")
		assert.Equal(t, "one\n", first())
		with("PROJECT_TOKEN=two")
		assert.Equal(t, "two\n", m.run([]string{"-q"}, "echo $TOKEN").Stdout)
	})
}
