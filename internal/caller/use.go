package caller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// Session is a client of a connection to a daemon. Its errors say why there is no answer.
type Session struct {
	*Client
	from *refusing
}

// Call calls a tool.
func (s *Session) Call(ctx context.Context, tool string, arguments json.RawMessage) (Result, error) {
	result, err := s.Client.Call(ctx, tool, arguments)
	return result, s.from.explain(ctx, err)
}

// List returns the tools, and the names of the MCP servers that are still starting.
func (s *Session) List(ctx context.Context) ([]Listed, []string, error) {
	all, starting, err := s.Client.List(ctx)
	return all, starting, s.from.explain(ctx, err)
}

// ErrUnheard is the error of a daemon that has ended the connection and said nothing: it has done nothing.
var ErrUnheard = errors.New("the daemon has said nothing")

type unheardError struct{ error }

func (e *unheardError) Unwrap() error        { return e.error }
func (e *unheardError) Is(target error) bool { return target == ErrUnheard }

// Open initializes a session on a connection to a daemon: see Dial. The end of ctx closes the connection.
func Open(ctx context.Context, conn *net.UnixConn, version string, ask Ask) (*Session, error) {
	context.AfterFunc(ctx, func() { conn.Close() })
	r := &refusing{Reader: conn}
	c, err := Dial(ctx, struct {
		io.Reader
		io.WriteCloser
	}{r, conn}, version, ask)
	switch {
	case err == nil:
		return &Session{c, r}, nil
	case !r.heard() && ctx.Err() == nil:
		err = &unheardError{r.explain(ctx, err)}
	default:
		err = r.explain(ctx, err)
	}
	return nil, err
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
