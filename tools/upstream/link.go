package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/tools/sandbox"
)

const (
	// initializeVersion is the newest protocol that begins with initialize. It is
	// tried first, for servers are known that the newer server/discover ends.
	initializeVersion = "2025-11-25"
	newestVersion     = "" // what the SDK has

	lastWords = 250 * time.Millisecond // for what stderr still holds when stdout has ended
	goodbye   = time.Second            // for a server to end by itself when its stdin does
	maxPages  = 20
)

// link is a connection to one run of a server.
type link struct {
	name    string // of the server
	session *mcp.ClientSession
	stdin   io.Closer // closing it asks the server to end
	kill    func()
	reason  func(error) error // of the end of the run
	plain   func(error) error // what the SDK says of a request, without secrets
	stderr  *tail
	changed func()

	done  chan struct{} // closed when the run is over and the next fields final
	err   error         // why
	lived time.Duration

	mu      sync.Mutex
	version int // of the list; counts what the server says of changes
	listed  int // the version that tools is of
	tools   []*mcp.Tool
}

// open starts the server and greets it. ctx bounds the run.
func (s *server) open(ctx context.Context) (*link, error) {
	l, err := s.openAs(ctx, initializeVersion)
	if e, ok := errors.AsType[*jsonrpc.Error](err); ok &&
		(e.Code == jsonrpc.CodeMethodNotFound || e.Code == mcp.CodeUnsupportedProtocolVersion) {
		return s.openAs(ctx, newestVersion)
	}
	return l, err
}

