package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools"
)

const token = "sesame-4711-and-more"

// elsewhere returns a fixture with one server "s" at a URL.
func elsewhere(t *testing.T, url string) *fixture {
	t.Helper()
	f := start(t)
	f.allowed.Store(&map[string]Spec{"s": {URL: url, Headers: map[string]string{"Authorization": "Bearer " + token}, Start: time.Minute, Timeout: 5 * time.Minute, Blind: true}})
	return f
}

// spec changes the Spec of the server "s".
func (f *fixture) spec(change func(*Spec)) {
	s := (*f.allowed.Load())["s"]
	change(&s)
	f.allowed.Store(&map[string]Spec{"s": s})
}

// listen serves HTTP and counts the requests with and without the token.
func listen(t *testing.T, h http.Handler) (server *httptest.Server, with, without *atomic.Int32) {
	t.Helper()
	with, without = new(atomic.Int32), new(atomic.Int32)
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			without.Add(1)
			http.Error(w, "who is that?", http.StatusUnauthorized)
			return
		}
		with.Add(1)
		h.ServeHTTP(w, r)
	}))
	server.Start()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server, with, without
}

// handler is an MCP server made with the SDK.
func handler(o *mcp.StreamableHTTPOptions) http.Handler {
	server := mcp.NewServer(&mcp.Implementation{Name: "far", Version: "1"}, nil)
	addTools(server)
	mcp.AddTool(server, &mcp.Tool{Name: "header", Description: "tells a secret"}, func(_ context.Context, r *mcp.CallToolRequest, _ said) (*mcp.CallToolResult, any, error) {
		text := r.Extra.Header.Get("Authorization")
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, fmt.Errorf("no entry with %s, %s, %x", text, strings.ReplaceAll(text, "-", "%2d"), text)
	})
	mcp.AddTool(server, &mcp.Tool{Name: "pings", Description: "asks much"}, func(ctx context.Context, r *mcp.CallToolRequest, _ said) (*mcp.CallToolResult, any, error) {
		for range 3 * maxUnread {
			if err := r.Session.Ping(ctx, nil); err != nil {
				return nil, nil, err
			}
		}
		_, err := r.Session.CreateMessage(ctx, &mcp.CreateMessageParams{Messages: []*mcp.SamplingMessage{}})
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint("refused: ", err != nil)}}}, nil, nil
	})
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, o)
}

func TestRemote(t *testing.T) {
	for name, o := range map[string]*mcp.StreamableHTTPOptions{"events": nil, "JSON": {JSONResponse: true}, "stateless": {Stateless: true}} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HTTP_PROXY", "http://127.0.0.1:1/")
			server, with, without := listen(t, handler(o))
			f := elsewhere(t, server.URL+"/mcp")
			assert.Zero(t, with.Load())
			assert.Contains(t, f.names(t), "mcp:s:echo")
			text, err := f.run(t.Context(), "s", "echo", "hé\nyou")
			require.NoError(t, err)
			assert.Equal(t, "hé\nyou", text)
			_, err = f.run(t.Context(), "s", "header", "")
			assert.Equal(t, `MCP server "s": no entry with ***, ***, ***`, codeIs(t, tools.Internal, err).Message)
			if name == "events" {
				text, err = f.run(t.Context(), "s", "pings", "")
				require.NoError(t, err)
				assert.Equal(t, "refused: true", text)
			}
			if name == "stateless" {
				text, err = f.run(t.Context(), "s", "huge", "6000000")
				require.NoError(t, err)
				assert.True(t, strings.HasSuffix(text, "[cut: the result has more than 4194304 bytes]"))
			}
			if name == "JSON" {
				_, err = f.run(t.Context(), "s", "huge", "18000000")
				assert.Contains(t, codeIs(t, tools.TooLarge, err).Message, "16 MiB")
				text, err = f.run(t.Context(), "s", "echo", "again")
				require.NoError(t, err)
				assert.Equal(t, "again", text)
			}
			assert.Positive(t, with.Load())
			assert.Zero(t, without.Load())
		})
	}
}

// TestRemoteIsCancelled requires that the server sees a cancelled call and a timeout.
func TestRemoteIsCancelled(t *testing.T) {
	server, _, _ := listen(t, handler(nil))
	f := elsewhere(t, server.URL)
	f.names(t)
	is := func(file, want string) func() bool {
		return func() bool { text, _ := os.ReadFile(file); return string(text) == want }
	}
	file := filepath.Join(t.TempDir(), "f")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		assert.Eventually(t, is(file, "waiting"), 20*time.Second, 5*time.Millisecond)
		cancel()
	}()
	_, err := f.run(ctx, "s", "wait", file)
	require.ErrorIs(t, err, context.Canceled)
	assert.Eventually(t, is(file, "cancelled"), 20*time.Second, 5*time.Millisecond)
	f.spec(func(s *Spec) { s.Timeout = time.Second })
	file += "2"
	_, err = f.run(t.Context(), "s", "wait", file)
	codeIs(t, tools.Unavailable, err)
	assert.Eventually(t, is(file, "cancelled"), 20*time.Second, 5*time.Millisecond)
}

