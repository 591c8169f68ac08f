package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
)

func TestLoad(t *testing.T) {
	t.Setenv("SCOPEFS_TEST_KEY", "key")
	cases := map[string]struct {
		text string
		want agents.Host
		err  string // after the file's name and a colon
	}{
		"nothing": {"", agents.Host{}, ""},
		"all": {"primary: boss\nbase_tools: [bash]\nmemory: true\nmcp_servers:\n  s: {command: x, args: [\"${SCOPEFS_TEST_KEY}\"], env: {A: \"$${A}\"}, cwd: d}\n",
			agents.Host{Primary: "boss", BaseTools: []string{"bash"}, Memory: true, Servers: agents.Servers{"s": {Command: "x", Args: []string{"key"}, Env: map[string]string{"A": "${A}"}, Cwd: "d", From: "scopefs.yaml"}}}, ""},
		"no base tools":         {"base_tools: []", agents.Host{BaseTools: []string{}}, ""},
		"unknown key":           {"primry: a", agents.Host{}, `1: unknown key "primry": did you mean primary`},
		"unknown below":         {"sandbox:\n  expos: []", agents.Host{}, `2: unknown key "expos": did you mean expose`},
		"bad id":                {"primary: Boss", agents.Host{}, `1: primary: invalid agent id "Boss"`},
		"no switch":             {"memory: maybe", agents.Host{}, "1: memory: is a text: want true or false"},
		"base tool":             {"base_tools:\n- bash\n- bsh", agents.Host{}, `3: base_tools: "bsh" matches no tool: want some of read_file, `},
		"server's tool":         {"base_tools: [\"mcp:a:b\"]", agents.Host{}, `1: base_tools: "mcp:a:b" matches no tool: want`},
		"tool twice":            {"base_tools: [bash, builtin:bash]", agents.Host{}, `1: base_tools: "builtin:bash" is here twice, first in line 1: remove one`},
		"server's key":          {"mcp_servers:\n  s: {command: x, visibility: public}", agents.Host{}, `2: mcp_servers: s: unknown key "visibility": want one of args, command, cwd, env`},
		"server twice":          {"mcp_servers:\n  s: {command: x}\n  s: {command: x}", agents.Host{}, `3: "s" is here twice, first in line 2: remove one`},
		"no command":            {"mcp_servers: {s: {args: [x]}}", agents.Host{}, `1: mcp_servers: "s" has no command: add one`},
		"unset":                 {"mcp_servers: {s: {command: \"${SCOPEFS_TEST_UNSET}\"}}", agents.Host{}, "1: mcp_servers: s: command: names ${SCOPEFS_TEST_UNSET}, which is not set: set it in the daemon's environment, or remove it"},
		"servers no keys":       {"mcp_servers: [s]", agents.Host{}, "1: mcp_servers: is a list: want keys with values"},
		"no YAML":               {"a: [", agents.Host{}, "is not YAML, "},
		"log's time":            {"log: {keep: 30}", agents.Host{}, "1: keep: is a number"},
		"log's size":            {"log: {size: 1KiB}", agents.Host{}, `1: size: "1KiB" is too little for a log: want 1MiB or more`},
		"log's anchor":          {"log: {anchors: [{name: x, command: [cat]}]}", agents.Host{}, `"cat" is relative: write an absolute path`},
		"anchors twice":         {"log: {anchors: [{name: x, command: [/a]}, {name: x, command: [/a]}]}", agents.Host{}, "anchors: x is there twice"},
		"anchor's name":         {"log: {anchors: [{name: ../x, command: [/a]}]}", agents.Host{}, `anchors: name "../x"`},
		"anchor of two kinds":   {"log: {anchors: [{name: x, command: [/a], file: /b}]}", agents.Host{}, "write one of command, witness, file, syslog and git"},
		"anchor of none":        {"log: {anchors: [{name: x, every: 1m}]}", agents.Host{}, "write one of command, witness, file, syslog and git"},
		"anchor's syslog":       {"log: {anchors: [{name: x, syslog: 'http://siem.example'}]}", agents.Host{}, `anchors: x: syslog: "http://siem.example" is no address: write tcp://HOST:PORT`},
		"anchor's socket":       {"log: {anchors: [{name: x, syslog: 'unix://log'}]}", agents.Host{}, `syslog: "unix://log" is no address: write unix:///dev/log`},
		"anchor's syslog user":  {"log: {anchors: [{name: x, syslog: 'tls://siem.example', credential: {env: K}}]}", agents.Host{}, "branch, user and credential are of git: remove them"},
		"anchor's syslog fine":  {"log: {anchors: [{name: x, syslog: 'unix:///dev/log'}, {name: y, syslog: 'tls://siem.example'}]}", agents.Host{}, ""},
		"anchor's file":         {"log: {anchors: [{name: x, file: heads}]}", agents.Host{}, "is no absolute path of a file"},
		"anchor's file up":      {"log: {anchors: [{name: x, file: /mnt/../var/heads}]}", agents.Host{}, "is no absolute path of a file"},
		"anchor's git":          {"log: {anchors: [{name: x, git: 'ext::sh -c x'}]}", agents.Host{}, "git: is no address"},
		"anchor's git option":   {"log: {anchors: [{name: x, git: 'ssh://-oProxyCommand=x/y'}]}", agents.Host{}, "git: is no address"},
		"anchor's git path":     {"log: {anchors: [{name: x, git: /srv/x.git}]}", agents.Host{}, "git: is no address"},
		"anchor's git password": {"log: {anchors: [{name: x, git: 'https://u:p@example.com/x'}]}", agents.Host{}, "git: the address has a user"},
		"anchor's git in clear": {"log: {anchors: [{name: x, git: 'http://example.com/x'}]}", agents.Host{}, "which only loopback may be"},
		"anchor's branch":       {"log: {anchors: [{name: x, git: 'git@example.com:x.git', branch: -f}]}", agents.Host{}, "is no name of a branch"},
		"anchor's git fine":     {"log: {anchors: [{name: x, git: 'git@example.com:x.git', branch: hosts/a}]}", agents.Host{}, ""},
		"anchor's key":          {"log: {anchors: [{name: x, file: /b, key: k}]}", agents.Host{}, "key is of a witness"},
		"log":                   {"log: {keep: 30d, size: 10GiB, agent_day: 1MiB}", agents.Host{}, ""},
		"runner":                {"runner: claude -p", agents.Host{}, "1: runner: is a text: want a list, [] for none"},
		"empty runner":          {"runner: ['']", agents.Host{}, "1: runner: names no program: write one"},
		"runner not here":       {"sandbox: {expose: [/a]}\nrunner:\n- gone", agents.Host{}, "3: runner: gone [/a]"},
		"shown":                 {"sandbox:\n  expose:\n  - BASE/extensions.d", agents.Host{}, `extensions.d" would show`},
		"skills shown":          {"sandbox:\n  expose:\n  - BASE/skills/x", agents.Host{}, `/skills to agents`},
		"not exposable":         {"sandbox:\n  expose:\n  - /a\n  - /b", agents.Host{}, "4: expose: not /b"},
		"env":                   {"sandbox: {env: {A: 1}}", agents.Host{}, "1: env: A is a number: want a text, in quotes where need be"},
		"runner's env":          {"delegation: {env: {A: \"${SCOPEFS_TEST_UNSET}\"}}", agents.Host{}, "1: env: A names ${SCOPEFS_TEST_UNSET}, which is not set: set it in the daemon's environment, or remove it"},
		"env's name":            {"sandbox: {env: {A=: x}}", agents.Host{}, `1: env: "A=" is no name of a variable: want letters`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(base, "scopefs.yaml"), []byte(strings.ReplaceAll(c.text, "BASE", base)), 0o644))
			require.NoError(t, os.Mkdir(filepath.Join(base, "extensions.d"), 0o755))
			p, err := Paths{Base: base}.Complete()
			require.NoError(t, err)
			h, err := Load(p, Checks{
				Tools: catalog.Tools{{Name: "read_file"}, {Name: "bash"}},
				Expose: func(path string, _ bool) error {
					if path == "/b" {
						return errors.New("not /b")
					}
					return nil
				},
				Runner: func(h Settings) error { return fmt.Errorf("%s %v", h.Runner[0], h.Expose) },
			})
			if c.err != "" {
				require.ErrorContains(t, err, "scopefs.yaml:")
				assert.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.NotNil(t, h.Foreign)
			h.Tools, h.Foreign = nil, nil
			assert.Equal(t, c.want, h.Host)
		})
	}
}

