package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
)

func response(t *testing.T, n float64, text string) *jsonrpc.Response {
	t.Helper()
	id, err := jsonrpc.MakeID(n)
	require.NoError(t, err)
	raw, err := json.Marshal(text)
	require.NoError(t, err)
	return &jsonrpc.Response{ID: id, Result: raw}
}

// An error replaces a response for which there is no memory, and the memory is
// released when the client has read.
func TestAnswersAreHeldUntilRead(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	held, most := 0, 0
	l := newLines(ours, NewInbox(tools.NewShare()), func(n int) (func(), bool) {
		if held+n > 1000 {
			return nil, false
		}
		held += n
		most = max(most, held)
		return func() { held -= n }, true
	})
	defer l.Close()
	r := bufio.NewReader(theirs)
	for i, text := range []string{strings.Repeat("x", 900), strings.Repeat("x", 1100), "short"} {
		written := make(chan error, 1)
		go func() { written <- l.Write(context.Background(), response(t, float64(i), text)) }()
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		require.NoError(t, <-written)
		var m struct{ Result json.RawMessage }
		require.NoError(t, json.Unmarshal([]byte(line), &m))
		if i == 1 {
			assert.Contains(t, string(m.Result), `"isError":true`)
			assert.Contains(t, string(m.Result), "rate_limited")
		} else {
			assert.JSONEq(t, `"`+text+`"`, string(m.Result))
		}
		assert.Zero(t, held)
	}
	assert.Greater(t, most, 900)
}

// The connection of a client that does not read is closed.
func TestUnreadEndsTheConnection(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	l := newLines(ours, NewInbox(tools.NewShare()), func(int) (func(), bool) { return func() {}, true })
	l.writeTimeout = 10 * time.Millisecond
	assert.ErrorIs(t, l.Write(context.Background(), response(t, 1, "x")), os.ErrDeadlineExceeded)
	_, err := l.Read(context.Background())
	assert.Error(t, err)
}

// A line that is no message gets an error, and the next message is read.
func TestNoMessage(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	l := newLines(ours, NewInbox(tools.NewShare()), func(int) (func(), bool) { return func() {}, true })
	defer l.Close()
	read := make(chan jsonrpc.Message, 1)
	go func() {
		m, err := l.Read(context.Background())
		assert.NoError(t, err)
		read <- m
	}()
	r := bufio.NewReader(theirs)
	for _, c := range []struct {
		line string
		code int
		id   any
	}{
		{"no json", -32700, nil},
		{`{"id":7,"method":"ping"}`, -32600, 7.0},
		{`{"jsonrpc":"2.0","id":"x","method":5}`, -32600, "x"},
		{`{"id":{"a":1},"method":"ping"}`, -32600, nil},
		{`{"id":"` + strings.Repeat("x", maxBadID) + `","method":"ping"}`, -32600, nil},
		{"[]", -32600, nil},
	} {
		_, err := io.WriteString(theirs, c.line+"\n")
		require.NoError(t, err)
		line, err := r.ReadBytes('\n')
		require.NoError(t, err, c.line)
		var m struct {
			ID    any
			Error struct{ Code int }
		}
		require.NoError(t, json.Unmarshal(line, &m))
		assert.Equal(t, c.id, m.ID, c.line)
		assert.Equal(t, c.code, m.Error.Code, c.line)
	}
	_, err := io.WriteString(theirs, `{"jsonrpc":"2.0","id":1,"method":"ping"}`+"\n")
	require.NoError(t, err)
	assert.Equal(t, "ping", (<-read).(*jsonrpc.Request).Method)
}

// TestMessageOfAnyLength: a message is read when its line is complete, whatever its length is beside the reader's buffer.
func TestMessageOfAnyLength(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	l := newLines(ours, NewInbox(tools.NewShare()), func(int) (func(), bool) { return func() {}, true })
	defer l.Close()
	for id, size := range []int{100, shortMessage - 1, shortMessage, shortMessage + 1, 70_000, 100_000, 2*shortMessage - 1, 2 * shortMessage, 2*shortMessage + 1, 300_000, 100} {
		line := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"x":""}}`+"\n", id)
		line = strings.Replace(line, `""`, `"`+strings.Repeat("y", max(0, size-len(line)))+`"`, 1)
		go func() { _, _ = io.WriteString(theirs, line) }()
		read := make(chan jsonrpc.Message, 1)
		go func() { m, _ := l.Read(context.Background()); read <- m }()
		select {
		case m := <-read:
			r, ok := m.(*jsonrpc.Request)
			require.True(t, ok, "%d bytes", size)
			got, err := clientID(r.ID)
			require.NoError(t, err)
			assert.Equal(t, fmt.Sprint(id), string(got), "%d bytes", size)
		case <-time.After(20 * time.Second):
			t.Fatalf("a message of %d bytes waits for the next one", size)
		}
	}
}
