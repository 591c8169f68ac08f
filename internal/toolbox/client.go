package toolbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/scopefs/scopefs/audit/trace"
	"github.com/scopefs/scopefs/internal/bases"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/mcp"
)

// Client is an MCP client of an agent's tools. Its errors say why there is no answer.
type Client struct {
	*mcp.Client
	from *refusing
}

// Call calls a tool.
func (c *Client) Call(ctx context.Context, tool string, arguments json.RawMessage) (mcp.Result, error) {
	result, err := c.Client.Call(ctx, tool, arguments)
	return result, c.from.explain(ctx, err)
}

// List returns the tools, and the names of the MCP servers that are still starting.
func (c *Client) List(ctx context.Context) ([]mcp.Listed, []string, error) {
	all, starting, err := c.Client.List(ctx)
	return all, starting, c.from.explain(ctx, err)
}

// Use runs f with a client of the tools. The context of f ends when the daemon stops answering. Without ask no question
// of a tool is answered. Calls are made in the span that the environment names: opentelemetry.io/docs/specs/otel/context/env-carriers.
func (t *Toolbox) Use(ctx context.Context, version string, ask func(context.Context, tools.Question) (tools.Answer, error),
	f func(context.Context, *Client) error) error {
	defer t.Close()
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	for again := t.task == "" && bases.Serves(t.given); ; again = false {
		conn, err := t.open(ctx, ctx)
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { conn.Close() })
		go t.pulse().Watch(ctx, leave)
		r := &refusing{Reader: conn}
		client, err := mcp.Dial(ctx, struct {
			io.Reader
			io.WriteCloser
		}{r, conn}, version, ask)
		if err == nil {
			defer client.Close()
			client.Trace = trace.Parse(os.Getenv("TRACEPARENT"), os.Getenv("TRACESTATE"))
			return f(ctx, &Client{client, r})
		}
		if !again || r.heard() || ctx.Err() != nil { // else the daemon had nothing to do, and has ended before it read
			return r.explain(ctx, err)
		}
	}
}

// refusing reads from a daemon and records a refusal in plain text, which is no
// message of the protocol.
type refusing struct {
	io.Reader
	begun bool

	mu    sync.Mutex
	why   error // the refusal
	ended bool
}

func (r *refusing) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.begun && n > 0 {
		r.begun = true
		if text, ok := strings.CutPrefix(string(b[:n]), "scopefs: "); ok {
			r.why = errors.New(strings.TrimSpace(text))
		}
	}
	if r.why != nil {
		return 0, r.why
	}
	r.ended = r.ended || err != nil
	return n, err
}

// heard reports whether the daemon has sent anything.
func (r *refusing) heard() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun
}

// explain returns the cause of a request without a response.
func (r *refusing) explain(ctx context.Context, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	const unknown = "whether the call had an effect is unknown"
	switch {
	case err == nil:
		return nil
	case r.why != nil:
		return r.why
	case ctx.Err() != nil:
		return fmt.Errorf("%w; %s", context.Cause(ctx), unknown)
	case r.ended:
		return fmt.Errorf("the daemon has ended the connection: %s; its log says why", unknown)
	}
	return err
}
