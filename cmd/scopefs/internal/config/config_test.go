package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

func TestLoad(t *testing.T) {
	t.Setenv("SCOPEFS_TEST_KEY", "key")
	cases := map[string]struct {
		text string
		want scope.Host
		err  string // after the file's name
	}{
		"nothing": {"", scope.Host{}, ""},
		"all": {"primary: boss\nbase_tools: [bash]\nmemory: true\nmcp_servers:\n  s: {command: x, args: [\"${SCOPEFS_TEST_KEY}\"], env: {A: \"$${A}\"}, cwd: d}\n",
			scope.Host{Primary: "boss", BaseTools: []string{"bash"}, Memory: true, Servers: scope.Servers{"s": {Command: "x", Args: []string{"key"}, Env: map[string]string{"A": "${A}"}, Cwd: "d", From: "scopefs.yaml"}}}, ""},
		"no base tools":   {"base_tools: []", scope.Host{BaseTools: []string{}}, ""},
		"unknown key":     {"primry: a", scope.Host{}, "line 1: field primry not found"},
		"bad id":          {"primary: Boss", scope.Host{}, `invalid agent id "Boss"`},
		"base tool":       {"base_tools: [bsh]", scope.Host{}, `base_tools: "bsh" matches no tool: want some of read_file, `},
		"server's key":    {"mcp_servers:\n  s: {command: x, visibility: public}", scope.Host{}, `line 2: mcp_servers: s: unknown key "visibility": want one of args, command, cwd, env`},
		"server twice":    {"mcp_servers:\n  s: {command: x}\n  s: {command: x}", scope.Host{}, `line 3: "s" is here twice, first in line 2: remove one`},
		"no command":      {"mcp_servers: {s: {args: [x]}}", scope.Host{}, `line 1: mcp_servers: "s" has no command: add one`},
		"unset":           {"mcp_servers: {s: {command: \"${SCOPEFS_TEST_UNSET}\"}}", scope.Host{}, "line 1: mcp_servers: s: command: ${SCOPEFS_TEST_UNSET} is not set: set it in the daemon's environment, or remove it"},
		"servers no keys": {"mcp_servers: [s]", scope.Host{}, "line 1: mcp_servers: is a list: want keys with values"},
		"shown":           {"sandbox: {expose: [BASE/extensions.d]}", scope.Host{}, `extensions.d": it would show`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(base, "scopefs.yaml"), []byte(strings.ReplaceAll(c.text, "BASE", base)), 0o644))
			require.NoError(t, os.Mkdir(filepath.Join(base, "extensions.d"), 0o755))
			p, err := Paths{Base: base}.Complete()
			require.NoError(t, err)
			h, err := Load(p)
			if c.err != "" {
				require.ErrorContains(t, err, "scopefs.yaml: ")
				assert.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, h.Scope())
		})
	}
}
