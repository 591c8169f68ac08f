package egress

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/packets"
	"github.com/scopefs/scopefs/scope/network"
)

// strict makes the calls of a proxy those of a process: a message has a bound. The function returns the first error.
func (l *lab) strict() (failed func() error) {
	var mu sync.Mutex
	var first error
	call := l.far.call
	l.far.call = func(ctx context.Context, q Request, give syscall.Conn) (Reply, *os.File, error) {
		text, err := json.Marshal(q)
		if err == nil && len(text) > packets.Max {
			err = errors.New("the message is too large")
		}
		var r Reply
		var file *os.File
		if err == nil {
			r, file, err = call(ctx, q, give)
		}
		mu.Lock()
		defer mu.Unlock()
		if first == nil {
			first = err
		}
		return r, file, err
	}
	return func() error { mu.Lock(); defer mu.Unlock(); return first }
}

// TestAttackLongRequest: a refused request whose target no message takes is answered and recorded. It does not end the agent's process.
func TestAttackLongRequest(t *testing.T) {
	rule, _ := host(t, "a.example", false, hello)
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, nil)
	failed := l.strict()
	for name, target := range map[string]string{"long": strings.Repeat("a", 60<<10), "larger in JSON": strings.Repeat("&", 23<<10)} {
		got := l.raw(t, "GET http://a.example/"+target+" HTTP/1.1\r\nHost: a.example\r\nUser-Agent: a\r\nUser-Agent: b\r\n\r\n")
		assert.Contains(t, got, "User-Agent", name)
	}
	require.NoError(t, failed())
	refused := 0
	for _, e := range l.log() {
		if denial(e) {
			refused++
		}
	}
	assert.Equal(t, 2, refused)
}

// TestAttackLongError: the end of a request is recorded, however long the error is in which the host is quoted.
func TestAttackLongError(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4<<10))
			_, _ = c.Write([]byte(strings.Repeat("\x01", 60<<10) + "\r\n\r\n"))
			c.Close()
		}
	}()
	l := start(t, network.Spec{Allow: []network.HostRule{{Host: "a.example", Address: listener.Addr().(*net.TCPAddr).AddrPort()}}}, nil)
	failed := l.strict()
	assert.Contains(t, l.raw(t, "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"), "502")
	l.logged(t, func(e audit.Event) bool { return e.Outcome == "failed" })
	require.NoError(t, failed())
}
