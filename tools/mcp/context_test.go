package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools"
)

// contextBench is a Face with a tool that says what it sees, and one that keeps a
// context of the session.
func contextBench(t *testing.T) (*bench, *int) {
	b := newBench(t, "", nil)
	look, err := tools.Declared("look", "", tools.Hints{}, json.RawMessage(`{"type":"object","properties":{"_scopes":{"items":{"enum":["a","b"]}}}}`),
		func(_ context.Context, env tools.Env, _ json.RawMessage) (tools.Result, error) {
			return tools.Result{Content: []tools.Content{{Text: "sees " + string(env.Context.JSON())}}}, nil
		})
	require.NoError(t, err)
	keep, err := tools.Declared("keep", "", tools.Hints{}, json.RawMessage(`{"type":"object"}`), func(_ context.Context, env tools.Env, _ json.RawMessage) (tools.Result, error) {
		if env.Keep == nil {
			return tools.Result{}, tools.Errorf(tools.Denied, "no session")
		}
		next, bad := scoped.Parse([]byte(`[{"type":"a","kept":true}]`))
		require.Nil(t, bad)
		return tools.Result{}, env.Keep(next)
	})
	require.NoError(t, err)
	require.NoError(t, b.set.Declare([]tools.Tool{look, keep}))
	held := 0
	b.face.opt.HoldContext = func(n int) (func(), bool) {
		if held+n > 30 {
			return nil, false
		}
		held += n
		return func() { held -= n }, true
	}
	return b, &held
}

// The calls of contexts, in the raw form of a client.
var contextCalls = []struct{ name, params, want string }{
	{"none", `"arguments":{"_scopes":["a"]}`, `sees {"a":[]}`},
	{"its own, to the byte", `"arguments":{"_scopes":["a"]},"_meta":{"scopefs/context":[{"type":"a","n":12345678901234567890.10,"s":"<&>\u2028\/","z":1,"b":2}]}`, `sees {"a":[{"type":"a","n":12345678901234567890.10,"s":"<&>\u2028\/","z":1,"b":2}]}`},
	{"all beside", `"_meta":{"scopefs/scopes":["a"],"scopefs/instance":"1","scopefs/context":[{"type":"a","_instance":"1"},{"type":"a","_instance":"2"}]}`, `sees {"a":[{"type":"a","_instance":"1"}]}`},
	{"an escaped key", `"arguments":{"_scopes":["a"]},"_meta":{"scopefs\/context":[{"type":"a"}]}`, `sees {"a":[{"type":"a"}]}`},
	{"a name twice", `"arguments":{},"_meta":{"scopefs/context":[{"type":"a","x":1,"x":2}]}`, `"path":"/_context/0/x"`},
	{"text", `"arguments":{},"_meta":{"scopefs/context":"[]"}`, `the context is no array of messages`},
	{"unknown", `"arguments":{},"_meta":{"scopefs/contexts":[]}`, `"path":"/_contexts"`},
	{"others", `"arguments":{},"_meta":{"other/context":[{"type":"../x"}]}`, `sees {}`},
	{"twice and different", `"arguments":{"_scopes":["a"]},"_meta":{"scopefs/scopes":["b"]}`, `"path":"/_scopes"`},
}

// A client is a function that sends one request and returns the response.
func TestContextsOfLines(t *testing.T) {
	b, held := contextBench(t)
	ours, theirs := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- b.face.Serve(t.Context(), ours) }()
	in := bufio.NewReader(theirs)
	testContexts(t, func(text string) string {
		_, err := theirs.Write([]byte(text + "\n"))
		require.NoError(t, err)
		if !strings.Contains(text, `"id"`) {
			return ""
		}
		line, err := in.ReadString('\n')
		require.NoError(t, err)
		return line
	}, held)
	theirs.Close()
	require.NoError(t, <-served)
	assert.Zero(t, *held, "the session's context is gone with it")
}

