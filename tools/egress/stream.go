package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
)

// stream connects a client to a host, by CONNECT or SOCKS. answer tells the
// client; it is called once.
func (p *Proxy) stream(ctx context.Context, in *incoming, host string, port uint16, answer func(*refusal) error) {
	a := p.newAccess(in, "connect")
	a.port = port
	name, err := network.ParseHost(host)
	refuse := func(r *refusal) {
		_ = answer(r)
		in.Close()
	}
	if err != nil || port == 0 {
		r := violates(scope.KindAddress, "host names", "%.100q is no host name", host)
		r.cause = err
		refuse(p.authority.deny(ctx, a, r))
		return
	}
	a.host = name
	if r := p.admit(ctx, a); r != nil {
		p.explain(ctx, a, r, answer)
		return
	}
	untrack := p.track(a, func() { in.Close() })
	defer untrack()
	var up socket
	intercepts := a.route.Intercept
	switch {
	case intercepts:
	case a.port == 80 && a.upward: // by requests: see proxyOf
		intercepts = true
		err = p.authority.checkUpward(ctx, a)
	default:
		up, _, err = p.authority.dial(ctx, a)
	}
	if err != nil {
		r := failed(a.host, err)
		p.authority.end(ctx, a, r)
		refuse(r)
		return
	}
	if intercepts {
		p.authority.end(ctx, a, p.intercept(ctx, a, answer))
		return
	}
	defer up.Close()
	if err := answer(nil); err != nil {
		in.Close()
		p.authority.end(ctx, a, failed(a.host, err))
		return
	}
	if a.remote = up.RemoteAddr().String(); a.upward {
		a.remote = p.Dialer.Upstream.name()
	}
	p.authority.end(ctx, a, p.pass(ctx, a, up))
}

func (t *tenancy) dial(ctx context.Context, a *access) (socket, string, error) {
	if !t.holds(a) {
		return nil, "", changed()
	}
	_, route := t.rules().Connect(a.host, a.port)
	dialer, at := t.dialer, authorityOf(a.host, a.port, "")
	if pin := route.Address; pin.IsValid() {
		if pin.Port() == 0 {
			pin = netip.AddrPortFrom(pin.Addr(), a.port)
		}
		ip := pin.Addr().Unmap()
		dialer.Pinned, at = []netip.Prefix{netip.PrefixFrom(ip, ip.BitLen())}, pin.String()
	}
	c, err := dialer.DialContext(ctx, "tcp", at)
	if err != nil {
		return nil, "", err
	}
	return c.(*net.TCPConn), route.CA, nil // the dialer dials TCP alone
}

// changed returns the refusal of an access that the rules have ceased to allow.
func changed() *refusal {
	return &refusal{Message: "the rules have changed meanwhile", Hint: "try again", status: http.StatusServiceUnavailable}
}

