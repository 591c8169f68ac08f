package tools

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// image is a PNG of one pixel.
const image = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\b\x06\x00\x00\x00\x1f\x15\xc4\x89" +
	"\x00\x00\x00\nIDATx\x9cc\x00\x01\x00\x00\x05\x00\x01\r\n-\xb4\x00\x00\x00\x00IEND\xaeB`\x82"

func init() {
	// An MCP server with the tools of the conformance suite's everything server.
	harness.Roles["mcp-suite"] = func([]string) error {
		s := mcp.NewServer(&mcp.Implementation{Name: "suite", Version: "v1"}, nil)
		text, picture := &mcp.TextContent{Text: "text"}, &mcp.ImageContent{Data: []byte(image), MIMEType: "image/png"}
		resource := &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "test://embedded", MIMEType: "text/plain", Text: "text"}}
		for name, content := range map[string][]mcp.Content{
			"test_simple_text":            {text},
			"test_image_content":          {picture},
			"test_audio_content":          {&mcp.AudioContent{Data: []byte("RIFF\x00\x00\x00\x00WAVE"), MIMEType: "audio/wav"}},
			"test_embedded_resource":      {resource},
			"test_multiple_content_types": {text, picture, resource},
		} {
			mcp.AddTool(s, &mcp.Tool{Name: name, Description: name}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
				return &mcp.CallToolResult{Content: content}, nil, nil
			})
		}
		mcp.AddTool(s, &mcp.Tool{Name: "test_error_handling", Description: "fails"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return nil, nil, fmt.Errorf("this tool fails")
		})
		mcp.AddTool(s, &mcp.Tool{Name: "test_tool_with_progress", Description: "reports"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
			for done := range 5 {
				err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(done), Total: 5, Message: "step"})
				if err != nil {
					return nil, nil, err
				}
				time.Sleep(300 * time.Millisecond) // so that no report replaces another
			}
			return &mcp.CallToolResult{Content: []mcp.Content{text}}, nil, nil
		})
		s.AddTool(&mcp.Tool{Name: "json_schema_2020_12_tool", Description: "has a schema", InputSchema: &jsonschema.Schema{
			Schema: "https://json-schema.org/draft/2020-12/schema", Type: "object",
			Defs:                 map[string]*jsonschema.Schema{"address": {Type: "object", Properties: map[string]*jsonschema.Schema{"street": {Type: "string"}, "city": {Type: "string"}}}},
			Properties:           map[string]*jsonschema.Schema{"name": {Type: "string"}, "address": {Ref: "#/$defs/address"}},
			AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
		}}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{text}}, nil
		})
		return s.Run(context.Background(), &mcp.StdioTransport{})
	}
}

// ourNames are the names that the suite has for what a server should have, and ours: tools of an MCP server of the agent, its
// files and its prompt.
var ourNames = [][2]string{
	{`"name":"test_simple_prompt"`, `"name":"agent"`},
	{`"name":"test_prompt_with_arguments"`, `"name":"agent"`},
	{`"name":"test_`, `"name":"mcp__suite__test_`},
	{`"name":"json_schema`, `"name":"mcp__suite__json_schema`},
	{`"uri":"test://`, `"uri":"scopefs:///files/`},
}

// renamed gives a response the suite's names, line by line.
type renamed struct {
	io.Closer
	from *bufio.Reader
	line []byte
}

func (r *renamed) Read(p []byte) (int, error) {
	if len(r.line) == 0 {
		line, err := r.from.ReadBytes('\n')
		if len(line) == 0 {
			return 0, err
		}
		r.line = bytes.ReplaceAll(line, []byte(`"name":"mcp__suite__`), []byte(`"name":"`))
	}
	n := copy(p, r.line)
	r.line = r.line[n:]
	return n, nil
}

// TestClientsConformance runs the official conformance suite: every scenario that it has for servers. It cannot give a token,
// which is added on the way, and its names become ours; else, also of the Host header, nothing is changed.
func TestClientsConformance(t *testing.T) {
	need.Once(t)
	needClients(t)
	h := harness.LayOut(t, map[string]string{"a": "mcp_servers: {suite: {command: /workspace/test-program, env: {" + harness.RoleEnv + ": mcp-suite}}}"})
	plantServer(h, "a")
	for name, text := range map[string]string{"static-text": "text", "static-binary": image, "watched-resource": "text", "template/123/data": "the data of 123"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(h.Scope("a", name)), 0o755))
		require.NoError(t, os.WriteFile(h.Scope("a", name), []byte(text), 0o644))
	}
	to, err := url.Parse(serveHTTP(h))
	require.NoError(t, err)
	token := strings.TrimSpace(h.Must("token", "a"))
	var ours string
	proxy := httptest.NewUnstartedServer(&httputil.ReverseProxy{FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host
		// Our name for the proxy is its name for us. Another one, of a page, is refused.
		r.Out.Host = strings.Replace(r.In.Host, ours, to.Host, 1)
		if origin := r.In.Header.Get("Origin"); origin != "" {
			r.Out.Header.Set("Origin", strings.Replace(origin, ours, to.Host, 1))
		}
		r.Out.Header.Set("Authorization", "Bearer "+token)
		// Go's server closes the body of a request when the response begins. A transport
		// that has sent the body, and not yet read its EOF, then closes its connection
		// within the response (net/http/transfer.go, writeBody). So it gets a copy.
		if r.In.ContentLength > 0 {
			text, _ := io.ReadAll(r.In.Body) // one cut short contradicts Content-Length, and fails
			for _, name := range ourNames {
				text = bytes.ReplaceAll(text, []byte(name[0]), []byte(name[1]))
			}
			r.Out.Body, r.Out.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		}
		r.Out.Header.Del("Accept-Encoding")
	}, ModifyResponse: func(r *http.Response) error {
		r.Header.Del("Content-Length")
		r.ContentLength = -1
		r.Body = &renamed{r.Body, bufio.NewReader(r.Body), nil}
		return nil
	}})
	defer proxy.Close()
	ours = proxy.Listener.Addr().String()
	proxy.Start()
	baseline, err := filepath.Abs("../clients/conformance.yml")
	require.NoError(t, err)
	results := t.TempDir()
	out, errs, code := runTheirs(t, conformance, "server", "--url", proxy.URL+"/mcp", "--suite", "all", "--expected-failures", baseline, "-o", results)
	_, summary, _ := strings.Cut(out, "=== SUMMARY ===")
	require.NotEmpty(t, summary, "%s%s", out, errs)
	t.Log(summary)
	if !assert.Zero(t, code, "scenarios fail that are not in clients/conformance.yml, or pass and are: %s", errs) {
		failed, _ := filepath.Glob(results + "/*/checks.json")
		for _, name := range failed {
			text, _ := os.ReadFile(name)
			if bytes.Contains(text, []byte(`"FAILURE"`)) {
				fmt.Printf("%s: %s\n", name, text)
			}
		}
	}
	// What any server is to pass, without regard to the list.
	for _, scenario := range []string{"server-initialize", "ping", "tools-list", "logging-set-level", "tools-call-error",
		"server-sse-multiple-streams", "resources-list", "resources-read-text", "resources-read-binary", "resources-templates-read",
		"completion-complete", "tools-call-image", "tools-call-with-progress", "prompts-list", "dns-rebinding-protection"} {
		assert.Regexp(t, `(?m)^✓ `+scenario+`: [1-9]\d* passed, 0 failed$`, summary)
	}
}