func (s *server) openAs(ctx context.Context, version string) (*link, error) {
	l := &link{name: s.name, changed: s.changed, version: 1, done: make(chan struct{})}
	transport, drained, err := s.dial(ctx, l)
	if err != nil {
		return nil, err
	}
	client := l.client(s.spec.Blind)
	greeting, stop := context.WithTimeout(ctx, s.timeout)
	defer stop()
	begin := time.Now()
	unhook := context.AfterFunc(greeting, l.kill) // Connect waits for a write that nobody reads
	err = guard(func() (err error) {
		l.session, err = client.Connect(greeting, transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
		return err
	})
	if !unhook() || err != nil {
		await(drained, lastWords)
		l.kill()
		<-drained
		if err = l.reason(err); errors.Is(greeting.Err(), context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %v", s.timeout) // what came after it, kill did
		}
		return nil, l.stderr.explain(err)
	}
	go func() {
		defer close(l.done)
		err := l.session.Wait()
		await(drained, lastWords)
		l.kill()
		<-drained
		l.err, l.lived = l.stderr.explain(l.reason(err)), time.Since(begin)
	}()
	return l, nil
}

// dial sets how l speaks to the server. drained is closed when all that the
// server writes beside its messages is read.
func (s *server) dial(ctx context.Context, l *link) (_ mcp.Transport, drained chan struct{}, err error) {
	drained = make(chan struct{})
	if s.spec.URL != "" {
		f, err := newFar(ctx, s.spec)
		if err != nil {
			return nil, nil, err
		}
		l.stdin, l.kill, l.stderr, l.reason, l.plain = f, f.kill, newTail(nil), f.reason, f.reason
		close(drained)
		return f, drained, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	p, err := s.place.Exec(ctx, s.name, sandbox.Command{
		Argv: append([]string{s.spec.Command}, s.spec.Args...), Env: s.spec.Env, Dir: s.spec.Cwd,
	})
	if err != nil {
		cancel()
		return nil, nil, err
	}
	l.stdin, l.stderr = p.Stdin, newTail(s.spec.Env)
	l.kill = func() { // closed files end who waits for a child that the server left behind
		cancel()
		for _, f := range []*os.File{p.Stdin, p.Stdout, p.Stderr} {
			f.Close()
		}
	}
	go func() {
		defer close(drained)
		io.Copy(l.stderr, p.Stderr) // EOF, or closed by kill
	}()
	wire := newWire(p.Stdin, p.Stdout, l.stderr)
	l.reason, l.plain = wire.reason, func(err error) error { return err }
	return &mcp.IOTransport{Reader: wire, Writer: wire.writer(), MaxLineLength: maxLine}, drained, nil
}

// client offers a server the root /workspace, or with blind not even that.
func (l *link) client(blind bool) *mcp.Client {
	c := mcp.NewClient(&mcp.Implementation{Name: "scopefs", Version: "1"}, &mcp.ClientOptions{
		Capabilities:           &mcp.ClientCapabilities{RootsV2: &mcp.RootCapabilities{}},
		MultiRoundTrip:         &mcp.MultiRoundTripOptions{Disabled: true}, // nobody answers a server's questions
		ToolListChangedHandler: l.listChanged,
	})
	if !blind {
		c.AddRoots(&mcp.Root{URI: "file://" + sandbox.Workspace, Name: "workspace"})
	}
	return c
}

// await waits for c, at most for d.
func await(c <-chan struct{}, d time.Duration) bool {
	select {
	case <-c:
		return true
	case <-time.After(d):
		return false
	}
}

// end ends the run and waits until it is over. The server is asked by the end
// of its standard input, as MCP has it.
func (l *link) end() {
	go l.stdin.Close() // of a server with a URL, a request
	await(l.done, goodbye)
	l.kill()
	<-l.done
}

// errAnswer is the error of a server that answers otherwise than it must.
var errAnswer = errors.New("what it answers is no result")

// because returns what went wrong with a request: the end of the run, if it was
// that.
func (l *link) because(err error) error {
	err = l.plain(err)
	switch _, theirs := answered(err); {
	case theirs, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("MCP server %q: %w", l.name, err)
	case await(l.done, 2*lastWords):
		return fmt.Errorf("MCP server %q ended: %w", l.name, l.err)
	}
	if _, unsent := errors.AsType[*jsonrpc.Error](err); unsent {
		return fmt.Errorf("MCP server %q: %w", l.name, err)
	}
	return fmt.Errorf("MCP server %q: %w: %w", l.name, errAnswer, err)
}

// answered returns the error that the server answered with, if err is one. The
// SDK has one of the same type for a request that could not be sent.
func answered(err error) (*jsonrpc.Error, bool) {
	e, ok := errors.AsType[*jsonrpc.Error](err)
	return e, ok && e.Message != "rejected by transport"
}

func (l *link) listChanged(context.Context, *mcp.ToolListChangedRequest) {
	l.mu.Lock()
	l.version++
	l.mu.Unlock()
	l.changed()
}

// list returns the tools of the server, which it is asked for when it said that
// they changed.
func (l *link) list(ctx context.Context) ([]*mcp.Tool, error) {
	l.mu.Lock()
	version, known := l.version, l.tools
	fresh := l.listed == version
	l.mu.Unlock()
	if fresh {
		return known, nil
	}
	var all []*mcp.Tool
	left := newBudget()
	params := &mcp.ListToolsParams{}
	for page := 0; ; page++ {
		r, err := promptly(ctx, func() (*mcp.ListToolsResult, error) { return l.session.ListTools(ctx, params) })
		if err != nil {
			return nil, err
		}
		if len(all)+len(r.Tools) > maxTools || page == maxPages {
			return nil, fmt.Errorf("more than %d tools or %d pages", maxTools, maxPages)
		}
		for _, t := range r.Tools {
			all = append(all, trim(t, left))
		}
		if r.NextCursor == "" {
			break
		}
		params = &mcp.ListToolsParams{Cursor: r.NextCursor}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tools, l.listed = all, version
	return all, nil
}

// promptly returns when ctx has ended, though f may still wait for the server
// to read. f ends with the run at the latest.
func promptly[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	c := make(chan answer, 1)
	go func() {
		var a answer
		a.err = guard(func() (err error) {
			a.value, err = f()
			return err
		})
		c <- a
	}()
	select {
	case a := <-c:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// guard returns an error when f panics: the SDK (1.8.0) does where the
// inputRequests of a result are null, for one, and the process that speaks to
// one agent's servers speaks to those of all.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}
