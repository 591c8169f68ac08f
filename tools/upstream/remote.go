package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/dial"
	"github.com/scopefs/scopefs/internal/mask"
	"github.com/scopefs/scopefs/internal/rpc"
	"github.com/scopefs/scopefs/tools/egress"
)

const (
	maxHeader = 64 << 10 // bytes of a response's headers
	minSecret = 12       // bytes; shorter header values are not redacted
)

// remote is the transport to a server with a URL (streamable HTTP). It is the
// http.RoundTripper of the SDK's transport: it adds the headers, limits and filters
// responses as stdio does for commands, and redacts secrets in them.
type remote struct {
	sdk     mcp.StreamableClientTransport
	server  *url.URL
	headers map[string]string
	net     *http.Transport
	life    context.Context
	cancel  func()
	unread  chan struct{} // one element per request of the server in flight
	notices *notices

	mu      sync.Mutex
	hidden  []string // secrets
	mask    *mask.Mask
	session string // Mcp-Session-Id
	conn    mcp.Connection
	err     error // the first cause of the connection's end
}

// newRemote returns a transport to spec.URL and sends nothing yet. The end of ctx
// cancels all requests.
func newRemote(ctx context.Context, spec Spec, n *notices) (*remote, error) {
	at, err := url.Parse(spec.URL)
	if err != nil || at.Host == "" || at.Scheme != "https" && at.Scheme != "http" {
		return nil, errors.New("invalid url: write https://HOST/PATH") // err would quote the url
	}
	f := &remote{server: at, headers: spec.Headers, unread: make(chan struct{}, maxUnread), notices: n}
	f.life, f.cancel = context.WithCancel(ctx)
	f.net = egress.NewTransport(f.dial, egress.ClientLimits{Header: maxHeader, HTTP2: true})
	f.net.DisableCompression = true
	f.sdk = mcp.StreamableClientTransport{
		Endpoint: spec.URL, HTTPClient: egress.NewClient(f),
		DisableStandaloneSSE: true, // otherwise a server that closes an idle stream ends the session
	}
	for _, value := range spec.Headers { // "Bearer TOKEN"
		f.hide(append(strings.Fields(value), value)...)
	}
	for _, values := range at.Query() {
		f.hide(values...)
	}
	return f, nil
}

// hide redacts texts in responses and errors, if they have at least minSecret bytes.
func (f *remote) hide(texts ...string) {
	for _, text := range texts {
		if len(text) >= minSecret {
			f.hidden = append(f.hidden, mask.Forms(text)...)
		}
	}
	f.mask = mask.New(f.hidden...)
}

// without returns text with all secrets replaced by "***".
func (f *remote) without(text string) string {
	f.mu.Lock()
	m := f.mask
	f.mu.Unlock()
	return m.Replace(text)
}

// dial connects to the server. Without TLS it accepts only a loopback address; it
// checks the connected address, so that DNS cannot change it.
func (f *remote) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := dial.Context(ctx, network, address)
	if err != nil || f.server.Scheme == "https" {
		return c, err
	}
	if to, ok := c.RemoteAddr().(*net.TCPAddr); !ok || !to.IP.IsLoopback() {
		c.Close()
		return nil, errors.New("http to a host other than loopback: use https")
	}
	return c, nil
}

// Connect implements mcp.Transport. It returns the SDK's own connection type, which
// the SDK requires.
func (f *remote) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := f.sdk.Connect(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conn = c
	return c, err
}

// Close sends the request that ends the session, and waits for the response.
func (f *remote) Close() error {
	f.mu.Lock()
	c := f.conn
	f.mu.Unlock()
	if c == nil {
		return nil
	}
	return c.Close()
}

// kill cancels all requests and closes the connection.
func (f *remote) kill() {
	f.cancel()
	f.Close()
	f.net.CloseIdleConnections()
}

// broke closes the connection and records err if it is the first cause. It returns
// err.
func (f *remote) broke(err error) error {
	f.mu.Lock()
	if f.err == nil {
		f.err = err
	}
	f.mu.Unlock()
	go f.kill() // Close may be our caller
	return err
}

// redacted is an error with the secrets removed from its text.
type redacted struct {
	error
	text string
}

func (r redacted) Error() string { return r.text }
func (r redacted) Unwrap() error { return r.error }

// reason returns the cause of a failed request or of the connection's end, without
// secrets and the URL; err is the SDK's error.
func (f *remote) reason(err error) error {
	f.mu.Lock()
	broken := f.err
	f.mu.Unlock()
	switch _, theirs := answered(err); {
	case broken != nil && !theirs:
		return broken
	case err == nil:
		return errors.New("the connection ended")
	}
	text := err.Error()
	if e, ok := errors.AsType[*url.Error](err); ok {
		text = e.Err.Error()
	}
	return redacted{err, f.without(strings.ReplaceAll(text, f.server.String(), "its url"))}
}

