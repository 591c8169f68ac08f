package integration

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func (h *host) door(agent string) string { return h.base + "/run/mcp/" + agent + ".sock" }

// raw is a client that says whatever it likes.
type raw struct {
	*net.UnixConn
	t   *testing.T
	in  *bufio.Reader
	end time.Time
}

func (h *host) dial(agent string) *raw {
	h.t.Helper()
	conn, err := net.Dial("unix", h.door(agent))
	require.NoError(h.t, err)
	h.t.Cleanup(func() { conn.Close() })
	end := time.Now().Add(20 * time.Second)
	require.NoError(h.t, conn.SetDeadline(end))
	return &raw{conn.(*net.UnixConn), h.t, bufio.NewReader(conn), end}
}

const hello = `{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}` + "\n" +
	`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"

// greet does the handshake.
func (r *raw) greet() *raw {
	r.t.Helper()
	_, err := io.WriteString(r, hello)
	require.NoError(r.t, err)
	assert.Contains(r.t, r.line(), `"serverInfo"`)
	return r
}

// line reads one message.
func (r *raw) line() string {
	r.t.Helper()
	text, err := r.in.ReadString('\n')
	require.NoError(r.t, err, text)
	return text
}

// rest is what comes until the other end is closed.
func (r *raw) rest() string {
	r.t.Helper()
	text, err := io.ReadAll(r.in)
	if err != nil && !strings.Contains(err.Error(), "reset by peer") {
		require.NoError(r.t, err)
	}
	return string(text)
}

// request is a call of a tool, as a line.
func request(id int, tool string, arguments string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, id, tool, arguments) + "\n"
}

// resident is how much memory the daemon uses, in MiB.
func (h *host) resident() int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.cmd.Process.Pid))
	require.NoError(h.t, err)
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	kb, err := strconv.Atoi(strings.Fields(after)[0])
	require.NoError(h.t, err)
	return kb >> 10
}
