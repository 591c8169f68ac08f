package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/scope"
)

// serveHTTP answers a request to the proxy, or one inside a tunnel.
func (p *Proxy) serveHTTP(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	o := r.Context().Value(originKey{}).(*origin)
	p.bounds.wait(ctx, r)
	release, many := p.bounds.take(r)
	if many == nil {
		defer release()
	}
	a := p.newAccess(o.in, "request")
	a.method, a.upgrade, a.proto = r.Method, wantsUpgrade(r), r.ProtoMajor
	a.field, a.parameter = misread(r.Header), inQuery(r.URL.RawQuery)
	a.watched = r.Body != nil && r.Body != http.NoBody && len(finders(r.Header["Content-Type"])) > 0
	wrong := a.locate(r, o)
	if many != nil {
		p.overload(w, r, a, wrong, many)
		return
	}
	if wrong != nil {
		wrong = p.authority.deny(r.Context(), a, wrong)
	} else {
		wrong = p.admit(r.Context(), a)
	}
	if wrong != nil {
		p.refuse(w, a, wrong)
		return
	}
	p.exchange(w, r, a)
}

// locate takes the place of a request from its target, which must be that of its
// connection.
func (a *access) locate(r *http.Request, o *origin) *refusal {
	a.scheme, a.host, a.port = o.scheme, o.host, o.port
	a.path = r.URL.EscapedPath()
	if a.path == "" {
		a.path = "/"
	}
	host, absolute := r.Host, r.URL.Host != ""
	switch {
	case r.Method == http.MethodConnect:
		return malformed("CONNECT in a tunnel, or after another request")
	case r.Method == "" || strings.Trim(r.Method, tokenChars) != "":
		return malformed("the method of a request is no token")
	case badTarget(r.RequestURI):
		return malformed(badTargetText)
	case strings.HasPrefix(rawPath(r.RequestURI), "//") && r.URL.EscapedPath() != rawPath(r.RequestURI):
		return malformed("a target that begins with // has a character that no URL has") // url.URL cannot have both
	case len(r.Header["User-Agent"]) > 1:
		return malformed("a request has %d User-Agent fields", len(r.Header["User-Agent"])) // net/http sends the first alone
	case o.scheme == "" && !absolute:
		return malformed("this is a proxy: a request needs an absolute URL")
	case absolute && o.scheme != "" && r.URL.Scheme != o.scheme || o.scheme == "" && r.URL.Scheme != "http":
		return malformed("the scheme is not that of the connection: use CONNECT for https")
	case len(r.Header["Host"]) > 1:
		return malformed("a request has %d Host fields", len(r.Header["Host"]))
	case len(r.Header["Host"]) > 0 && r.Header["Host"][0] != host: // HTTP/2 may have both
		return violates(scope.KindProtocol, "protocol", "the Host field is not the authority")
	}
	if o.scheme == "" {
		a.scheme = "http"
		var err error
		if a.host, a.port, err = splitHost(host, 80); err != nil {
			return refusalOf(err)
		}
		return nil
	}
	name, port, err := splitHost(host, 0)
	if err != nil {
		return refusalOf(err)
	}
	if name != o.host || port != 0 && port != o.port {
		return violates(scope.KindProtocol, "protocol", "the Host field is not %s", o.host)
	}
	return nil
}

// serveConnect serves a connection that begins with CONNECT. No server of net/http sees it: a new tunnel would wait for
// two more goroutines.
func (p *Proxy) serveConnect(ctx context.Context, in *incoming) {
	answer := func(r *refusal) error {
		text := []byte("HTTP/1.1 200 Connection established\r\n\r\n")
		if r != nil {
			text = r.raw()
		}
		_ = in.SetWriteDeadline(time.Now().Add(p.Limits.Speak))
		defer func() { _ = in.SetWriteDeadline(time.Time{}) }()
		_, err := in.Write(text)
		return err
	}
	host, port, err := readConnect(in)
	if err == nil {
		p.stream(ctx, in, host, port, answer)
		return
	}
	var wrong *refusal
	if errors.As(err, &wrong) && answer(p.authority.deny(ctx, p.newAccess(in, "connect"), wrong)) == nil {
		linger(in, p.Limits.Speak)
	}
	in.Close()
}

// readConnect reads the head of a CONNECT, of which the first bytes are read. What follows the head stays to be read.
func readConnect(in *incoming) (host string, port uint16, err error) {
	var f framing
	for known := 0; f.part != opaque; {
		if wrong := f.follow(in.ahead[known:]); wrong != nil {
			return "", 0, wrong
		}
		if known = len(in.ahead); f.part == opaque {
			break
		}
		if known > shortHead {
			return "", 0, malformed("the head of CONNECT has more than %d bytes", shortHead)
		}
		if err := in.more(); err != nil {
			return "", 0, err
		}
	}
	_, in.ahead, _ = bytes.Cut(in.ahead, []byte("\r\n\r\n"))
	if host, port, err = splitHost(f.target, 0); err == nil && port == 0 {
		err = malformed("CONNECT needs a port")
	}
	return host, port, err
}