func TestContextsOfHTTP(t *testing.T) {
	b, held := contextBench(t)
	face := b.face
	server := httptest.NewServer(Handler(func(*http.Request) (*Face, int) { return face, 0 }))
	defer server.Close()
	testContexts(t, poster(t, server.URL), held)
	assert.NotZero(t, *held)
	// Another session has a context of its own. The memory of both is bounded.
	other := poster(t, server.URL)
	hello(other)
	assert.Contains(t, unescape(other(contextCall("look", `"arguments":{"_scopes":["a"]}`))), `sees {"a":[]}`)
	assert.Contains(t, other(contextCall("keep", `"arguments":{}`)), "rate_limited")
}

func poster(t *testing.T, url string) func(string) string {
	session := ""
	return func(text string) string {
		r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(text))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		r.Header.Set("Mcp-Session-Id", session)
		response, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer response.Body.Close()
		if session == "" {
			session = response.Header.Get("Mcp-Session-Id")
		}
		var all strings.Builder
		_, err = bufio.NewReader(response.Body).WriteTo(&all)
		require.NoError(t, err)
		return all.String()
	}
}

func hello(send func(string) string) {
	send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
	send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

func contextCall(tool, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":%q,%s}}`, tool, params)
}

// unescape returns a response with the escapes of the text in it undone once.
func unescape(response string) string {
	return strings.NewReplacer(`\"`, `"`, `\\`, `\`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(response)
}

func testContexts(t *testing.T, send func(string) string, held *int) {
	t.Helper()
	hello(send)
	for _, c := range contextCalls {
		assert.Contains(t, unescape(send(contextCall("look", c.params))), c.want, c.name)
	}
	send(contextCall("keep", `"arguments":{}`))
	assert.Equal(t, 24, *held)
	send(contextCall("keep", `"arguments":{}`))
	assert.Equal(t, 24, *held, "the last one alone is held")
	assert.Contains(t, unescape(send(contextCall("look", `"arguments":{"_scopes":["a"]}`))), `sees {"a":[{"type":"a","kept":true}]}`)
	assert.Contains(t, unescape(send(contextCall("look", `"arguments":{"_scopes":["a"]},"_meta":{"scopefs/context":[]}`))), `sees {"a":[]}`)
}

// TestContextRestoredFirst: a client that sends at once, without initialize, too, is not read from until its context is what it
// was. What it then sets is the last that is kept.
func TestContextRestoredFirst(t *testing.T) {
	b, _ := contextBench(t) // has a client of its own
	synctest.Test(t, func(t *testing.T) {
		b.face.opt.Inbox = NewInbox(tools.NewShare()) // the client of contextBench is not in the bubble
		ours, theirs := net.Pipe()
		var read atomic.Bool
		var kept []string
		b.face.opt.KeepContext = func(_ string, messages []byte) {
			kept = append(kept, string(messages))
			require.True(t, b.face.contexts.mu.TryLock(), "the calls of other sessions need not wait for it")
			b.face.contexts.mu.Unlock()
		}
		b.face.opt.KeptContext = func(_ string, restore func(*scoped.Environment) error) {
			synctest.Wait() // all that a client can reach has happened
			assert.False(t, read.Load())
			old, bad := scoped.Parse([]byte(`[{"type":"a"}]`))
			assert.Nil(t, bad)
			assert.NoError(t, restore(old))
			large, bad := scoped.Parse([]byte(`[{"type":"a","large":"0123456789"}]`))
			assert.Nil(t, bad)
			assert.Error(t, restore(large), "the owner learns it")
			assert.NoError(t, restore(old))
		}
		served := make(chan error, 1)
		go func() { served <- b.face.Serve(t.Context(), ours) }()
		in := bufio.NewReader(theirs)
		send := func(text string) string {
			_, err := theirs.Write([]byte(text + "\n"))
			require.NoError(t, err)
			read.Store(true)
			line, err := in.ReadString('\n')
			require.NoError(t, err)
			return unescape(line)
		}
		const about = `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
		look := contextCall("look", `"arguments":{"_scopes":["a"]}`+about)
		assert.Contains(t, send(look), `sees {"a":[{"type":"a"}]}`)
		send(contextCall("keep", `"arguments":{}`+about))
		assert.Contains(t, send(look), `sees {"a":[{"type":"a","kept":true}]}`)
		theirs.Close()
		require.NoError(t, <-served)
		assert.Equal(t, []string{`[{"type":"a"}]`, "", `[{"type":"a"}]`, `[{"type":"a","kept":true}]`}, kept)
	})
}