func (t *tenancy) dialUpstream(ctx context.Context, a *access) (socket, error) {
	if !t.holds(a) || !a.upward || t.dialer.Upstream == nil { // the next daemon may have none
		return nil, changed()
	}
	c, err := t.dialer.Upstream.dial(ctx)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

func (t *tenancy) checkUpward(ctx context.Context, a *access) error {
	if t.dialer.Upstream == nil {
		return changed()
	}
	return t.dialer.Upstream.check(ctx, &t.dialer, a.host)
}

// speaks is the protocol of a client's first bytes.
type speaks uint8

const (
	speaksOther speaks = iota
	speaksTLS
	speaksHTTP
	speaksNothing // and waits for the host
)

// quiet is how long the proxy waits for a client on a port whose protocol it does
// not know.
const quiet = 500 * time.Millisecond

// sniff reads a client's first bytes without taking them.
func (p *Proxy) sniff(in *incoming, known bool) speaks {
	wait := quiet
	if known {
		wait = p.Limits.Speak
	}
	_ = in.SetReadDeadline(time.Now().Add(wait))
	defer func() { _ = in.SetReadDeadline(time.Time{}) }()
	const longest = 24 // of a method
	method := tokenChars
	if !known {
		method = methodChars // others would wait for quiet
	}
	for {
		if got := classify(in.ahead, method); got != speaksNothing {
			return got
		}
		err := in.more()
		if got := classify(in.ahead, method); err != nil || len(in.ahead) > longest && got == speaksNothing {
			if len(in.ahead) > 0 && got == speaksNothing {
				return speaksOther
			}
			return got
		}
	}
}

// methodChars are the characters of the methods that are registered.
const methodChars = "-ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// classify returns speaksNothing for what is too short to be known. method has the characters of a method.
func classify(start []byte, method string) speaks {
	if len(start) == 0 {
		return speaksNothing
	}
	if start[0] == 0x16 { // a handshake record (RFC 8446, section 5.1)
		return speaksTLS
	}
	for i, c := range start {
		switch {
		case c == ' ' && i+1 == len(start):
			return speaksNothing
		case c == ' ' && strings.IndexByte("/h*", start[i+1]) >= 0:
			return speaksHTTP
		case strings.IndexByte(method, c) < 0:
			return speaksOther
		}
	}
	return speaksNothing
}

// pass is a tunnel. What it carries must be for its host, as far as that shows.
func (p *Proxy) pass(ctx context.Context, a *access, up socket) *refusal {
	known := a.port == 443 || a.port == 80
	switch got := p.sniff(a.in, known); {
	case got == speaksHTTP:
		up.Close()
		p.handOver(ctx, a)
		return nil
	case got == speaksTLS:
		name, err := p.serverName(a.in)
		if err == nil {
			err = agrees(a.host, name)
		}
		if err != nil {
			a.in.Close()
			return refusalOf(err)
		}
	case known:
		a.in.Close()
		return strange(a)
	}
	return p.carry(a, up)
}

// strange returns the refusal of a client that speaks neither TLS nor HTTP. One that has sent nothing has done no wrong:
// programs open connections before they need them.
func strange(a *access) *refusal {
	if len(a.in.ahead) == 0 {
		return &refusal{Message: "time-out: the client sent nothing"}
	}
	return malformed("the client speaks neither TLS nor HTTP on port %d", a.port)
}

// handOver lets the server of requests have the rest of a connection. Requests
// are decided one by one from here.
func (p *Proxy) handOver(ctx context.Context, a *access) {
	a.in.origin = &origin{host: a.host, port: a.port, scheme: "http", in: a.in}
	p.requests.give(p.framed(ctx, a.in, a.in))
}

func refusalOf(err error) *refusal {
	var r *refusal
	if errors.As(err, &r) {
		return r
	}
	return &refusal{Message: "the client's TLS handshake failed", cause: err}
}

// agrees returns an error if a client names another host to TLS than to the
// proxy. A client sends no name for an address (RFC 6066, section 3).
func agrees(host, serverName string) error {
	isIP := false
	if _, err := netip.ParseAddr(host); err == nil {
		isIP = true
	}
	if serverName == "" && isIP {
		return nil
	}
	if name, err := network.ParseHost(serverName); err != nil || name != host {
		return violates(scope.KindProtocol, "protocol", "the TLS client names the host %.100q", serverName)
	}
	return nil
}

// errHello ends a handshake after its first message.
var errHello = errors.New("the client's hello is read")

// serverName returns the name in a client's first TLS message, which stays to be
// read.
func (p *Proxy) serverName(in *incoming) (string, error) {
	_ = in.SetReadDeadline(time.Now().Add(p.Limits.Speak)) // of a context crypto/tls would need a goroutine
	defer func() { _ = in.SetReadDeadline(time.Time{}) }()
	seen := &recorder{Conn: in}
	name := ""
	err := tls.Server(seen, &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		name = hello.ServerName
		return nil, errHello
	}}).Handshake()
	in.ahead = seen.Bytes()
	if !errors.Is(err, errHello) {
		r := malformed("the client's TLS handshake cannot be read")
		r.cause = err
		r.verdict = audit.Deny
		return "", r
	}
	return name, nil
}

// recorder keeps what is read, and writes nothing.
type recorder struct {
	net.Conn
	bytes.Buffer
}

func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.Buffer.Write(p[:n])
	return n, err
}

func (r *recorder) Write(p []byte) (int, error) { return len(p), nil }
