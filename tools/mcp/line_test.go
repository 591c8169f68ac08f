package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	l := newLines(ours, func(n int) (func(), bool) {
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
	l := newLines(ours, func(int) (func(), bool) { return func() {}, true })
	l.writeTimeout = 10 * time.Millisecond
	assert.ErrorIs(t, l.Write(context.Background(), response(t, 1, "x")), os.ErrDeadlineExceeded)
	_, err := l.Read(context.Background())
	assert.Error(t, err)
}

// A line that is no message gets a parse error and ends the connection.
func TestNoMessage(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	l := newLines(ours, func(int) (func(), bool) { return func() {}, true })
	failed := make(chan error, 1)
	go func() {
		_, err := l.Read(context.Background())
		failed <- err
		l.Close()
	}()
	_, err := io.WriteString(theirs, "no json\n")
	require.NoError(t, err)
	all, err := io.ReadAll(theirs)
	require.NoError(t, err)
	assert.Error(t, <-failed)
	var m struct {
		ID    any
		Error struct{ Code int }
	}
	require.NoError(t, json.Unmarshal(all, &m))
	assert.Nil(t, m.ID)
	assert.Equal(t, -32700, m.Error.Code)
}
