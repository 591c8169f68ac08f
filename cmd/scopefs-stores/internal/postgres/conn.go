package postgres

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/scopefs/scopefs/internal/driver"
)

// maxMessage bounds a message of the server, in bytes: pq allocates as many as the server says
// that a message has. A value of 1 MiB has 2 MiB when it is a bytea.
const maxMessage = 4 << 20

// The bounds of a connection.
const (
	dialTime  = 2 * time.Second
	writeTime = 2 * time.Second
)

var (
	errMessage = errors.New("a message has too many bytes")
	errLogin   = errors.New("the server takes a login without SCRAM: write scram-sha-256 for all users in its pg_hba.conf")
)

// A dialer connects pq to the server. It makes TLS itself, beneath the bounds of a conn.
type dialer struct {
	driver.Reach
	network, address string
	tls              *tls.Config // nil: none
	made             func(*conn)
}

// DialContext connects to the server, whatever pq asks for.
func (d dialer) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	raw, err := d.Reach.Dial(ctx, d.network, d.address)
	if err != nil {
		return nil, err
	}
	if d.tls != nil {
		secure, err := upgrade(ctx, raw, d.tls)
		if err != nil {
			raw.Close()
			return nil, fmt.Errorf("TLS: %w", err)
		}
		raw = secure
	}
	c := &conn{Conn: raw}
	d.made(c)
	return c, nil
}

// Dial is for pq, which calls DialContext.
func (d dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialTimeout is as Dial.
func (d dialer) DialTimeout(network, address string, _ time.Duration) (net.Conn, error) {
	return d.Dial(network, address)
}

// upgrade asks the server for TLS, and makes it.
func upgrade(ctx context.Context, raw net.Conn, config *tls.Config) (net.Conn, error) {
	deadline, _ := ctx.Deadline()
	if err := raw.SetDeadline(deadline); err != nil {
		return nil, err
	}
	answer := make([]byte, 1)
	if _, err := raw.Write([]byte{0, 0, 0, 8, 4, 210, 22, 47}); err != nil { // SSLRequest
		return nil, err
	}
	if _, err := io.ReadFull(raw, answer); err != nil {
		return nil, err
	}
	if answer[0] != 'S' {
		return nil, errors.New("the server has none: write ssl = on in its configuration")
	}
	secure := tls.Client(raw, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return secure, raw.SetDeadline(time.Time{})
}

// A conn fails when the server sends a message over the bound, or takes a login without SCRAM,
// to which pq would send the password.
type conn struct {
	net.Conn
	head  []byte // of the message that begins
	left  int    // bytes of the message that are to come
	final bool   // the server has proved that it knows the password
	err   error
}

// Write writes within 2 s.
func (c *conn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Read reads and checks what the server sends.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.check(b[:n]); c.err != nil {
		c.Close()
		return 0, c.err
	}
	return n, err
}

// The kinds of an authentication message; PostgreSQL's documentation, "Message Formats".
const (
	authOK        = 0
	authSASL      = 10
	authSASLMore  = 11
	authSASLFinal = 12
)

func (c *conn) check(b []byte) {
	for len(b) > 0 && c.err == nil {
		if c.left > 0 {
			n := min(c.left, len(b))
			c.left, b = c.left-n, b[n:]
			continue
		}
		c.head, b = append(c.head, b[0]), b[1:]
		size := 5 // type and length
		if c.head[0] == 'R' {
			size = 9 // and the kind
		}
		if len(c.head) < size {
			continue
		}
		length := int(binary.BigEndian.Uint32(c.head[1:])) + 1 - size
		if length < 0 || length > maxMessage {
			c.err = errMessage
		} else if size == 9 {
			c.auth(binary.BigEndian.Uint32(c.head[5:]))
		}
		c.left, c.head = length, c.head[:0]
	}
}

func (c *conn) auth(kind uint32) {
	switch {
	case kind == authSASLFinal:
		c.final = true
	case kind == authOK && c.final, kind == authSASL, kind == authSASLMore:
	default:
		c.err = errLogin
	}
}
