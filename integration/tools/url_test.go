package tools

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
)

// farServer serves MCP by HTTP on loopback to those who have the token, with a
// tool that returns the token to them.
func farServer(t *testing.T, token string) (url string, requests *atomic.Int32) {
	s := mcp.NewServer(&mcp.Implementation{Name: "far", Version: "v1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "say", Description: "says"}, func(_ context.Context, r *mcp.CallToolRequest, in struct {
		Text string `json:"text"`
	}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "far says " + in.Text + " with " + r.Extra.Header.Get("Authorization")}}}, nil, nil
	})
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
	requests = &atomic.Int32{}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { web.CloseClientConnections(); web.Close() })
	return web.URL + "/mcp", requests
}

// TestServerByURL: the daemon speaks to a server by HTTP, with a credential that
// no agent sees. It connects at the first use, and only for agents that may use the server.
func TestServerByURL(t *testing.T) {
	const secret = "sesame-4711-by-url"
	t.Setenv("SCOPEFS_TEST_TOKEN", secret)
	url, requests := farServer(t, secret)
	server := func(more string) string {
		return fmt.Sprintf("{url: %q, headers: {Authorization: \"Bearer ${SCOPEFS_TEST_TOKEN}\"}%s}", url, more)
	}
	h := harness.LayOut(t, map[string]string{
		"a":    "mcp_servers: {own: " + server("") + "}",
		"none": "tools: [stat]\nmcp_servers: {own: " + server("") + "}",
		"bad":  fmt.Sprintf("mcp_servers: {own: {url: %q, headers: {Authorization: %q}}}", url, "Bearer of-nothing-"+secret),
	})
	h.Put("scopefs.yaml", "mcp_servers: {all: "+server("")+"}\n")
	require.NoError(t, os.MkdirAll(h.Base+"/extensions.d", 0o755))
	h.Put("extensions.d/ext.yaml", "name: ext\ndescription: d\nagents: [a]\nmcp_servers: {theirs: "+server("")+"}\n")
	h.Start()

	u := h.Connect("none")
	u.List()
	assert.Equal(t, tools.Denied, u.Fails("mcp__own__say", args{"text": "x"}).Code)
	assert.Zero(t, requests.Load(), "the rules leave no tool of it")

	u = h.Connect("a")
	u.Call("stat", args{"path": "."})
	assert.Zero(t, requests.Load(), "nobody has asked for its tools")
	for _, name := range []string{"own", "all", "theirs"} {
		assert.Equal(t, "far says hello with ***", u.Text("mcp__"+name+"__say", args{"text": "hello"}))
		assert.Contains(t, u.List(), "mcp__"+name+"__say")
	}
	assert.Contains(t, h.Must("call", "--agent", "a", "mcp__own__say", "text=again"), "far says again")

	assert.NotEmpty(t, h.Calls("a", "mcp:own:say"))
	bad := h.Connect("bad").Fails("mcp__own__say", args{"text": "x"})
	assert.Contains(t, bad.Message, "cannot be used now")
	assert.Equal(t, "0", u.Bash("cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '[s]esame'; true"))
	for _, id := range []string{"a", "bad"} {
		for _, told := range []string{h.Must("agents", "show", id), h.Must("agents", "show", id, "--json"), h.Must("prompt", id), h.Must("audit", "--agent", id), h.Must("ps", "--json")} {
			assert.NotContains(t, told, "sesame")
		}
	}
	h.Stop()
	assert.NotContains(t, h.Log.String(), "sesame")
	assert.NotContains(t, bad.Message+bad.Hint, "sesame")
	files := 0
	require.NoError(t, filepath.WalkDir(h.Base+"/state", func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		assert.NotContains(t, string(text), "sesame", path)
		files++
		return err
	}))
	assert.NotZero(t, files)
}
