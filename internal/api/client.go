package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope"
)

// Client is a client of the daemon of one run directory.
type Client struct {
	paths  config.Paths
	socket string
}

// NewClient returns a client. Each request opens a connection of its own. For a user who
// may not use the operator's socket it is a client of the user's own.
func NewClient(p config.Paths) *Client {
	c := &Client{paths: p, socket: p.Socket()}
	if errors.Is(unix.Faccessat(unix.AT_FDCWD, c.socket, unix.W_OK, unix.AT_EACCESS), unix.EACCES) {
		own := p.UserSocket(uint32(os.Geteuid()))
		if unix.Access(own, unix.F_OK) == nil {
			c.socket = own
		}
	}
	return c
}

func (c *Client) dial(ctx context.Context) (*net.UnixConn, error) {
	conn, err := connect(ctx, c.socket)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		// It connects to streams alone: connect(2).
		if _, err := connect(ctx, c.paths.Holder()); errors.Is(err, unix.EPROTOTYPE) {
			return nil, fmt.Errorf("%w for %s, views live on for the next one: start it, or end them with %s", ErrLeft, c.paths.Base, c.paths.Stop())
		}
		return nil, fmt.Errorf("%w at %s: start one with scopefs daemon, or scopefs daemon --user for your own agents and --dir", ErrNoDaemon, c.socket)
	}
	return conn, err
}

// attended returns a context that ends when the daemon stops answering; the cause
// says why.
func (c *Client) attended(ctx context.Context) (context.Context, func()) {
	ctx, end := context.WithCancelCause(ctx)
	go NewPulse(c.socket).Watch(ctx, end)
	return ctx, func() { end(nil) }
}

// request sends one request. The caller closes the connection, which also the end of ctx does. ctx is attended.
func (c *Client) request(ctx context.Context, method, path string, in any) (*net.UnixConn, *bufio.Reader, *http.Response, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	r, resp, err := roundTrip(ctx, conn, method, path, in)
	if err != nil {
		conn.Close()
		return nil, nil, nil, whyNoAnswer(ctx, err)
	}
	return conn, r, resp, nil
}

func roundTrip(ctx context.Context, conn net.Conn, method, path string, in any) (*bufio.Reader, *http.Response, error) {
	text, err := json.Marshal(in)
	if err != nil {
		return nil, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://scopefs"+path, bytes.NewReader(text))
	if err == nil {
		err = req.Write(conn)
	}
	if err != nil {
		return nil, nil, err
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, req)
	if err == nil && resp.StatusCode >= 400 {
		err = readError(resp)
	}
	return r, resp, err
}

// whyNoAnswer returns why there is no answer: the daemon refused, stopped
// answering, or ended.
func whyNoAnswer(ctx context.Context, err error) error {
	var refused *Error
	switch {
	case errors.As(err, &refused):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("the daemon has ended before it answered: whether it did what was asked is unknown: %w", err)
}

func readError(resp *http.Response) error {
	defer resp.Body.Close()
	e := &Error{}
	if err := json.NewDecoder(io.LimitReader(resp.Body, MaxRequest)).Decode(e); err != nil || e.Text == "" {
		return fmt.Errorf("daemon: %s", resp.Status)
	}
	return e
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	ctx, end := c.attended(ctx)
	defer end()
	conn, _, resp, err := c.request(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxReply)).Decode(out); err != nil {
		return whyNoAnswer(ctx, err)
	}
	return nil
}

// fetch returns the answer to a request.
func fetch[T any](ctx context.Context, c *Client, method, path string, in any) (out T, err error) {
	err = c.call(ctx, method, path, in, &out)
	return out, err
}

type none struct{}

// Agents lists the agents that are defined or mounted.
func (c *Client) Agents(ctx context.Context) ([]Agent, error) {
	return fetch[[]Agent](ctx, c, http.MethodGet, "/v1/agents", none{})
}

// Streams lists the streams of the log.
func (c *Client) Streams(ctx context.Context) ([]Stream, error) {
	return fetch[[]Stream](ctx, c, http.MethodGet, "/v1/streams", none{})
}

// Stores lists the shared stores, after checking each.
func (c *Client) Stores(ctx context.Context) ([]Store, error) {
	return fetch[[]Store](ctx, c, http.MethodGet, "/v1/stores", none{})
}

// Up mounts an agent's view and returns the mount point.
func (c *Client) Up(ctx context.Context, id scope.ID, at string) (string, error) {
	done, err := fetch[UpRequest](ctx, c, http.MethodPost, "/v1/agents/"+string(id)+"/up", UpRequest{At: at})
	return done.At, err
}

// Down ends an agent's sandboxes and unmounts its view.
func (c *Client) Down(ctx context.Context, id scope.ID) error {
	return c.call(ctx, http.MethodPost, "/v1/agents/"+string(id)+"/down", none{}, &none{})
}

// Redefine makes an agent's view follow the current definition; the daemon mounts it again if a key requires that.
func (c *Client) Redefine(ctx context.Context, id scope.ID, keys []string) error {
	return c.call(ctx, http.MethodPost, "/v1/agents/"+string(id)+"/redefine", RedefineRequest{Keys: keys}, &none{})
}

// Top returns what runs now, and what it uses.
func (c *Client) Top(ctx context.Context) (Top, error) {
	return fetch[Top](ctx, c, http.MethodGet, "/v1/top", none{})
}

// TopCheap is Top, with what processes use as of up to ten seconds ago: as old as reading all processes of the host takes the
// daemon half a percent of a processor. It is for a client that asks all the time.
func (c *Client) TopCheap(ctx context.Context) (Top, error) {
	return fetch[Top](ctx, c, http.MethodGet, "/v1/top?cheap=1", none{})
}

// Metrics copies the daemon's metrics, in the text format of Prometheus.
func (c *Client) Metrics(ctx context.Context, w io.Writer) error {
	ctx, end := c.attended(ctx)
	defer end()
	conn, _, resp, err := c.request(ctx, http.MethodGet, "/metrics", none{})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.Copy(w, resp.Body)
	return err
}

// Kill ends a session.
func (c *Client) Kill(ctx context.Context, id string) (Session, error) {
	return fetch[Session](ctx, c, http.MethodPost, "/v1/sessions/"+url.PathEscape(id)+"/kill", none{})
}

// Reload has the daemon read the definitions again.
func (c *Client) Reload(ctx context.Context) ([]Reloaded, error) {
	return fetch[[]Reloaded](ctx, c, http.MethodPost, "/v1/reload", none{})
}

// Health fails unless the daemon answers in time. The daemon takes every lock that a
// request may need before it answers.
func (c *Client) Health(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return c.call(ctx, http.MethodGet, "/v1/health", none{}, &none{})
}