// TestRemoteIsGone requires a new session when the server no longer knows the old one,
// and the HTTP status in the error of a server behind a failing gateway.
func TestRemoteIsGone(t *testing.T) {
	var now atomic.Pointer[http.Handler]
	anew := func(h http.Handler) { now.Store(&h) }
	anew(handler(nil))
	server, _, _ := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*now.Load()).ServeHTTP(w, r) }))
	f := elsewhere(t, server.URL)
	f.names(t)
	anew(handler(nil))
	_, err := f.run(t.Context(), "s", "echo", "x")
	require.Error(t, err)
	text, err := f.run(t.Context(), "s", "echo", "x")
	require.NoError(t, err)
	assert.Equal(t, "x", text)
	anew(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }))
	_, err = f.run(t.Context(), "s", "echo", "x")
	assert.Contains(t, codeIs(t, tools.Internal, err).Message, "Bad Gateway")
}

// TestRemoteIsBad requires that errors of a bad server contain neither its address nor
// the token, and that the token reaches no other server.
func TestRemoteIsBad(t *testing.T) {
	other, with, without := listen(t, http.NotFoundHandler())
	tls := httptest.NewTLSServer(http.NotFoundHandler())
	tls.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer tls.Close()
	event := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, text)
		}
	}
	endless := func(kind, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			for piece := strings.Repeat(text, 64<<10/len(text)); ; {
				if _, err := io.WriteString(w, piece); err != nil {
					return
				}
			}
		}
	}
	for name, test := range map[string]struct {
		h    http.Handler
		want string
	}{
		"redirects":      {http.RedirectHandler(other.URL, http.StatusTemporaryRedirect), "redirects are not followed"},
		"found":          {http.RedirectHandler(other.URL, http.StatusFound), "redirects are not followed"},
		"not found":      {http.NotFoundHandler(), "Not Found"},
		"forbids":        {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }), "the server answers 403 Forbidden: check its headers"},
		"never answers":  {http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); <-r.Context().Done() }), "no answer within 1s"},
		"never ends":     {endless("application/json", " "), "it sent a message of more than 16 MiB"},
		"one long line":  {endless("text/event-stream", "x"), "it sent a message of more than 16 MiB"},
		"one long event": {endless("text/event-stream", "data: "+strings.Repeat("x", 1000)+"\n"), "it sent a message of more than 16 MiB"},
		"many values":    {event("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":[" + strings.Repeat("[],", 60_000) + "1]}\n\n"), "more than 50000 values"},
		"comments":       {endless("text/event-stream", ": still here\n\n"), "no answer within 1s"},
		"nothing":        {event(""), "initialize"},
		"no message":     {event("id: 1\ndata: hello\n\n"), "no answer within 1s"},
		"what panics":    {event("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/elicitation/complete\"}\n\n"), "initialize"},
		"another kind":   {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }), "unsupported content type"},
		"its own secret": {http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":%q}}`, r.Header.Get("Authorization")+r.URL.RawQuery)
		}), "initialize"},
		"a session to id": {http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Mcp-Session-Id", token+"-id")
			w.WriteHeader(404)
		}), "Not Found"},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(test.want, "no answer") {
				need.Long(t, "waits for a time limit")
			}
			t.Parallel()
			server, _, _ := listen(t, test.h)
			u := New(nil, func() map[string]Spec {
				return map[string]Spec{"s": {URL: server.URL + "/?key=" + token, Headers: map[string]string{"Authorization": "Bearer " + token}, Start: 20 * time.Second}}
			})
			if strings.HasPrefix(test.want, "no answer") {
				u.timeout = time.Second
				u.servers = func() map[string]Spec {
					return map[string]Spec{"s": {URL: server.URL, Headers: map[string]string{"Authorization": "Bearer " + token}}}
				}
			}
			_, errs := u.Tools(t.Context())
			require.Len(t, errs, 1)
			assert.ErrorContains(t, errs[0], test.want)
			_, err := u.call(t.Context(), "s", "echo", json.RawMessage(`{}`), nil, nil)
			require.Error(t, err)
			for _, err := range append(errs, err) {
				assert.NotContains(t, err.Error(), token)
				assert.NotContains(t, err.Error(), server.URL)
				assert.NotContains(t, err.Error(), other.URL)
			}
			closed := make(chan error, 1)
			go func() { closed <- u.Close() }()
			select {
			case err := <-closed:
				assert.NoError(t, err)
			case <-time.After(30 * time.Second):
				t.Error("it does not close")
			}
		})
	}
	t.Run("of nobody", func(t *testing.T) {
		f := elsewhere(t, tls.URL)
		_, errs := f.Tools(t.Context())
		require.Len(t, errs, 1)
		assert.ErrorContains(t, errs[0], "certificate")
		f = elsewhere(t, "http://127.0.0.1:1/")
		_, errs = f.Tools(t.Context())
		require.Len(t, errs, 1)
		assert.ErrorContains(t, errs[0], "refused")
		assert.NotContains(t, errs[0].Error(), "127.0.0.1")
	})
	t.Cleanup(func() { assert.Zero(t, with.Load()+without.Load(), "nothing goes where a redirect leads") })
}
