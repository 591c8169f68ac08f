package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestToolsListBytes: most clients send the list of tools with each request to the model. That of a fresh project has at most
// 14,000 bytes, and the tools that have work to do there. With --full-schemas a client gets the schemas of results.
func TestToolsListBytes(t *testing.T) {
	const uid = 1234
	m := harness.Embed(t, uid, nil)
	dir := filepath.Join(m.Base, "own")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.Chown(dir, uid, uid))
	list := func(flags ...string) (tools map[string]*mcp.Tool, size int) {
		cmd := harness.AsUser(t, uid, append([]string{harness.Program, "mcp", "--dir", dir}, flags...)...)
		cmd.Env = append(cmd.Env, "TMPDIR="+m.Tmp, "HOME="+filepath.Join(m.Base, "agents"), "XDG_STATE_HOME=", "SCOPEFS_BASE=")
		u := m.Attach(nil, cmd, &mcp.CommandTransport{Command: cmd})
		tools = u.List()
		for _, tool := range tools {
			text, err := json.Marshal(tool)
			require.NoError(t, err)
			size += len(text) + 1
		}
		require.NoError(t, u.Session.Close())
		return tools, size
	}

	tools, size := list()
	const frame = `{"jsonrpc":"2.0","id":1,"result":{"ttlMs":0,"cacheScope":"private","tools":[]}}`
	assert.LessOrEqual(t, size+len(frame), 14_000)
	assert.Len(t, tools, 20)
	for _, idle := range []string{"delegate", "skill", "sql_query", "remember"} {
		assert.NotContains(t, tools, idle)
	}
	for name, tool := range tools {
		assert.Nil(t, tool.OutputSchema, name)
		assert.Empty(t, tool.Icons, name)
	}
	full, more := list("--full-schemas")
	assert.Len(t, full, 20)
	assert.Greater(t, more, size)
	assert.NotNil(t, full["bash"].OutputSchema)
}