// accessKey is the key of the access in the context of a request.
type accessKey struct{}

// exchange forwards a request that was admitted, and its response.
func (p *Proxy) exchange(w http.ResponseWriter, r *http.Request, a *access) {
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), accessKey{}, a))
	defer cancel()
	defer p.track(a, cancel)()
	defer p.watch(a)()
	defer p.passes(w, a)()
	// A response that breaks off makes ServeHTTP panic, for the server to see.
	failure := &refusal{Message: "the response broke off"}
	defer func() {
		if stopped := a.stopped.Load(); stopped != nil {
			failure = stopped
		}
		p.authority.end(ctx, a, failure)
	}()
	_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/2 always is
	if a.upward {
		a.remote = p.Dialer.Upstream.name()
	}
	r = r.WithContext(ctx)
	r.Body = &counted{ReadCloser: r.Body, n: &a.sent, spend: p.stopper(a)}
	p.forward.ServeHTTP(&answer{w, r, a, p.stopper(a), cancel}, r)
	failure = a.failure
}

// passes lets a client take a response slowly, until the function that it returns is called. What net/http
// then writes of the response ends in time.
func (p *Proxy) passes(w http.ResponseWriter, a *access) (over func()) {
	if a.proto == 2 {
		return func() { _ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(p.Limits.Speak)) }
	}
	a.in.passes.Store(true)
	return func() { a.in.passes.Store(false) }
}

// answer is a response to the client. Interim ones pass as the response itself does: without fields of the host's
// connection, masked and counted.
type answer struct {
	http.ResponseWriter
	request *http.Request
	access  *access
	spend   func(int64) error
	cancel  func()
}

func (w *answer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *answer) WriteHeader(status int) {
	h := w.Header()
	if status < 200 && status != http.StatusSwitchingProtocols {
		// RFC 9110, section 15.2. net/http itself sends the 100 of a request that expects it, when its body is read.
		if w.request.ProtoAtLeast(1, 1) && (status != http.StatusContinue || w.request.Header["Expect"] == nil) {
			for _, name := range hops {
				h.Del(name)
			}
			if w.access.mask != nil {
				redactHeader(w.access.mask, h)
			}
			if w.spend(headSize("", h)) != nil {
				w.cancel()
				return
			}
			w.ResponseWriter.WriteHeader(status)
		}
		return
	}
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil // net/http would guess it
	}
	w.ResponseWriter.WriteHeader(status)
}

// hops are the fields of a connection (RFC 9110, section 7.6.1).
var hops = []string{"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Te", "Trailer", "Upgrade"}

// stopper returns what counts bytes, and stops an access that has no more.
func (p *Proxy) stopper(a *access) func(int64) error {
	return func(n int64) error {
		if r := p.spend(n); r != nil {
			a.stopped.Store(r)
			return r
		}
		return nil
	}
}

// headSize returns about how many bytes the head of a request or a response has. Only the
// limits count them; the log has the bytes of bodies.
func headSize(target string, h http.Header) int64 {
	n := len(target)
	for name, fields := range h {
		for _, field := range fields {
			n += len(name) + len(field) + len(": \r\n")
		}
	}
	return int64(n)
}

// counted counts the bytes of a body.
type counted struct {
	io.ReadCloser
	n     *atomic.Int64
	spend func(int64) error
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	if stop := c.spend(int64(n)); stop != nil {
		return 0, stop
	}
	return n, err
}

// upgraded is a counted body that is a connection.
type upgraded struct {
	counted
	io.Writer
	sent *atomic.Int64
}

func (u *upgraded) Write(p []byte) (int, error) {
	u.sent.Add(int64(len(p))) // first: the host may answer and end the connection before Write returns here
	n, err := u.Writer.Write(p)
	u.sent.Add(int64(n - len(p)))
	return n, errors.Join(err, u.spend(int64(n)))
}

