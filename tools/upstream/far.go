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

	"github.com/scopefs/scopefs/tools"
)

const (
	dialTimeout = 10 * time.Second // of a connection, and of TLS on it
	maxHeader   = 64 << 10         // bytes of the headers of an answer
	minSecret   = 12               // characters of a header's value that is hidden
)

// far is the client's end of a server that has a URL (streamable HTTP). It is
// the http.RoundTripper of the SDK's transport: it adds the headers, and bounds
// and filters what the server answers, as wire does for commands.
type far struct {
	sdk     mcp.StreamableClientTransport
	server  *url.URL
	headers map[string]string
	net     *http.Transport
	life    context.Context
	cancel  func()
	unread  chan struct{} // one for each request of the server that is not answered

	mu      sync.Mutex
	hidden  [][]byte // longer ones before their parts
	session string
	conn    mcp.Connection
	err     error // why it broke
}

// newFar returns a client of the server at a URL. Nothing is sent yet. ctx bounds
// all requests.
func newFar(ctx context.Context, spec Spec) (*far, error) {
	at, err := url.Parse(spec.URL)
	if err != nil || at.Host == "" || at.Scheme != "https" && at.Scheme != "http" {
		return nil, errors.New("its url is no address: write https://HOST/PATH") // err quotes it
	}
	f := &far{server: at, headers: spec.Headers, unread: make(chan struct{}, maxUnread)}
	f.life, f.cancel = context.WithCancel(ctx)
	f.net = &http.Transport{ // no proxy: it would get the headers
		DialContext: f.dial, TLSHandshakeTimeout: dialTimeout, ForceAttemptHTTP2: true,
		DisableCompression: true, MaxResponseHeaderBytes: maxHeader, IdleConnTimeout: time.Minute,
	}
	f.sdk = mcp.StreamableClientTransport{
		Endpoint: spec.URL, HTTPClient: &http.Client{Transport: f},
		DisableStandaloneSSE: true, // servers that end an idle stream would end the session
	}
	for _, value := range spec.Headers {
		f.hide(value)
	}
	for _, value := range spec.Headers { // "Bearer TOKEN"
		for _, word := range strings.Fields(value) {
			f.hide(word)
		}
	}
	for _, values := range at.Query() {
		for _, value := range values {
			f.hide(value)
		}
	}
	return f, nil
}

// hide has a text replaced in whatever the server answers and in errors.
func (f *far) hide(text string) {
	if len(text) >= minSecret {
		f.hidden = append(f.hidden, []byte(text))
	}
}

func (f *far) without(text []byte) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, secret := range f.hidden {
		if bytes.Contains(text, secret) {
			text = bytes.ReplaceAll(text, secret, []byte("***"))
		}
	}
	return text
}

// dial connects without TLS to loopback only, whatever the name resolves to.
func (f *far) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
	if err != nil || f.server.Scheme == "https" {
		return c, err
	}
	if to, ok := c.RemoteAddr().(*net.TCPAddr); !ok || !to.IP.IsLoopback() {
		c.Close()
		return nil, errors.New("http is for loopback only: use https")
	}
	return c, nil
}

// Connect implements mcp.Transport. It returns the SDK's own connection, whose
// type the SDK asks for.
func (f *far) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := f.sdk.Connect(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conn = c
	return c, err
}

// Close ends the session at the server. It may wait for it.
func (f *far) Close() error {
	f.mu.Lock()
	c := f.conn
	f.mu.Unlock()
	if c == nil {
		return nil
	}
	return c.Close()
}

// kill ends all requests, then the connection.
func (f *far) kill() {
	f.cancel()
	f.Close()
	f.net.CloseIdleConnections()
}

// broke ends the connection, for err if that is the first reason.
func (f *far) broke(err error) error {
	f.mu.Lock()
	if f.err == nil {
		f.err = err
	}
	f.mu.Unlock()
	go f.kill() // Close may be what has called us
	return err
}

// hushed is an error whose text has no secrets.
type hushed struct {
	error
	text string
}

