package harness

import (
	"io"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// bearer is a client with a token, which keeps what it hears.
type bearer struct {
	token string
	heard *Heard
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	resp, err := http.DefaultTransport.RoundTrip(r)
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
	what := &Heard{}
	u := h.Attach(opt, nil, &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: bearer{token, what}}})
	u.Heard = what
	return u
}
