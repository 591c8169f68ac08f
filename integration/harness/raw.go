package harness

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Door returns the path of the socket of an agent's tools.
func (h *Host) Door(agent string) string { return h.Base + "/run/mcp/" + agent + ".sock" }

// Raw is a client that writes any bytes.
type Raw struct {
	*net.UnixConn
	t   testing.TB
	In  *bufio.Reader
	end time.Time
}

// Dial connects to the socket of an agent's tools. The connection lasts for 20 seconds.
func (h *Host) Dial(agent string) *Raw {
	h.T.Helper()
	conn, err := net.Dial("unix", h.Door(agent))
	require.NoError(h.T, err)
	h.T.Cleanup(func() { conn.Close() })
	end := time.Now().Add(20 * time.Second)
	require.NoError(h.T, conn.SetDeadline(end))
	return &Raw{conn.(*net.UnixConn), h.T, bufio.NewReader(conn), end}
}

// Hello is the handshake of a client, in lines.
const Hello = `{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}` + "\n" +
	`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"

// Greet does the handshake.
func (r *Raw) Greet() *Raw {
	r.t.Helper()
	_, err := io.WriteString(r, Hello)
	require.NoError(r.t, err)
	assert.Contains(r.t, r.Line(), `"serverInfo"`)
	return r
}

// Line reads one message.
func (r *Raw) Line() string {
	r.t.Helper()
	text, err := r.In.ReadString('\n')
	require.NoError(r.t, err, text)
	return text
}

// Rest reads until the other end is closed.
func (r *Raw) Rest() string {
	r.t.Helper()
	text, err := io.ReadAll(r.In)
	if err != nil && !strings.Contains(err.Error(), "reset by peer") {
		require.NoError(r.t, err)
	}
	return string(text)
}

// Request returns a call of a tool, as a line.
func Request(id int, tool string, arguments string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, id, tool, arguments) + "\n"
}
