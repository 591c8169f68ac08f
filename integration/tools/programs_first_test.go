package tools

import (
	"os"
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
	c := programCases()["claude"]
	h := harness.LayOut(t, nil)
	c.serve(t, h, "sandbox: {home: lasting}", "", func(string) turn { return turn{answer: "sesamestreet"} })
	cmd := c.command(t, h, "claude")
	cmd.Env = append(cmd.Env, "TERM=xterm-256color")
	_, k := harness.OnTerminal(t, cmd, 40, 110)
	k.Wait = 90 * time.Second // it draws slowly on a loaded machine
	k.Expect("Billing")       // its header, above the line for the prompt
	for _, word := range []string{"hello", "\r"} {
		_, err := k.R.WriteString(word)
		require.NoError(t, err)
		k.Expect(map[string]string{"hello": "hello", "\r": "sesamestreet"}[word])
	}

	settings := filepath.Join(h.Base, "state/home/a/.claude.json")
	assert.Contains(t, harness.ReadAll(t, settings), `"hasTrustDialogAccepted": true`)
	h.Must("down", "a") // the program writes its settings until it has ended
	h.Must("up", "a")
	require.NoError(t, os.WriteFile(settings, []byte("{}\n"), 0o600))
	cmd = c.command(t, h, "claude", "--version")
	o := harness.Finish(t, cmd)
	require.Zero(t, o.Code, o.Stderr)
	assert.Equal(t, "{}\n", harness.ReadAll(t, settings))
}
