package daemon

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/scope"
)

// TestBodyDeadline: who sends no body is not waited for, and who is answered for
// long is not cut off.
func TestBodyDeadline(t *testing.T) {
	need.Long(t, "waits for a deadline")
	const patience = 300 * time.Millisecond
	a := agent.New(&session.Shared{}, "a")
	h := &httpFace{d: &Daemon{agents: map[scope.ID]*agent.Agent{"a": a}}, key: []byte("key"), patience: patience}
	server := httptest.NewServer(h.bounded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			http.Error(w, "no body", http.StatusBadRequest)
			return
		}
		for range 4 {
			_, _ = io.WriteString(w, "data\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(patience):
			}
		}
		_, _ = io.WriteString(w, "end\n")
	})))
	defer server.Close()
	request := func(method string, length int, body string) string {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
		_, err = fmt.Fprintf(conn, "%s / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", method, token(h.key, "a"), length, body)
		require.NoError(t, err)
		answer, err := io.ReadAll(conn)
		require.NoError(t, err)
		return string(answer)
	}
	assert.Contains(t, request(http.MethodPost, 100, ""), "400 Bad Request")
	assert.Contains(t, request(http.MethodPost, 100, "{"), "400 Bad Request")
	for _, answer := range []string{request(http.MethodPost, 2, "{}"), request(http.MethodGet, 0, "")} {
		assert.Equal(t, 4, strings.Count(answer, "data\n"))
		assert.Contains(t, answer, "end\n")
	}
	for range session.MaxRequests {
		_, ok := a.BeginRequest()
		assert.True(t, ok, "no request is in flight")
	}
}

// nowhere is a listener of connections that lead nowhere.
type nowhere struct{ net.Listener }

func (nowhere) Accept() (net.Conn, error) { return &nobody{}, nil }

type nobody struct {
	net.Conn
	closed bool
}

func (n *nobody) Close() error { n.closed = true; return nil }

func accept(t *testing.T, table *connTable, n int) (conns []*httpConn) {
	for range n {
		c, err := table.Accept()
		require.NoError(t, err)
		conns = append(conns, c.(*httpConn))
	}
	return conns
}

// open returns how many of them are open.
func open(conns []*httpConn) (n int) {
	for _, c := range conns {
		if !c.Conn.(*nobody).closed {
			n++
		}
	}
	return n
}

func TestConnTable(t *testing.T) {
	t.Run("a stranger closes the oldest stranger", func(t *testing.T) {
		table := newConnTable(nowhere{})
		ours := accept(t, table, 1)
		ours[0].begin("a")
		ours[0].end()
		first := accept(t, table, maxStrangers)
		assert.Equal(t, maxStrangers, open(first))
		accept(t, table, 3)
		assert.Zero(t, open(first[:3]))
		assert.Equal(t, maxStrangers-3, open(first))
		accept(t, table, 10*maxStrangers)
		assert.Zero(t, open(first))
		assert.Equal(t, 1, open(ours))
	})
	t.Run("a token closes its own, without a request first", func(t *testing.T) {
		table := newConnTable(nowhere{})
		other := accept(t, table, 1)
		other[0].begin("b")
		other[0].end()
		var hers []*httpConn
		for i := range maxOfToken {
			c := accept(t, table, 1)[0]
			hers = append(hers, c)
			c.begin("a")
			if i%2 == 1 {
				c.end()
			}
		}
		assert.Equal(t, maxOfToken, open(hers))
		accept(t, table, 1)[0].begin("a")
		assert.Equal(t, 1, open(hers[:1]), "a request is under way")
		assert.Zero(t, open(hers[1:2]))
		assert.Equal(t, maxOfToken-1, open(hers))
		assert.Equal(t, 1, open(other))
	})
	t.Run("a full table closes one of the token with the most", func(t *testing.T) {
		table := newConnTable(nowhere{})
		var all []*httpConn
		for _, id := range []scope.ID{"a", "b", "c", "d", "e", "f", "g", "h"} {
			for range maxOfToken - 1 {
				c := accept(t, table, 1)[0]
				c.begin(id)
				c.end()
				all = append(all, c)
			}
		}
		most := accept(t, table, 1)[0]
		most.begin("a")
		more := accept(t, table, 8)
		for _, c := range more {
			c.begin("z")
		}
		assert.Equal(t, 8, open(more))
		assert.Equal(t, maxConns, table.total)
		assert.Zero(t, open(all[:1]), "the first of a")
		assert.Equal(t, len(all)-1, open(all))
		for _, c := range append(append(all, more...), most) {
			c.Close()
			c.Close()
		}
		assert.Zero(t, table.total)
		assert.Empty(t, table.of)
	})
}
