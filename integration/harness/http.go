package harness

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// bearer is a client with a token, or none, which keeps what it hears.
type bearer struct {
	token string
	heard *Heard
	by    http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if b.token != "" {
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	resp, err := b.by.RoundTrip(r)
	if err == nil {
		resp.Body = &overheard{resp.Body, b.heard}
	}
	return resp, err
}

type overheard struct {
	io.ReadCloser
	heard *Heard
}

func (o *overheard) Read(p []byte) (int, error) {
	n, err := o.ReadCloser.Read(p)
	_, _ = o.heard.Write(append([]byte("read "), p[:n]...))
	return n, err
}

// Token returns the token of an agent's clients over HTTP.
func (h *Host) Token(agent string) string {
	h.T.Helper()
	return strings.TrimSpace(h.Must("token", agent))
}

// ConnectHTTP connects by streamable HTTP.
func (h *Host) ConnectHTTP(opt *mcp.ClientOptions, url, token string) *User {
	h.T.Helper()
	return h.connectHTTP(opt, url, bearer{token, &Heard{}, http.DefaultTransport})
}

// ConnectSocket connects by streamable HTTP on the agent's socket.
func (h *Host) ConnectSocket(agent string) *User {
	h.T.Helper()
	return h.connectHTTP(nil, SocketURL, bearer{"", &Heard{}, BySocket(h.Door(agent)).Transport})
}

func (h *Host) connectHTTP(opt *mcp.ClientOptions, url string, by bearer) *User {
	h.T.Helper()
	u := h.Attach(opt, nil, &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: by}})
	u.Heard = by.heard
	return u
}

// SocketURL is the URL of MCP on each socket.
const SocketURL = "http://localhost/mcp"

// BySocket returns a client that connects to a unix socket, whatever the URL.
func BySocket(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}}
}
