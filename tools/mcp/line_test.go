package mcp

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLastWords: who pipes a script in, and is at its end, hears the answers.
func TestLastWords(t *testing.T) {
	b := newBench(t, "", nil)
	pair, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	defer pair.Close()
	go func() {
		conn, err := pair.Accept()
		if err == nil {
			_ = b.face.Serve(context.Background(), conn)
		}
	}()
	conn, err := net.Dial("unix", pair.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"x"}}}
`))
	require.NoError(t, err)
	require.NoError(t, conn.(*net.UnixConn).CloseWrite())
	all, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Contains(t, string(all), "text of x")
}

// TestCancelledCallsAreAnswered: they do not count as open for ever.
func TestCancelledCallsAreAnswered(t *testing.T) {
	b := newBench(t, "", nil)
	b.cancel = nil
	for range maxOpen + 10 {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(200*time.Microsecond, cancel)
		_, _ = b.client.CallTool(ctx, &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"path": "x"}})
		cancel()
	}
	assert.False(t, b.call(t, "read_file", map[string]any{"path": "x"}).IsError)
}
