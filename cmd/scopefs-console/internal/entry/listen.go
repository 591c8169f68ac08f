package entry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/console"
	"github.com/scopefs/scopefs/internal/loopback"
)

// Listener is where browsers connect.
type Listener struct {
	net.Listener
	Local bool // no other host can connect

	at   netip.AddrPort // of TCP
	host string         // that the operator has named
	only func(http.Handler) http.Handler

	cert atomic.Pointer[tls.Certificate] // nil: no TLS
}

// Inherited returns the listener of a descriptor, which it closes, for the address that the operator has named. A unix
// socket accepts this user and root alone. Where other hosts can connect, the listener needs a certificate before Serve: see
// Certify.
func Inherited(fd uintptr, address string) (*Listener, error) {
	file := os.NewFile(fd, "console")
	defer file.Close()
	inherited, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("listen: descriptor %d: %w: start the program with scopefs console", fd, err)
	}
	if strings.HasPrefix(address, console.UnixPrefix) {
		uid := uint32(os.Geteuid())
		return &Listener{Listener: &peers{inherited, uid}, Local: true, only: loopback.OnlyForwarded}, nil
	}
	l := &Listener{Listener: inherited}
	if l.at, err = netip.ParseAddrPort(inherited.Addr().String()); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l.host, _, _ = net.SplitHostPort(address)
	l.Local = l.at.Addr().IsLoopback()
	l.only = func(next http.Handler) http.Handler { return loopback.Only(l.at, next) }
	return l, nil
}

// Certify makes the listener speak TLS with a certificate, from now on. A Host field must name a host of the certificate.
func (l *Listener) Certify(cert, key []byte) error {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	if pair.Leaf.NotAfter.Before(time.Now()) {
		return fmt.Errorf("certificate: it has expired on %s: renew it", pair.Leaf.NotAfter.Format(time.DateOnly))
	}
	if nameOf(pair.Leaf, l.host) == "" {
		return errors.New("certificate: it names no host: get one for the name or address that devices use")
	}
	l.cert.Store(&pair)
	return nil
}

// names reports whether a Host field names this listener.
func (l *Listener) names(host string) bool {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = strings.Trim(host, "[]"), "443"
	}
	return port == strconv.Itoa(int(l.at.Port())) && l.cert.Load().Leaf.VerifyHostname(name) == nil
}

// nameOf returns the host of a certificate that links have: the one that the operator has named, if it is there, or the
// first.
func nameOf(c *x509.Certificate, named string) string {
	if c.VerifyHostname(named) == nil {
		return named
	}
	for _, name := range c.DNSNames {
		if !strings.Contains(name, "*") {
			return name
		}
	}
	for _, ip := range c.IPAddresses {
		return ip.String()
	}
	return ""
}

// URL returns the URL of a path. Of a unix socket it has PORT for the port that ssh -L forwards. A URL for a device has a
// name and no address where it can: an address has no passkeys.
func (l *Listener) URL(path string, device bool) string {
	switch cert := l.cert.Load(); {
	case cert != nil:
		return "https://" + net.JoinHostPort(nameOf(cert.Leaf, l.host), strconv.Itoa(int(l.at.Port()))) + path
	case !l.at.IsValid():
		return "http://localhost:PORT" + path
	case device && (l.at.Addr() == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || l.at.Addr() == netip.IPv6Loopback()):
		return fmt.Sprintf("http://localhost:%d%s", l.at.Port(), path)
	}
	return "http://" + l.at.String() + path
}

// Secure reports whether it speaks TLS.
func (l *Listener) Secure() bool { return l.cert.Load() != nil }

// connections bounds them: every process of the host may connect. The owner of a connection is a login.
var connections = loopback.Bounds{All: 512, Strangers: 64, Each: 128}

// Serve serves until the listener is closed.
func (l *Listener) Serve(h http.Handler) error {
	secure := l.cert.Load() != nil
	switch {
	case secure:
		l.only = func(next http.Handler) http.Handler {
			return loopback.OnlyTLS("a host of the certificate with the port of the console", l.names, next)
		}
	case !l.Local:
		return errors.New("other hosts can connect: give a certificate")
	}
	server := &http.Server{
		Handler: opened(l.only(h)), ReadHeaderTimeout: 3 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: log.New(io.Discard, "", 0), // of strangers' handshakes
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if t, ok := c.(*tls.Conn); ok {
				c = t.NetConn()
			}
			return loopback.ConnContext(ctx, c)
		},
	}
	conns := net.Listener(loopback.NewConns(l.Listener, connections))
	if secure {
		// HTTP/1.1, where a connection has one request at a time: see loopback.Conns.
		conns = tls.NewListener(conns, &tls.Config{
			MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"},
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return l.cert.Load(), nil },
		})
	}
	return server.Serve(conns)
}

// opened lets a link be opened from anywhere, such as the file of scopefs console --open, which is another site's to a
// browser: the page of a link only asks, and nobody else knows the token.
func opened(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isLink, _ := path.Match("/*/enter/*", r.URL.Path)
		if !isLink {
			isLink, _ = path.Match("/*/pair/*", r.URL.Path)
		}
		if isLink && r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" {
			r.Header.Del("Sec-Fetch-Site")
		}
		next.ServeHTTP(w, r)
	})
}

// peers is a unix socket that accepts its owner and root alone.
type peers struct {
	net.Listener
	uid uint32
}

func (p *peers) Accept() (net.Conn, error) {
	for {
		conn, err := p.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if uid, ok := api.PeerUID(conn); ok && (uid == p.uid || uid == 0) {
			return conn, nil
		}
		conn.Close()
	}
}
