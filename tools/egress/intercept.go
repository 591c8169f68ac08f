package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/egress/tunnel"
)

// intercept lets the requests of a connection be decided one by one: in plain
// HTTP, or inside TLS of which the proxy is the other end.
func (p *Proxy) intercept(ctx context.Context, a *access, answer func(*refusal) error) *refusal {
	if p.CA == nil && a.port != 80 {
		r := &refusal{Message: a.host + " needs a look at its requests, and this proxy has no CA", status: http.StatusForbidden, verdict: audit.Deny, kind: scope.KindHost}
		_ = answer(r)
		a.in.Close()
		return r
	}
	err := answer(nil)
	if err == nil {
		switch p.sniff(a.in, true) {
		case speaksHTTP:
			p.handOver(ctx, a)
			return nil
		case speaksTLS:
			if p.CA == nil {
				err = malformed("the client speaks TLS on port 80")
			} else if err = p.unwrap(ctx, a); err == nil {
				return nil
			}
		default:
			err = strange(a)
		}
	}
	a.in.Close()
	return refusalOf(err)
}

// unwrap ends a client's TLS, with the certificate of its host alone.
func (p *Proxy) unwrap(ctx context.Context, a *access) error {
	a.in.origin = &origin{host: a.host, port: a.port, scheme: "https", in: a.in}
	release, ok := p.bounds.secure.Try()
	if !ok {
		return tooMany("connections with TLS")
	}
	a.in.hold(release)
	speaks := protocols
	release, multiplexed := p.bounds.multiplexed.Try()
	if !multiplexed {
		speaks = protocols[1:]
	}
	below := newBatch(ctx, a.in)
	c := p.standFor(below, a.host, speaks)
	err := p.shake(ctx, c)
	h2 := err == nil && c.ConnectionState().NegotiatedProtocol == "h2"
	switch {
	case h2:
		a.in.hold(release)
	case multiplexed:
		release()
	}
	if err != nil {
		below.Close() // an alert may be pending
		return err
	}
	if h2 {
		p.requests.give(c)
		return nil
	}
	p.requests.give(p.framed(ctx, c, a.in))
	return nil
}

// shake makes a handshake with a client, which has a turn among those of its agent.
func (p *Proxy) shake(ctx context.Context, c *tls.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, p.Limits.Speak)
	defer cancel()
	if err := p.bounds.handshakes.Wait(ctx, nil, 1); err != nil {
		return err
	}
	release, err := p.bounds.shaking.Take(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := p.bounds.share.Wait(ctx, shakeTime); err != nil {
		return err
	}
	return c.HandshakeContext(ctx)
}

// standFor returns the host's side of a client's TLS on c.
func (p *Proxy) standFor(c net.Conn, host string, protocols []string) *tls.Conn {
	return tls.Server(c, &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: protocols, SessionTicketsDisabled: true,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if err := agrees(host, hello.ServerName); err != nil {
				return nil, err
			}
			return p.CA.leaf(host)
		},
	})
}

// protocols are those that the proxy speaks in TLS, the best first.
var protocols = []string{"h2", "http/1.1"}

// dialTLS is dialAgain with a handshake. It accepts a certificate that the
// system's roots, or those of the rule, have signed for the host. A client of HTTP/1.1
// gets a connection of HTTP/1.1: it carries bodies for less, and the client has a
// connection for each request under way already.
func (p *Proxy) dialTLS(ctx context.Context, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	a := ctx.Value(accessKey{}).(*access)
	conf := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12, NextProtos: protocols, RootCAs: p.Roots}
	if a.upgrade || a.proto == 1 {
		conf.NextProtos = protocols[1:]
	}
	raw, ca, err := p.authority.dial(ctx, a)
	if err != nil {
		return nil, err
	}
	if ca != "" {
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM([]byte(ca)) {
			raw.Close()
			return nil, errors.New("the rule's ca has no certificate")
		}
	}
	c := tls.Client(raw, conf)
	ctx, cancel := context.WithTimeout(ctx, p.Limits.Speak)
	defer cancel()
	if err := c.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	if c.ConnectionState().NegotiatedProtocol == "h2" {
		return c, nil // net/http wants a *tls.Conn, and RFC 9113, section 8.1, has early answers
	}
	return &early{Conn: c}, nil
}

// early is a connection to a host in HTTP/1. A host may answer before it has the whole body, and go. What is written after
// that is dropped without an error: net/http would otherwise drop the answer, or not, as it comes.
type early struct {
	net.Conn
	gone bool // of the goroutine that writes
}

func (c *early) Write(p []byte) (int, error) {
	if !c.gone {
		n, err := c.Conn.Write(p)
		if c.gone = tunnel.HungUp(err) && !errors.Is(err, net.ErrClosed); !c.gone {
			return n, err
		}
	}
	return len(p), nil
}

// dialAgain connects for a request. The connection may serve later requests too.
func (p *Proxy) dialAgain(ctx context.Context, addr string) (net.Conn, error) {
	a := ctx.Value(accessKey{}).(*access)
	var c net.Conn
	var err error
	if up := p.Dialer.Upstream; up != nil && a.upward && addr == up.Address { // no request is for it: see proxyOf
		c, err = p.authority.dialUpstream(ctx, a)
	} else {
		c, _, err = p.authority.dial(ctx, a)
	}
	if err != nil {
		return nil, err
	}
	return &early{Conn: c}, nil
}
