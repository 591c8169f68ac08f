// Package client is the client's end of the daemon's sockets, for every command: how it connects, asks, attends a run, and notices that
// the daemon does not answer. What a request says is in package api.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/paths"
)

// Client is a client of the daemon of one run directory.
type Client struct {
	paths  paths.Paths
	socket string
}

// New returns a client. Each request opens a connection of its own. For a user who
// may not use the operator's socket it is a client of the user's own.
func New(p paths.Paths) *Client {
	c := &Client{paths: p, socket: p.Socket()}
	if errors.Is(unix.Faccessat(unix.AT_FDCWD, c.socket, unix.W_OK, unix.AT_EACCESS), unix.EACCES) {
		own := p.UserSocket(uint32(os.Geteuid()))
		if unix.Access(own, unix.F_OK) == nil {
			c.socket = own
		}
	}
	return c
}

// At returns a client of a socket.
func At(p paths.Paths, socket string) *Client { return &Client{paths: p, socket: socket} }

// Socket returns the socket.
func (c *Client) Socket() string { return c.socket }

// Dial connects.
func (c *Client) Dial(ctx context.Context) (*net.UnixConn, error) {
	conn, err := Connect(ctx, c.socket)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		// It connects to streams alone: connect(2).
		if _, err := Connect(ctx, c.paths.Holder()); errors.Is(err, unix.EPROTOTYPE) {
			return nil, fmt.Errorf("%w for %s, views live on for the next one: start it, or end them with %s", ErrLeft, c.paths.Base, c.paths.Stop())
		}
		return nil, fmt.Errorf(
			"%w at %s: start one with scopefs daemon, or scopefs daemon --user for your own agents and --dir", ErrNoDaemon, c.socket)
	}
	return conn, err
}

// Attended returns a context that ends when the daemon stops answering; the cause
// says why.
func (c *Client) Attended(ctx context.Context) (context.Context, func()) {
	ctx, end := context.WithCancelCause(ctx)
	go NewPulse(c.socket).Watch(ctx, end)
	return ctx, func() { end(nil) }
}

// Request sends one request. The caller closes the connection, which also the end of ctx does. ctx is Attended.
func (c *Client) Request(ctx context.Context, method, path string, in any) (*net.UnixConn, *Answer, error) {
	conn, err := c.Dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	answer, err := roundTrip(conn, method, path, in)
	if err != nil {
		conn.Close()
		return nil, nil, WhyNoAnswer(ctx, err)
	}
	return conn, answer, nil
}

// WhyNoAnswer returns why there is no answer: the daemon refused, stopped
// answering, or ended.
func WhyNoAnswer(ctx context.Context, err error) error {
	var refused *Error
	switch {
	case errors.As(err, &refused):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("the daemon has ended before it answered: whether it did what was asked is unknown: %w", err)
}

// The bounds of bodies, in bytes.
const (
	MaxRequest = 4 << 20
	maxReply   = 64 << 20 // may hold what agents wrote
)

// Call sends one request and decodes its answer.
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	ctx, end := c.Attended(ctx)
	defer end()
	conn, answer, err := c.Request(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := json.NewDecoder(io.LimitReader(answer, maxReply)).Decode(out); err != nil {
		return WhyNoAnswer(ctx, err)
	}
	return nil
}
