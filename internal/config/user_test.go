package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope/hosts"
)

// TestUser: a key of the base's scopefs.yaml replaces that of the user's. What it does not say stays, and no server or store
// is of both.
func TestUser(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, name := range []string{"XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"} {
		t.Setenv(name, "")
	}
	base := filepath.Join(home, ".local/state/scopefs/x")
	user := filepath.Join(home, ".config/scopefs")
	for _, dir := range []string{base, user} {
		require.NoError(t, os.MkdirAll(dir, 0o700))
	}
	load := func(users, own string) (Settings, error) {
		require.NoError(t, os.WriteFile(filepath.Join(user, "scopefs.yaml"), []byte(users), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(base, "scopefs.yaml"), []byte(own), 0o600))
		p, err := Paths{Base: base}.Complete()
		require.NoError(t, err)
		require.Equal(t, user, p.User)
		return Load(p, Checks{})
	}
	const users = `
delegation: {depth: 1, parallel: 2, network: {allow: [example.org]}, env: {A: a, B: b}}
log: {agent_day: 1MiB}
mcp_servers:
  s: {command: users, env: {TOKEN: secret}}
  t: {command: t}
stores:
  kv: {redis: "a:1", password: {env: A}, tls: true}
  services: {a: {url: "https://a.example", credential: {env: A}}}
sandbox: {expose: [/opt/a], env: {A: a}, home: lasting}
memory: true
runner: [users]
`
	h, err := load(users, `
delegation: {parallel: 3, network: none, env: {A: c}}
log: {keep: 2d}
mcp_servers:
  s: {command: own}
stores: {kv: {redis: "b:1"}, sql: {}}
sandbox: {expose: [], home: temporary}
`)
	require.NoError(t, err)
	assert.Equal(t, Tasks{Depth: 1, Parallel: 3, Network: hosts.Network{Kind: hosts.None}, Env: map[string]string{"A": "c"}, Input: RunnerText}, h.Tasks)
	assert.Equal(t, LogLimits{Keep: 48 * time.Hour, Size: logSize, AgentDay: 1 << 20}, h.Log)
	assert.Equal(t, "own", h.Servers["s"].Command)
	assert.Empty(t, h.Servers["s"].Env, "a secret of the user's server")
	assert.Equal(t, "scopefs.yaml", h.Servers["s"].From)
	assert.Equal(t, filepath.Join(user, "scopefs.yaml"), h.Servers["t"].From)
	assert.Equal(t, &KVStore{Redis: "b:1"}, h.Stores.KV, "a secret of the user's store")
	assert.Contains(t, h.Stores.Services, "a")
	assert.Empty(t, h.Expose)
	assert.Equal(t, map[string]string{"A": "a"}, h.Env)
	assert.EqualValues(t, "temporary", h.Keep.Home)
	assert.True(t, h.Memory)
	assert.Equal(t, []string{"users"}, h.Runner)
	assert.Equal(t, user, h.User)
	assert.Equal(t, At{filepath.Join(user, "scopefs.yaml"), 2}, h.From["delegation.depth"])
	assert.Equal(t, At{"scopefs.yaml", 2}, h.From["delegation.parallel"])

	// A comment changes nothing; a value does.
	for own, same := range map[string]bool{"memory: true": true, "# c\nmemory: true": true, "": true, "memory: false": false} {
		now, err := load("memory: true", own)
		require.NoError(t, err)
		before, err := load("memory: true", "")
		require.NoError(t, err)
		assert.Equal(t, same, now.Equal(before), own)
	}

	// Each file has its own errors.
	for _, c := range [][3]string{
		{"memory: true\nfoo: 1", "", user + "/scopefs.yaml:2: unknown key"},
		{"memory: true", "\nfoo: 1", "scopefs.yaml:2: unknown key"},
		{"primary: x", "", user + "/scopefs.yaml:1: primary: names an agent of one base"},
		{"\nbase_tools: [nothing]", "", user + "/scopefs.yaml:2: base_tools:"},
		{"base_tools: [nothing]", "base_tools: []", ""},
	} {
		_, err := load(c[0], c[1])
		if c[2] == "" {
			assert.NoError(t, err)
			continue
		}
		require.Error(t, err)
		assert.True(t, strings.HasPrefix(err.Error(), c[2]), err)
	}

	// Other bases have nothing of it.
	other := t.TempDir()
	p, err := Paths{Base: other}.Complete()
	require.NoError(t, err)
	assert.Empty(t, p.User)
	assert.Equal(t, "base", p.Layer("scopefs.yaml"))
}