// RoundTrip implements http.RoundTripper. It refuses any other scheme or host than
// the server's, and redirects.
func (f *remote) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != f.server.Host || r.URL.Scheme != f.server.Scheme {
		return nil, errors.New("the request is for another host than the url's")
	}
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(f.life, cancel)
	end := func() { stop(); cancel() }
	switch k := kindOf(r); {
	case k == rpc.Response:
		defer func() {
			select {
			case <-f.unread:
			default:
			}
		}()
		fallthrough
	case k != rpc.Request && r.Method != http.MethodGet: // a call has its own timeout
		timer := time.AfterFunc(writeTimeout, cancel)
		end = func() { timer.Stop(); stop(); cancel() }
	}
	r = r.Clone(ctx)
	for name, value := range f.headers {
		r.Header.Set(name, value)
	}
	resp, err := f.net.RoundTrip(r)
	if err == nil {
		err = f.filter(ctx, resp, end)
	}
	if err != nil {
		end()
		return nil, brief(err)
	}
	return resp, nil
}

// kindOf returns the kind of the message in a request's body.
func kindOf(r *http.Request) rpc.Kind {
	if r.GetBody == nil {
		return rpc.None
	}
	body, err := r.GetBody()
	if err != nil {
		return rpc.None
	}
	text, _ := io.ReadAll(body) // from memory: it cannot fail
	return parse(text).Kind
}

// brief returns err without addresses, because agents read it.
func brief(err error) error {
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		return errors.New(e.Err)
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return e.Err
	}
	return err
}

// filter replaces the response's body by the admitted messages. It calls end when
// the body has been read, or for a stream of events when the body is closed.
func (f *remote) filter(ctx context.Context, r *http.Response, end func()) error {
	switch {
	case r.StatusCode >= 300 && r.StatusCode < 400:
		r.Body.Close()
		return errors.New("the server redirects, and redirects are not followed: write the final address as its url")
	case r.StatusCode == http.StatusUnauthorized, r.StatusCode == http.StatusForbidden:
		r.Body.Close()
		return fmt.Errorf("the server answers %d %s: check its headers in mcp_servers", r.StatusCode, http.StatusText(r.StatusCode))
	}
	if id := r.Header.Get("Mcp-Session-Id"); id != "" {
		f.mu.Lock()
		if f.session == "" {
			f.session = id
			f.hide(id)
		}
		f.mu.Unlock()
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "text/event-stream" {
		r.Body = &events{remote: f, ctx: ctx, body: r.Body, lines: bufio.NewReaderSize(r.Body, 64<<10), end: end}
		return nil
	}
	text, err := bounded.Read(r.Body, maxLine)
	r.Body.Close()
	if errors.Is(err, bounded.ErrTooLong) {
		return f.broke(errTooLong)
	}
	if err != nil {
		return err
	}
	text, err = f.admit(ctx, text)
	r.Body = io.NopCloser(bytes.NewReader(text))
	end()
	return err
}

// admit redacts and filters a message as the function admit does. For a request it
// waits while maxUnread requests are in flight.
func (f *remote) admit(ctx context.Context, message []byte) ([]byte, error) {
	if bad := f.notices.read(message); bad != nil {
		return nil, f.broke(bad)
	}
	k, admitted := admit([]byte(f.without(string(message))), f.notices)
	if k == rpc.Request {
		select {
		case f.unread <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return admitted, nil
}

// events is a filtered stream of server-sent events. It keeps the fields data,
// event and id, and drops all others, among them comments and retry.
type events struct {
	remote *remote
	ctx    context.Context // of its request
	body   io.Closer
	lines  *bufio.Reader
	line   []byte
	rest   []byte // to be returned by Read
	end    func()
}

func (e *events) Read(p []byte) (int, error) {
	for len(e.rest) == 0 {
		if err := e.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

func (e *events) Close() error {
	e.end()
	return e.body.Close()
}

// next reads one event, which ends at an empty line.
// https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
func (e *events) next() error {
	var head, data []byte
	for size := 0; ; {
		line, err := rpc.ReadLine(e.lines, e.line[:0], maxLine-size)
		if errors.Is(err, rpc.ErrTooLong) {
			return e.remote.broke(errTooLong)
		}
		e.line, size = line, size+len(line)
		line = bytes.TrimRight(line, "\r\n")
		if err != nil && (len(line) > 0 || len(data) == 0) {
			return err
		}
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch string(name) {
		case "data":
			data = append(append(data, bytes.TrimPrefix(value, []byte(" "))...), ' ') // a space instead of the newline, equal in JSON
		case "event", "id":
			head = append(append(head, line...), '\n')
		}
	}
	message, err := e.remote.admit(e.ctx, data)
	if err != nil {
		return err
	}
	e.rest = head
	if message = bytes.TrimSpace(message); len(message) > 0 {
		e.rest = append(append(append(e.rest, "data: "...), message...), '\n')
	}
	if len(e.rest) > 0 {
		e.rest = append(e.rest, '\n')
	}
	return nil
}