// newForward returns what forwards requests. It is net/http's reverse proxy: it
// writes requests and responses anew, so that nothing of a client's framing
// passes, and streams them, in HTTP/1.1 and HTTP/2 on both sides. elazarl/goproxy
// answers an intercepted client in HTTP/1.1 alone (its issue 537).
func (p *Proxy) newForward() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: roundTripper(p.roundTrip), FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		ModifyResponse: func(res *http.Response) error {
			a := res.Request.Context().Value(accessKey{}).(*access)
			a.status = res.StatusCode
			if err := p.stopper(a)(headSize("", res.Header)); err != nil {
				return err
			}
			body := counted{res.Body, &a.got, p.stopper(a)}
			if w, ok := res.Body.(io.Writer); ok {
				res.Body = &upgraded{body, w, &a.sent}
			} else {
				res.Body = &body
			}
			if a.upgrade && res.StatusCode != http.StatusSwitchingProtocols {
				res.Header.Set("Connection", "close") // framedConn reads no more requests
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			a := r.Context().Value(accessKey{}).(*access)
			if a.failure = a.stopped.Load(); a.failure == nil {
				a.failure = failed(a.host, err)
			}
			a.status = a.failure.status
			_ = a.failure.write(w, a)
		},
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// roundTrip sends a request to its host, with its credential.
func (p *Proxy) roundTrip(r *http.Request) (*http.Response, error) {
	a := r.Context().Value(accessKey{}).(*access)
	secrets := p.authority.secrets()
	if !p.authority.holds(a) { // the secrets may be those of later rules, which mean another host
		return nil, changed()
	}
	if wrong := leak(r, a, secrets); wrong != nil {
		return nil, wrong
	}
	a.watchMethod(r)
	if err := p.stopper(a)(headSize(r.URL.RequestURI(), r.Header)); err != nil {
		return nil, err
	}
	if a.secret == "" {
		return p.send(r, a)
	}
	if err := p.equip(r, a, secrets); err != nil {
		return nil, err
	}
	res, err := p.send(r, a)
	if err != nil {
		return nil, unquoted(err)
	}
	if res.StatusCode == http.StatusUnauthorized {
		p.forget(a.secret)
	}
	if err := redact(res, a.mask); err != nil {
		res.Body.Close()
		return nil, err
	}
	return res, nil
}

// send sends a request. That the upstream proxy wants a login is not for the client, which has none.
func (p *Proxy) send(r *http.Request, a *access) (*http.Response, error) {
	res, err := p.transport.Load().RoundTrip(r)
	if err == nil && a.upward && a.scheme == "http" && res.StatusCode == http.StatusProxyAuthRequired {
		res.Body.Close()
		return nil, p.Dialer.Upstream.answered(res.StatusCode)
	}
	return res, err
}

// unquoted returns an error without what a host has sent. Errors of net/http quote
// a response that it cannot read.
func unquoted(err error) error {
	var connection *net.OpError
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var up *upstreamError
	var own *refusal
	if errors.As(err, &own) || errors.As(err, &up) || errors.As(err, &connection) || errors.As(err, &dns) || errors.As(err, &cert) || errors.As(err, &record) ||
		errors.Is(err, ErrAddress) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return errors.New("the response cannot be read")
}

// wantsUpgrade reports whether the framedConn of a request's connection is blind now.
func wantsUpgrade(r *http.Request) bool {
	return slices.ContainsFunc(r.Header["Upgrade"], isWebSocket)
}

// rewrite addresses a request to its host. What net/http/httputil takes out of the target and of the fields, it puts back.
func rewrite(r *httputil.ProxyRequest) {
	a := r.In.Context().Value(accessKey{}).(*access)
	r.Out.URL.Scheme, r.Out.URL.Host, r.Out.URL.User = a.scheme, authorityOf(a.host, a.port, ""), nil
	r.Out.Host = authorityOf(a.host, a.port, a.scheme)
	r.Out.URL.RawQuery = r.In.URL.RawQuery // leak reads it
	switch r.Out.URL.Opaque = rawPath(r.In.RequestURI); {
	case a.upward && a.scheme == "http":
		r.Out.URL.Opaque = "//" + r.Out.Host + r.Out.URL.Opaque // an absolute URL, for the proxy
	case strings.HasPrefix(r.Out.URL.Opaque, "//"):
		r.Out.URL.Opaque = "" // EscapedPath is the same: see locate
	}
	named := strings.ToLower(strings.Join(r.In.Header["Connection"], ","))
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values := r.In.Header[name]; values != nil && !strings.Contains(named, strings.ToLower(name)) {
			r.Out.Header[name] = values
		}
	}
	r.Out.Trailer = nil // no rule decides about its names and values
	// Inside another protocol, such as h2c, no request would be decided.
	if !strings.EqualFold(r.Out.Header.Get("Upgrade"), "websocket") || a.method != http.MethodGet {
		r.Out.Header.Del("Upgrade")
		r.Out.Header.Del("Connection")
	}
}

// proxyOf returns the upstream proxy for a request in plain HTTP, which it gets with an absolute URL: proxies refuse CONNECT
// to port 80. TLS goes by CONNECT: see dialTLS.
func (p *Proxy) proxyOf(r *http.Request) (*url.URL, error) {
	a := r.Context().Value(accessKey{}).(*access)
	if !a.upward || r.URL.Scheme != "http" {
		return nil, nil
	}
	return p.Dialer.Upstream.URL(), p.authority.checkUpward(r.Context(), a)
}

// newTransport returns the client of hosts.
func (p *Proxy) newTransport() *http.Transport {
	return &http.Transport{
		Proxy:             p.proxyOf,
		DialContext:       func(ctx context.Context, _, addr string) (net.Conn, error) { return p.dialAgain(ctx, addr) },
		DialTLSContext:    func(ctx context.Context, _, addr string) (net.Conn, error) { return p.dialTLS(ctx, addr) },
		ForceAttemptHTTP2: true, DisableCompression: true, MaxResponseHeaderBytes: maxHead, TLSHandshakeTimeout: p.Limits.Speak,
		ResponseHeaderTimeout: p.Limits.Idle, ExpectContinueTimeout: time.Second, IdleConnTimeout: 90 * time.Second, MaxIdleConnsPerHost: 64,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: maxWindow}, // a response waits there for a client that does not read
	}
}
