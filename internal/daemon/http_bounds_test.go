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

	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/session"
)

// boundedBy serves requests of an agent within the bounds.
func boundedBy(h *httpFace, a *agent.Agent, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.bounded(w, r, a, nil, next) })
}

// TestBodyDeadline: who sends no body is not waited for, and who is answered for
// long is not cut off.
func TestBodyDeadline(t *testing.T) {
	need.Long(t, "waits for a deadline")
	const patience = 300 * time.Millisecond
	a := agent.New(&agent.Shared{Shared: session.Shared{Host: &account.Host{}}}, "a")
	h := &httpFace{patience: patience}
	server := httptest.NewServer(boundedBy(h, a, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		_, err = fmt.Fprintf(conn, "%s / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", method, length, body)
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
	for range agent.MaxRequests {
		_, ok := a.BeginRequest()
		assert.True(t, ok, "no request is in flight")
	}
}
