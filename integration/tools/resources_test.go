package tools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

func init() {
	// An MCP server whose results name files of the client's host.
	harness.Roles["mcp-names"] = func([]string) error {
		const passwd = "file:///etc/passwd"
		s := mcp.NewServer(&mcp.Implementation{Name: "names", Version: "v1"}, nil)
		nothing := func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) { return nil, nil }
		s.AddResource(&mcp.Resource{Name: "passwd", URI: passwd}, nothing)
		mcp.AddTool(s, &mcp.Tool{Name: "name", Description: "names"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{
				&mcp.ResourceLink{Name: "link", URI: passwd},
				&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: passwd, Text: "text"}},
				&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: passwd, Blob: []byte("bytes"), MIMEType: "application/x"}},
			}}, nil, nil
		})
		return s.Run(context.Background(), &mcp.StdioTransport{})
	}
}

// reader reads resources of a session.
type reader struct{ *harness.User }

func (r reader) text(uri string) string {
	r.T.Helper()
	res, err := r.Session.ReadResource(r.Soon(), &mcp.ReadResourceParams{URI: uri})
	require.NoError(r.T, err, uri)
	require.Len(r.T, res.Contents, 1)
	assert.Equal(r.T, uri, res.Contents[0].URI)
	return res.Contents[0].Text
}

func (r reader) fails(uri string) *jsonrpc.Error {
	r.T.Helper()
	_, err := r.Session.ReadResource(r.Soon(), &mcp.ReadResourceParams{URI: uri})
	e, ok := errors.AsType[*jsonrpc.Error](err)
	require.True(r.T, ok, "%q: %v", uri, err)
	return e
}

// names returns the names of all pages.
func (r reader) names() (pages int, all []string) {
	r.T.Helper()
	for cursor := ""; ; {
		page, err := r.Session.ListResources(r.Soon(), &mcp.ListResourcesParams{Cursor: cursor})
		require.NoError(r.T, err)
		pages++
		for _, one := range page.Resources {
			all = append(all, one.Name)
		}
		if cursor = page.NextCursor; cursor == "" {
			return pages, all
		}
	}
}

func (r reader) complete(value string) mcp.CompletionResultDetails {
	r.T.Helper()
	templates, err := r.Session.ListResourceTemplates(r.Soon(), nil)
	require.NoError(r.T, err)
	require.Len(r.T, templates.ResourceTemplates, 1)
	res, err := r.Session.Complete(r.Soon(), &mcp.CompleteParams{Argument: mcp.CompleteParamsArgument{Name: "path", Value: value},
		Ref: &mcp.CompleteReference{Type: "ref/resource", URI: templates.ResourceTemplates[0].URITemplate}})
	require.NoError(r.T, err)
	return res.Completion
}

func putFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
}

