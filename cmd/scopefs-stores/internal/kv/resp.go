package kv

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"syscall"

	"github.com/scopefs/scopefs/internal/linecheck"
)

// The bounds of a server's reply to one write. An entry
// takes one string, and a page of entries has maxPage names.
const (
	maxReply  = 16 << 20 // bytes
	maxString = 2 << 20  // bytes
	maxArray  = 1 << 20  // elements
	maxDepth  = 4        // arrays within each other
	maxLine   = 16 << 10 // bytes
)

var errReply = errors.New("the server does not speak the protocol of Redis, or answers more than was asked for")

// dial connects to a server whose replies are bounded.
func (o RedisOptions) dial(ctx context.Context, protocol, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, network)
	defer cancel()
	conn, err := o.Dial(ctx, protocol, address)
	if err != nil {
		return nil, err
	}
	if o.TLS != nil {
		secure := tls.Client(conn, o.TLS)
		if err := secure.HandshakeContext(ctx); err != nil {
			conn.Close()
			return nil, err
		}
		conn = secure
	}
	b := newBoundedConn(conn)
	if raw, ok := conn.(syscall.Conn); ok { // by which go-redis sees that an idle connection was closed
		return struct {
			*boundedConn
			syscall.Conn
		}{b, raw}, nil
	}
	return b, nil
}

// A boundedConn fails when a server's reply is not RESP2 or exceeds the bounds.
// go-redis allocates as many bytes as a reply says that it has, and recurses into
// arrays: without bounds, a server could end this process.
type boundedConn struct {
	net.Conn
	left  int   // bytes of the reply
	open  []int // the values that each array that has begun still lacks
	lines linecheck.Checker
}

func newBoundedConn(conn net.Conn) *boundedConn {
	c := &boundedConn{Conn: conn, left: maxReply}
	c.lines = linecheck.Checker{Max: maxLine, Line: c.head}
	return c
}

// Write expects a new reply.
func (c *boundedConn) Write(b []byte) (int, error) {
	c.left = maxReply
	return c.Conn.Write(b)
}

// Read reads and checks a part of the reply.
func (c *boundedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.left -= n; c.left < 0 || !c.lines.Next(b[:n]) {
		c.Conn.Close()
		return 0, errReply
	}
	return n, err
}

// head reports whether a line may begin a value, and how many bytes of the value follow.
func (c *boundedConn) head(line []byte) (follow int, ok bool) {
	if len(line) == 0 {
		return 0, false
	}
	kind, rest := line[0], string(line[1:])
	switch kind {
	case '+', '-', ':':
		c.value()
		return 0, true
	case '$', '*':
	default:
		return 0, false
	}
	n, err := strconv.Atoi(rest)
	switch {
	case err != nil || n < -1:
		return 0, false
	case kind == '$' && n >= 0:
		c.value()
		return n + len("\r\n"), n <= maxString
	case n > 0:
		c.open = append(c.open, n)
	default:
		c.value()
	}
	return 0, n <= maxArray && len(c.open) <= maxDepth
}

// value counts a value, and the arrays that end with it.
func (c *boundedConn) value() {
	for last := len(c.open) - 1; last >= 0; last-- {
		if c.open[last]--; c.open[last] > 0 {
			return
		}
		c.open = c.open[:last]
	}
}
