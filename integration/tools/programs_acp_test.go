package tools

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestClientsACP: an editor talks with a program inside by the Agent Client Protocol (https://agentclientprotocol.com), JSON-RPC
// over the standard streams of scopefs run, one message a line. The editor knows the host's path of the project.
func TestClientsACP(t *testing.T) {
	need.Once(t)
	needClients(t)
	c := programCases()["gemini"]
	c.api.lax = true
	_, handler := newModel(t, c.api, func(string) turn { return turn{answer: "all is done"} })
	at, ca := secureServer(t, handler.ServeHTTP, c.host)
	h := harness.LayOut(t, nil)
	h.Put("key", "sesame-open-4711-4712\n")
	require.NoError(t, os.Chmod(h.Base+"/key", 0o600))
	dir, err := os.MkdirTemp("/opt", "scopefs-integration-") // not below /tmp, which is another one inside
	require.NoError(t, err)
	defer os.Remove(dir)
	h.Define("a", fmt.Sprintf("dir: %s\nnetwork: {allow: [%s]}", dir, c.allow(at, ca, h.Base+"/key")))
	h.Start()
	clients, err := filepath.Abs("../../bin/clients")
	require.NoError(t, err)
	bin := t.TempDir()
	require.NoError(t, os.Symlink(filepath.Join(clients, "node_modules", c.file), filepath.Join(bin, "gemini")))
	require.NoError(t, os.Symlink(filepath.Join(clients, "node/bin/node"), filepath.Join(bin, "node")))
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, harness.Program, "--base", h.Base, "run", "--for", "gemini", "a", "--", "--acp", "--model", "gemini-2.5-pro")
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = io.Discard
	require.NoError(t, cmd.Start())
	defer func() { in.Close(); cancel(); _ = cmd.Wait() }()

	lines, said := bufio.NewScanner(out), ""
	lines.Buffer(nil, 1<<20)
	call := func(id int, method string, params args) (result map[string]any) {
		text, err := json.Marshal(args{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
		require.NoError(t, err)
		_, err = in.Write(append(text, '\n'))
		require.NoError(t, err)
		for lines.Scan() {
			var msg struct {
				ID     int
				Result map[string]any
				Error  any
				Params struct {
					Update struct{ Content struct{ Text string } }
				}
			}
			require.NoError(t, json.Unmarshal(lines.Bytes(), &msg), "%s", lines.Text())
			if msg.ID == id {
				require.Nil(t, msg.Error)
				return msg.Result
			}
			said += msg.Params.Update.Content.Text
		}
		require.Fail(t, "the conversation has ended", "%s: %v", method, lines.Err())
		return nil
	}
	assert.EqualValues(t, 1, call(1, "initialize", args{"protocolVersion": 1, "clientCapabilities": args{}})["protocolVersion"])
	session := call(2, "session/new", args{"cwd": dir, "mcpServers": []any{}})["sessionId"]
	end := call(3, "session/prompt", args{"sessionId": session, "prompt": []any{args{"type": "text", "text": "do it"}}})
	assert.Equal(t, "end_turn", end["stopReason"])
	assert.Equal(t, "all is done", strings.TrimSpace(said))
}