func (h hushed) Error() string { return h.text }
func (h hushed) Unwrap() error { return h.error }

// reason returns why a request or the connection has ended, for which the SDK
// says err.
func (f *far) reason(err error) error {
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
	return hushed{err, string(f.without([]byte(strings.ReplaceAll(text, f.server.String(), "its url"))))}
}

// RoundTrip implements http.RoundTripper. No request goes to another host than
// the server's, for redirects are errors.
func (f *far) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != f.server.Host || r.URL.Scheme != f.server.Scheme {
		return nil, errors.New("it is at another address")
	}
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(f.life, cancel)
	end := func() { stop(); cancel() }
	switch k := kindOf(r); {
	case k == response:
		defer func() {
			select {
			case <-f.unread:
			default:
			}
		}()
		fallthrough
	case k != request && r.Method != http.MethodGet: // a call has its own time
		timer := time.AfterFunc(writeTimeout, cancel)
		end = func() { timer.Stop(); stop(); cancel() }
	}
	r = r.Clone(ctx)
	for name, value := range f.headers {
		r.Header.Set(name, value)
	}
	answer, err := f.net.RoundTrip(r)
	if err == nil {
		err = f.filter(ctx, answer, end)
	}
	if err != nil {
		end()
		return nil, brief(err)
	}
	return answer, nil
}

// kindOf returns what a request of the SDK carries.
func kindOf(r *http.Request) kind {
	if r.GetBody == nil {
		return noise
	}
	body, err := r.GetBody()
	if err != nil {
		return noise
	}
	text, _ := io.ReadAll(body) // of memory
	k, _, _ := parse(text)
	return k
}

// brief returns err without addresses: agents read it.
func brief(err error) error {
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		return errors.New(e.Err)
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return e.Err
	}
	return err
}

// filter gives the answer a body of what is admitted. end is called when that is
// closed, or has been read here.
func (f *far) filter(ctx context.Context, r *http.Response, end func()) error {
	switch {
	case r.StatusCode >= 300 && r.StatusCode < 400:
		r.Body.Close()
		return errors.New("it redirects, which is not followed: write the address itself as its url")
	case r.StatusCode == http.StatusUnauthorized, r.StatusCode == http.StatusForbidden:
		r.Body.Close()
		return fmt.Errorf("it answers %d %s: check its headers in mcp_servers", r.StatusCode, http.StatusText(r.StatusCode))
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
		r.Body = &events{far: f, ctx: ctx, body: r.Body, lines: bufio.NewReaderSize(r.Body, 64<<10), end: end}
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, maxLine+1))
	r.Body.Close()
	if err != nil {
		return err
	}
	if len(text) > maxLine {
		return f.broke(errTooLong)
	}
	text, err = f.admit(ctx, text)
	r.Body = io.NopCloser(bytes.NewReader(text))
	end()
	return err
}

// admit returns what is passed on of a message, see admit.
func (f *far) admit(ctx context.Context, message []byte) ([]byte, error) {
	if many := new(tools.Tally).Add(message); many != nil {
		return nil, f.broke(many)
	}
	k, admitted := admit(f.without(message))
	if k == request {
		select {
		case f.unread <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return admitted, nil
}

// events is a stream of events with messages, filtered. What is no field of an
// event that we use is left out, comments and delays that the server asks for
// among them.
type events struct {
	far   *far
	ctx   context.Context // of its request
	body  io.Closer
	lines *bufio.Reader
	line  []byte
	rest  []byte // to be read
	end   func()
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

// next reads one event: lines up to an empty one.
// https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
func (e *events) next() error {
	var head, data []byte
	for size := 0; ; {
		line, err := readLine(e.lines, e.line[:0], maxLine-size)
		if errors.Is(err, errTooLong) {
			return e.far.broke(err)
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
			data = append(append(data, bytes.TrimPrefix(value, []byte(" "))...), ' ') // for the end of a line, which is in no JSON string
		case "event", "id":
			head = append(append(head, line...), '\n')
		}
	}
	message, err := e.far.admit(e.ctx, data)
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
