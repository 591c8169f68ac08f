package tools

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestClientsFirstStart: the first start of Claude Code on a terminal asks nothing about its theme, the key and the directory.
// The settings that say so are in the agent's HOME, and those of the user stay.
func TestClientsFirstStart(t *testing.T) {
	need.Once(t)
	needClients(t)
	for name, header := range map[string]string{"key": "Billing", "login": "Claude Max"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			firstStart(t, name == "login", header)
		})
	}
}

// firstStart starts Claude Code with a key or a login. header is in its header, above the line for the prompt.
func firstStart(t *testing.T, login bool, header string) {
	c := programCases()["claude"]
	c.api.lax = true
	_, handler := newModel(t, c.api, func(string) turn { return turn{answer: "sesamestreet"} })
	at, ca := secureServer(t, handler.ServeHTTP, c.host)
	h := harness.LayOut(t, nil)
	h.Put("key", "sesame-open-4711-4712\n")
	require.NoError(t, os.Chmod(h.Base+"/key", 0o600))
	allow, home := c.allow(at, ca, h.Base+"/key"), t.TempDir()
	if login {
		allow = fmt.Sprintf("{host: %s, address: '%s', ca: %q, login: claude}", c.host, at, ca)
		require.NoError(t, os.Mkdir(home+"/.claude", 0o700))
		require.NoError(t, os.WriteFile(home+"/.claude/.credentials.json",
			[]byte(`{"claudeAiOauth": {"accessToken": "sk-ant-oat01-sesame", "refreshToken": "sk-ant-ort01-sesame", "expiresAt": 4102444800000, "scopes": ["user:inference", "user:profile"], "subscriptionType": "max"}}`), 0o600))
	}
	h.Define("a", fmt.Sprintf("sandbox: {home: lasting}\nnetwork: {allow: [%s]}", allow))
	h.Start()
	clients, err := filepath.Abs("../../bin/clients")
	require.NoError(t, err)
	bin := t.TempDir()
	require.NoError(t, os.Symlink(filepath.Join(clients, "node_modules", c.file), filepath.Join(bin, "claude")))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, harness.Program, "--base", h.Base, "run", "--for", "claude", "a")
	env := append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+home, "ANTHROPIC_API_KEY=")
	cmd.Env = append(env, "TERM=xterm-256color")
	_, k := harness.OnTerminal(t, cmd, 40, 110)
	k.Wait = 90 * time.Second // it draws slowly on a loaded machine
	k.Expect(header)
	for _, word := range []string{"hello", "\r"} {
		_, err = k.R.WriteString(word)
		require.NoError(t, err)
		k.Expect(map[string]string{"hello": "hello", "\r": "sesamestreet"}[word])
	}

	settings := filepath.Join(h.Base, "state/home/a/.claude.json")
	assert.Contains(t, harness.ReadAll(t, settings), `"hasTrustDialogAccepted": true`)
	h.Must("down", "a") // the program writes its settings until it has ended
	h.Must("up", "a")
	require.NoError(t, os.WriteFile(settings, []byte("{}\n"), 0o600))
	cmd = exec.CommandContext(ctx, harness.Program, "--base", h.Base, "run", "--for", "claude", "a", "--", "--version")
	cmd.Env = env
	o := harness.Finish(t, cmd)
	require.Zero(t, o.Code, o.Stderr)
	assert.Equal(t, "{}\n", harness.ReadAll(t, settings))
}
