package egress

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/scopefs/scopefs/tools/egress/tunnel"
)

// socket is a connection that the kernel can splice.
type socket interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// incoming is a connection from the sandbox.
type incoming struct {
	socket
	ahead  []byte      // read already, and returned first
	origin *origin     // of a connection that a tunnel has led here; nil: none
	call   string      // see Tenant.Call
	known  bool        // call is what Tenant.Call has said
	passes atomic.Bool // in HTTP/1: a response passes, whose client may read slowly

	mu     sync.Mutex
	held   []func() // what frees its slots
	closed bool
	tunnel *tunnel.Tunnel // that has the socket; nil: none
}

// origin is the host at the other end of a connection, as far as the client
// knows.
type origin struct {
	host   string
	port   uint16
	scheme string
	in     *incoming
}

func (c *incoming) Read(p []byte) (int, error) {
	if len(c.ahead) > 0 {
		n := copy(p, c.ahead)
		if c.ahead = c.ahead[n:]; len(c.ahead) == 0 {
			c.ahead = nil
		}
		return n, nil
	}
	return c.socket.Read(p)
}

// more reads more bytes without taking them.
func (c *incoming) more() error {
	buf := make([]byte, 4<<10) // a TLS hello, or the head of a request
	n, err := c.socket.Read(buf)
	if c.ahead = append(c.ahead, buf[:n]...); n > 0 {
		return nil
	}
	return err
}

// hold frees a slot when the connection is closed.
func (c *incoming) hold(release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		release()
		return
	}
	c.held = append(c.held, release)
}

// carried makes Close end a tunnel, which has the socket from now on.
func (c *incoming) carried(t *tunnel.Tunnel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tunnel = t; c.closed {
		t.End()
	}
}

func (c *incoming) Close() (err error) {
	if c.socket != nil {
		err = c.socket.Close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.tunnel != nil {
		c.tunnel.End()
	}
	for _, release := range c.held {
		release()
	}
	c.held = nil
	return err
}

// framed returns a connection for HTTP/1.1: in, or TLS on it.
func (p *Proxy) framed(ctx context.Context, c net.Conn, in *incoming) *framedConn {
	return &framedConn{Conn: c, in: in, limits: p.Limits, long: p.bounds.long, refuse: func(r *refusal) { p.recordMalformed(ctx, in, r) }}
}

// originKey is the key of an origin in the context of a request.
type originKey struct{}

// originOf returns the origin of a connection that the server has.
func originOf(c net.Conn) *origin {
	if g, ok := c.(*framedConn); ok {
		c = g.Conn
	}
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn().(*batch).Conn
	}
	in := c.(*incoming)
	if in.origin == nil {
		return &origin{in: in}
	}
	return in.origin
}

// handoff is a listener of connections that others have accepted.
type handoff struct {
	done  <-chan struct{}
	addr  net.Addr
	conns chan net.Conn
}

func newHandoff(done <-chan struct{}, addr net.Addr) *handoff {
	return &handoff{done, addr, make(chan net.Conn)}
}

func (h *handoff) give(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.done:
		c.Close()
	}
}

func (h *handoff) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handoff) Close() error   { return nil }
func (h *handoff) Addr() net.Addr { return h.addr }
