package messages

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/linecheck"
	door "github.com/scopefs/scopefs/tools/messages"
)

// OpenServer returns a store on an outside server. The server need not run yet.
func OpenServer(s Server, limits door.Limits) (*Store, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	return newStore(&outside{Server: s}, limits), nil
}

// Server is an outside server, and how to reach it.
type Server struct {
	door.Server
	driver.Reach
	TLS *tls.Config // for tests; nil: the system's certificates
}

// outside connects to an outside server.
type outside struct {
	Server
	secret atomic.Pointer[credential.Secret] // of the last connection
}

func (o *outside) connect(ctx context.Context) (*link, error) {
	address := net.JoinHostPort(o.URL.Hostname(), cmp.Or(o.URL.Port(), "4222"))
	var auth []nats.Option
	if o.Password != nil {
		secret, err := o.Secret(ctx)
		if err != nil {
			return nil, fmt.Errorf("password: %w", err)
		}
		o.secret.Store(&secret)
		if auth = append(auth, nats.UserInfo(o.User, secret.Reveal())); o.User == "" {
			auth[0] = nats.Token(secret.Reveal())
		}
	}
	d := dialer{dial: func(ctx context.Context) (net.Conn, error) { return o.Dial(ctx, "tcp", address) }}
	if o.URL.Scheme == "tls" {
		d.tls = o.TLS.Clone()
		if d.tls == nil {
			d.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		d.tls.ServerName = o.URL.Hostname()
	}
	l, err := newLink(ctx, address, d, auth...)
	if err != nil {
		return nil, err
	}
	var major, minor int
	version := l.conn.ConnectedServerVersion()
	if _, err := fmt.Sscanf(version, "%d.%d.", &major, &minor); err != nil || major < 2 || major == 2 && minor < minMinor {
		l.conn.Close()
		return nil, fmt.Errorf("%w: version %.20q: want 2.%d or newer", errVersion, version, minMinor)
	}
	return l, nil
}

// minMinor is of the first server that can set a consumer to a position: ADR-60 of
// nats-io/nats-architecture-and-design.
const minMinor = 14

var errVersion = errors.New("the server is too old")

func (o *outside) asleep() (bool, error) { return false, nil }

func (o *outside) failed(error) bool { return false }

// explain removes the password from err: a server may repeat what it is sent.
func (o *outside) explain(err error) (hint string, cause error) {
	if secret := o.secret.Load(); secret != nil {
		return "", errors.New(secret.Redact(err.Error()))
	}
	return "", err
}

func (o *outside) close() error { return nil }

// A dialer dials for the client of NATS, which would make TLS by itself above the
// bounds of a connection.
type dialer struct {
	ctx  context.Context
	dial func(context.Context) (net.Conn, error)
	tls  *tls.Config // nil: none
}

// SkipTLSHandshake returns true: Dial makes it.
func (dialer) SkipTLSHandshake() bool { return true }

// Dial connects within 2 s.
func (d dialer) Dial(string, string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(d.ctx, network)
	defer cancel()
	conn, err := d.dial(ctx)
	if err != nil {
		return nil, err
	}
	if d.tls == nil {
		return newBoundedConn(conn, nil), nil
	}
	info, secure, err := upgrade(ctx, conn, d.tls)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return newBoundedConn(secure, info), nil
}

// upgrade reads the line that a server sends first, and makes TLS.
func upgrade(ctx context.Context, conn net.Conn, config *tls.Config) (info []byte, _ net.Conn, err error) {
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, nil, err
	}
	for one := make([]byte, 1); !bytes.HasSuffix(info, []byte("\n")); {
		if _, err := conn.Read(one); err != nil {
			return nil, nil, err
		}
		if info = append(info, one[0]); len(info) > maxLine {
			return nil, nil, errProtocol
		}
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	return info, secure, conn.SetDeadline(time.Time{})
}

var errProtocol = errors.New("the server does not speak the protocol of NATS, or sends more than was asked for")

// maxLine bounds a line of the protocol, in bytes.
const maxLine = 64 << 10

// A boundedConn fails when a server sends a line or a message over the bounds.
// nats.go allocates as many bytes as a server says that a message has: without
// bounds, a server could end this process. A write takes at most 2 s.
type boundedConn struct {
	net.Conn
	before []byte // what was read already
	lines  linecheck.Checker
}

func newBoundedConn(conn net.Conn, before []byte) *boundedConn {
	return &boundedConn{Conn: conn, before: before, lines: linecheck.Checker{Max: maxLine, Line: head}}
}

// Write writes within 2 s.
func (c *boundedConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(network)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Read reads and checks what the server sends.
func (c *boundedConn) Read(b []byte) (n int, err error) {
	if len(c.before) > 0 {
		n = copy(b, c.before)
		c.before = c.before[n:]
	} else {
		n, err = c.Conn.Read(b)
	}
	if !c.lines.Next(b[:n]) {
		c.Close()
		return 0, errProtocol
	}
	return n, err
}

// head reports whether a line may be one of a server's, and how many bytes of a message
// follow.
func head(line []byte) (follow int, ok bool) {
	fields := bytes.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(fields) == 0 {
		return 0, false
	}
	switch string(bytes.ToUpper(fields[0])) {
	case "MSG", "HMSG":
		n, err := strconv.Atoi(string(fields[len(fields)-1]))
		return n + len("\r\n"), err == nil && n >= 0 && n <= maxFrame
	case "INFO", "PING", "PONG", "+OK", "-ERR":
		return 0, true
	}
	return 0, false
}
