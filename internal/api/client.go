package api

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// Client is a client of the daemon of one run directory.
type Client struct{ *client.Client }

// NewClient returns a client: see [client.New].
func NewClient(p config.Paths) *Client { return &Client{client.New(p)} }

// fetch returns the answer to a request.
func fetch[T any](ctx context.Context, c *Client, method, path string, in any) (out T, err error) {
	err = c.Call(ctx, method, path, in, &out)
	return out, err
}

type none struct{}

// Agents lists the agents that are defined or mounted.
func (c *Client) Agents(ctx context.Context) ([]Agent, error) {
	return fetch[[]Agent](ctx, c, http.MethodGet, "/v1/agents", none{})
}

// Doors lists where the daemon serves agents' tools.
func (c *Client) Doors(ctx context.Context) ([]Door, error) {
	return fetch[[]Door](ctx, c, http.MethodGet, "/v1/doors", none{})
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
	return c.Call(ctx, http.MethodPost, "/v1/agents/"+string(id)+"/down", none{}, &none{})
}

// endTime bounds how long a command waits until its flags have ended.
const endTime = 10 * time.Second

// Hold has flags hold for an agent until end is called, which returns when they do not any more. The daemon mounts its view again if
// they require that. lost is closed if the daemon ends first.
func (c *Client) Hold(ctx context.Context, id scope.ID, flags agents.Flags) (end func(), lost <-chan struct{}, err error) {
	ctx, stop := c.Attended(ctx)
	conn, answer, err := c.Request(ctx, http.MethodPost, "/v1/agents/"+string(id)+"/flags", flags)
	if err != nil {
		stop()
		return nil, nil, err
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, answer)
	}()
	return func() {
		_ = conn.CloseWrite() // the daemon answers that they have ended by the end of its answer
		select {
		case <-gone:
		case <-time.After(endTime):
		}
		conn.Close()
		stop()
	}, gone, nil
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
	ctx, end := c.Attended(ctx)
	defer end()
	conn, answer, err := c.Request(ctx, http.MethodGet, "/metrics", none{})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.Copy(w, answer)
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
	return c.Call(ctx, http.MethodGet, "/v1/health", none{}, &none{})
}
