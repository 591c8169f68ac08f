package client

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRoundTrip: the answers of net/http's server are read as they are sent, and one that ends too early is an error.
func TestRoundTrip(t *testing.T) {
	long := strings.Repeat("some text\n", 10_000)
	answers := map[string]struct {
		serve http.HandlerFunc
		want  string
		err   string
	}{
		"short": {serve: func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }, want: `{"a":1}`},
		"none":  {serve: func(http.ResponseWriter, *http.Request) {}},
		"chunks": {serve: func(w http.ResponseWriter, _ *http.Request) {
			for line := range strings.Lines(long) {
				_, _ = io.WriteString(w, line)
			}
		}, want: long},
		"refused": {serve: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"error":"no such thing","kind":"not_found"}`)
		}, err: "no such thing"},
		"refused in text": {serve: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "x", http.StatusTeapot) }, err: "daemon: 418 I'm a teapot"},
		"too early, by its size": {serve: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "short")
		}, want: "short", err: io.ErrUnexpectedEOF.Error()},
		"too early, in chunks": {serve: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "short")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, want: "short", err: io.ErrUnexpectedEOF.Error()},
	}
	for name, test := range answers {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("unix", t.TempDir()+"/s")
			require.NoError(t, err)
			server := &http.Server{Handler: test.serve}
			go func() { _ = server.Serve(l) }()
			defer server.Close()
			conn, err := net.Dial("unix", l.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			answer, err := roundTrip(conn, "POST", "/x", map[string]int{"a": 1})
			var text []byte
			if err == nil {
				text, err = io.ReadAll(iotest.OneByteReader(answer))
			}
			assert.Equal(t, test.want, string(text))
			if test.err == "" {
				assert.NoError(t, err)
			} else {
				assert.EqualError(t, err, test.err)
			}
		})
	}
}
