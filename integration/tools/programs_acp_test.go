package tools

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"

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
	h := harness.LayOut(t, nil)
	dir, err := os.MkdirTemp("/opt", "scopefs-integration-") // not below /tmp, which is another one inside
	require.NoError(t, err)
	defer os.Remove(dir)
	c.serve(t, h, "dir: "+dir, "", func(string) turn { return turn{answer: "all is done"} })
	cmd := c.command(t, h, "gemini", "--acp", "--model", "gemini-2.5-pro")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = io.Discard
	require.NoError(t, cmd.Start())
	defer func() { in.Close(); _ = cmd.Cancel(); _ = cmd.Wait() }()

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
