package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
)

// oddIDs are ids that float64 or int64 change, and some that they keep.
var oddIDs = []string{`1`, `0`, `-7`, `1.5`, `-0`, `1e2`, `1.0`, `9007199254740993`, `18446744073709551616`, `123456789012345678901234567890`, `0.1e-7`,
	`"text"`, `"1"`, `"1.5"`, `""`, `"a\u0062\n"`, `"<&>"`, `"é\ud83d\ude00"`, `"scopefs-id:1"`, `"scopefs-id:1.5"`}

// A result and an error have the request's id, byte for byte. A request that is cancelled by its id has neither.
func TestIDsOfLines(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	l := newLines(ours, NewInbox(tools.NewShare()), func(int) (func(), bool) { return func() {}, true })
	defer l.Close()
	r := bufio.NewReader(theirs)
	for _, id := range oddIDs {
		for _, form := range []string{`{"jsonrpc":"2.0","id":%s,"method":"ping","params":{"id":3}}`, `{"params":{"id":[3]},"method":"ping", "jsonrpc":"2.0", "id" : %s }`} {
			go fmt.Fprintf(theirs, form+"\n", id)
			m, err := l.Read(context.Background())
			require.NoError(t, err, id)
			request := m.(*jsonrpc.Request)
			require.True(t, request.IsCall())
			responses := []*jsonrpc.Response{{ID: request.ID, Result: json.RawMessage(`{"id":4}`)}, {ID: request.ID, Error: &jsonrpc.Error{Code: 3, Message: "no"}}}
			for _, response := range responses {
				go func() { _ = l.Write(context.Background(), response) }()
				line, err := r.ReadString('\n')
				require.NoError(t, err)
				require.True(t, json.Valid([]byte(line)), line)
				assert.True(t, strings.HasPrefix(line, `{"jsonrpc":"2.0","id":`+id+`,"`), "%s: %s", id, line)
			}
			const cancel = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s,"reason":"r"}}` + "\n"
			go fmt.Fprintf(theirs, cancel+form+"\n"+cancel, id, id, id) // the first is of a request that has its response
			m, err = l.Read(context.Background())
			require.NoError(t, err)
			require.Equal(t, "ping", m.(*jsonrpc.Request).Method)
			m, err = l.Read(context.Background())
			require.NoError(t, err)
			var params struct{ RequestID any }
			require.NoError(t, json.Unmarshal(m.(*jsonrpc.Request).Params, &params))
			cancelled, err := jsonrpc.MakeID(params.RequestID)
			require.NoError(t, err)
			assert.Equal(t, request.ID, cancelled)
			assert.NoError(t, l.Write(context.Background(), responses[0])) // nothing: nobody reads
		}
	}
}

// A subscription's notifications have the client's id of the request.
func TestIDsOfSubscriptions(t *testing.T) {
	b := newBench(t, "", nil)
	for _, id := range []string{`"listen:0"`, `7`, `1.5`, `123456789012345678901234567890`, `"<\u0062>"`} {
		ours, theirs := net.Pipe()
		served := make(chan error, 1)
		go func() { served <- b.face.Serve(t.Context(), ours) }()
		r := bufio.NewReader(theirs)
		_ = theirs.SetDeadline(time.Now().Add(10 * time.Second))
		about := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
		names := `"io.modelcontextprotocol/subscriptionId":` + id
		fmt.Fprintf(theirs, `{"jsonrpc":"2.0","id":%s,"method":"subscriptions/listen","params":{%s,"notifications":{"toolsListChanged":true}}}`+"\n", id, about)
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		assert.Contains(t, line, "notifications/subscriptions/acknowledged")
		assert.Contains(t, line, names)
		go fmt.Fprintf(theirs, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s,%s}}`+"\n", id, about)
		line, err = r.ReadString('\n')
		require.NoError(t, err)
		assert.Contains(t, line, `{"jsonrpc":"2.0","id":`+id+`,"result":`)
		assert.Contains(t, line, names)
		require.NoError(t, theirs.Close())
		<-served
	}
	for in, want := range map[string]string{
		`{"method":"m","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"scopefs-id:1.5"}}}`:          `{"method":"m","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":1.5}}}`,
		`{"id":"scopefs-id:1.5","result":{"_meta":{"io.modelcontextprotocol/subscriptionId":"scopefs-id:1.5"}}}`: `{"id":1.5,"result":{"_meta":{"io.modelcontextprotocol/subscriptionId":1.5}}}`,
	} {
		assert.Equal(t, want, string(unmark([]byte(in))))
		assert.Equal(t, "data: "+want, string(unmark([]byte("data: "+in))), "an event")
	}
}

// A message without an id, or with null, is a notification; any other JSON type is
// no message.
func TestNoIDs(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	l := newLines(ours, NewInbox(tools.NewShare()), func(int) (func(), bool) { return func() {}, true })
	defer l.Close()
	go fmt.Fprint(theirs, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n"+`{"jsonrpc":"2.0","method":"notifications/initialized","id":null}`+"\n"+`{"jsonrpc":"2.0","method":"notifications/initialized","id":[1]}`+"\n")
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(theirs).ReadString('\n')
		answer <- line
		theirs.Close()
	}()
	for range 2 {
		m, err := l.Read(context.Background())
		require.NoError(t, err)
		assert.False(t, m.(*jsonrpc.Request).IsCall())
	}
	_, err := l.Read(context.Background())
	assert.Error(t, err, "the end of the input")
	assert.Contains(t, <-answer, `"id":null,"error":{"code":-32600`)
}

// Over HTTP ids are kept too, and a call with such an id can be cancelled.
func TestIDsOfHTTP(t *testing.T) {
	b := newBench(t, "", nil)
	face := b.face
	server := httptest.NewServer(Handler(func(*http.Request) (*Face, int) { return face, 0 }))
	defer server.Close()
	session := ""
	post := func(text string) string {
		r, err := http.NewRequest(http.MethodPost, server.URL, strings.NewReader(text))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		r.Header.Set("Mcp-Session-Id", session)
		response, err := http.DefaultClient.Do(r)
		if !assert.NoError(t, err) {
			return ""
		}
		defer response.Body.Close()
		if id := response.Header.Get("Mcp-Session-Id"); id != "" && session == "" {
			session = id
		}
		var all bytes.Buffer
		_, err = all.ReadFrom(response.Body)
		assert.NoError(t, err)
		return all.String()
	}
	hello := post(`{"jsonrpc":"2.0","id":1.5,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
	assert.Contains(t, hello, `"id":1.5,`)
	post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	for _, id := range oddIDs {
		for _, method := range []string{`"ping"`, `"tools/list","params":{"cursor":"none"}`} {
			text := post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%s}`, id, method))
			assert.Contains(t, text, `{"jsonrpc":"2.0","id":`+id+`,"`, "%s of %s", method, id)
		}
	}
	const id = `123456789012345678901234567890`
	answered := make(chan string, 1)
	go func() {
		answered <- post(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"bash","arguments":{"path":"x"}}}`)
	}()
	for text := ""; text == ""; { // the call may not have begun
		post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
		select {
		case text = <-answered:
			assert.Regexp(t, "was cancelled|context canceled", text) // in the door, or before it
		case <-time.After(10 * time.Millisecond):
		}
	}
}