// TestProjectRefused: no project has the definitions of scopefs in it, or is among them.
func TestProjectRefused(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("XDG_DATA_HOME", "")
	t.Setenv("SCOPEFS_BASE", filepath.Join(home, "mine/base"))
	for _, dir := range []string{"old/[a]/deep/base/agents.d", "old/[a]/deep/base/state/audit", "src/project/agents.d"} {
		require.NoError(t, os.MkdirAll(filepath.Join(home, dir), 0o755))
	}
	for dir, want := range map[string]string{
		".":                               "holds your home directory",
		".local":                          "where scopefs has definitions",
		".local/share":                    "where scopefs has definitions",
		".local/share/scopefs/agents.d":   "where scopefs has definitions",
		".local/state":                    "where scopefs has definitions",
		".local/state/scopefs/x/agents.d": "where scopefs has definitions",
		"old":                             "", // three levels above
		"old/[a]":                         "where scopefs has definitions",
		"old/[a]/deep/base/agents/notes":  "where scopefs has definitions",
		"mine":                            "where scopefs has definitions",
		"/etc":                            "part of the system",
		"/usr":                            "part of the system",
		"/usr/lib":                        "part of the system",
		"/home":                           "part of the system",
		".local/share/other":              "",
		"src/project":                     "",
	} {
		if filepath.IsAbs(dir) {
			p, err := ProjectOf(dir)
			require.NoError(t, err)
			assert.ErrorContains(t, p.Make(true), want, dir)
			continue
		}
		dir = filepath.Join(home, dir)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		p, err := ProjectOf(dir)
		require.NoError(t, err)
		if err = p.Make(true); want == "" {
			assert.NoError(t, err, dir)
			continue
		}
		assert.ErrorContains(t, err, want, dir)
		assert.False(t, p.Exists(), dir)
	}
}