// TestResources: an agent's files and the log of its session are resources. A client reads no more by them than by read_file, and
// each read is such a call.
func TestResources(t *testing.T) {
	h := harness.LayOut(t, map[string]string{
		"a":      `view: {paths: {.env: hide}}`,
		"b":      "",
		"narrow": "tools: [stat]",
		"asks":   "policy: {tools: {ask: [read_file]}}",
		"served": "mcp_servers: {names: {command: /workspace/test-program, env: {" + harness.RoleEnv + ": mcp-names}}}",
	})
	const odd = "odd name?#%2f[é].txt"
	putFiles(t, h.Scope("a"), map[string]string{".env": "KEY=1", "src/main.go": "package main\n", "src/more.go": "package main\n", "empty": "", odd: "odd"})
	putFiles(t, h.Scope("b"), map[string]string{"secret": "of b"})
	putFiles(t, h.Scope("asks"), map[string]string{"f": "text"})
	require.NoError(t, os.Symlink("/etc/passwd", h.Scope("a", "out")))
	require.NoError(t, os.Symlink("src/main.go", h.Scope("a", "in")))
	plantServer(h, "served")
	h.Start()
	a := reader{h.Connect("a")}

	list, err := a.Session.ListResources(h.Soon(), nil)
	require.NoError(t, err)
	_, names := a.names()
	assert.Equal(t, []string{"log", "empty", "in", odd, "out", "src"}, names)
	for _, r := range list.Resources {
		if r.Name == odd {
			assert.Equal(t, "odd", a.text(r.URI))
		}
	}
	const files = "scopefs:///files/"
	assert.Equal(t, "package main\n", a.text(files+"src/main.go"))
	assert.Equal(t, "package main\n", a.text(files+"in"))
	assert.Contains(t, a.text(files), "src/main.go", "the root is listed")
	assert.Contains(t, a.text(files+"src"), "src/main.go")
	assert.Empty(t, a.text(files+"empty"))
	assert.Equal(t, []string{"src/main.go", "src/more.go"}, a.complete("src/m").Values)
	assert.Equal(t, []string{"src/"}, a.complete("s").Values)
	for _, value := range []string{".e", "../", "../../b/s", "/etc/pass", "{a,b", "[", "**/", "\x00"} {
		assert.Empty(t, a.complete(value).Values, value)
	}
	assert.Equal(t, audit.Allow, h.Last("a", "read_file").Verdict, "a read is a call")

	// What does not exist, is hidden, outside, another agent's or no resource: one answer.
	for _, uri := range []string{
		files + "none", files + ".env", files + "src/../.env", files + "%2eenv", files + "out",
		files + "../../b/secret", files + "..%2f..%2fb/secret", files + "%2e%2e/%2e%2e/b/secret", files + "..%252f..%252fb%252fsecret",
		files + "/etc/passwd", files + "%2Fetc%2Fpasswd", files + "/proc/self/environ", files + "%ff", files + "%zz", files + "%",
		"scopefs://b/files/secret", "scopefs://a/files/src/main.go", "scopefs:///files", "scopefs://b/log", "scopefs:///log/", "scopefs:///log?x", "SCOPEFS:///log",
		"file:///etc/passwd", "file:///workspace/src/main.go", "src/main.go", "", files + "\x00", files + "a\"b", files + "é", "\x7f\x1b[2J",
	} {
		e := a.fails(uri)
		assert.Equal(t, "Resource not found", e.Message, uri)
		assert.Equal(t, int64(mcp.CodeResourceNotFound), e.Code, uri)
	}
	assert.Contains(t, a.fails(files+"src%00").Message, "NUL")
	assert.NotEqual(t, "", a.fails(files+strings.Repeat("a/", 1<<20)).Message)
	h.Eventually("the way out is recorded", func() bool {
		return slices.ContainsFunc(h.Calls("a", "read_file"), func(e audit.Event) bool { return e.Verdict == audit.Violation })
	})

	// The session's log has its own calls, and says no more than their answers did.
	log := a.text("scopefs:///log")
	assert.Contains(t, log, `"path":"src/main.go","outcome":"ok"`)
	assert.Contains(t, log, `"path":".env","outcome":"not_found"`)
	assert.Contains(t, log, `"path":"none","outcome":"not_found"`)
	for _, secret := range []string{"violation", "hide", "rule", "KEY=1"} {
		assert.NotContains(t, log, secret)
	}
	other := reader{h.Connect("a", "--profile", "claude")}
	assert.Equal(t, "package main\n", other.text(files+"src/main.go"), "a profile has other names for tools, not for files")
	assert.Equal(t, 1, strings.Count(other.text("scopefs:///log"), "\n"), "of its own session")
	for range 300 {
		a.Call("stat", args{"path": "src"})
	}
	assert.Equal(t, 256, strings.Count(a.text("scopefs:///log"), "\n"))

	// There are no subscriptions: any number of attempts leaves nothing. A client of the newest protocol is told that it has none.
	raw := h.Dial("a").Greet()
	defer raw.Close()
	for i := range 1000 {
		_, err := fmt.Fprintf(raw, `{"jsonrpc":"2.0","id":%d,"method":"resources/subscribe","params":{"uri":"%s%d"}}`+"\n", i+10, files, i)
		require.NoError(t, err)
		require.Contains(t, raw.Line(), `"code":-32601`)
	}
	assert.False(t, a.Session.InitializeResult().Capabilities.Resources.Subscribe)

	// Requests that lack what they are about.
	for i, rest := range []string{
		`"resources/read"`, `"resources/read","params":null`, `"resources/read","params":{}`, `"resources/read","params":{"uri":7}`,
		`"resources/list","params":{"cursor":7}`, `"completion/complete"`, `"completion/complete","params":{"argument":{"name":"path","value":"s"}}`,
		`"completion/complete","params":{"ref":{"type":"ref/resource"}}`, `"completion/complete","params":{"ref":null,"argument":null}`,
	} {
		_, err := fmt.Fprintf(raw, `{"jsonrpc":"2.0","id":%d,"method":%s}`+"\n", i, rest)
		require.NoError(t, err)
		require.Contains(t, raw.Line(), `"error":{`, rest)
	}
	_, err = io.WriteString(raw, `{"jsonrpc":"2.0","id":1,"method":"resources/list"}`+"\n")
	require.NoError(t, err)
	require.Contains(t, raw.Line(), `"resources":[{`)

	// A client lists resources unasked. That is no denial, and waits for nobody.
	for _, id := range []string{"narrow", "asks"} {
		u := reader{h.Connect(id)}
		_, names := u.names()
		assert.Equal(t, []string{"log"}, names)
		assert.Empty(t, h.Calls(id, "list_dir"))
		assert.Contains(t, u.fails("scopefs:///files/f").Message, map[string]string{"narrow": "no tool", "asks": "approv"}[id])
	}

	// A server's resources are none of ours, and the URIs in its results name nothing for the client.
	served := reader{h.Connect("served")}
	_, names = served.names()
	assert.Equal(t, []string{"log", "test-program"}, names)
	assert.Equal(t, "Resource not found", served.fails("file:///etc/passwd").Message)
	h.Eventually("the server's tool is there", func() bool { return served.List()["mcp__names__name"] != nil })
	r, err := served.Send(h.Soon(), "mcp__names__name", nil)
	require.NoError(t, err)
	require.Len(t, r.Content, 3)
	assert.Equal(t, "link file:///etc/passwd", r.Content[0].(*mcp.TextContent).Text, "a text, which no client opens")
	assert.Equal(t, "text", r.Content[1].(*mcp.TextContent).Text)
	assert.Equal(t, "scopefs:data", r.Content[2].(*mcp.EmbeddedResource).Resource.URI)
	h.Unbroken()
}

// TestResourcesMany: a list comes in pages, and a completion has a hundred values at most.
func TestResourcesMany(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": ""})
	files := map[string]string{"large": strings.Repeat("a line of a text\n", 1<<16)}
	for i := range 1200 {
		files[fmt.Sprintf("f%04d", i)] = "x"
	}
	putFiles(t, h.Scope("a"), files)
	h.Start()
	a := reader{h.Connect("a")}
	pages, names := a.names()
	assert.Equal(t, 3, pages)
	assert.Len(t, names, 1+len(files))
	assert.Len(t, slices.Compact(slices.Sorted(slices.Values(names))), len(names))
	completion := a.complete("f")
	assert.Len(t, completion.Values, 100)
	assert.True(t, completion.HasMore)
	_, err := a.Session.ListResources(h.Soon(), &mcp.ListResourcesParams{Cursor: "%"})
	assert.ErrorContains(t, err, "not a cursor")
	res, err := a.Session.ReadResource(h.Soon(), &mcp.ReadResourceParams{URI: "scopefs:///files/large"})
	require.NoError(t, err)
	assert.LessOrEqual(t, len(res.Contents[0].Text), 256<<10)
	assert.Contains(t, res.Contents[0].Meta["scopefs/truncated"], "go on with offset")
}
