package upstream

import (
	"context"
	"crypto/rand"
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
	// initializeVersion is the newest protocol version that begins with initialize.
	// It is tried first, because some servers exit at the newer server/discover.
	initializeVersion = "2025-11-25"
	newestVersion     = "" // the newest version of the SDK

	drainTime = 250 * time.Millisecond // for the rest of stderr after the end of stdout
	exitTime  = time.Second            // for a server to exit after the end of its stdin
	maxPages  = 20                     // of tools/list
)

// conn is the connection to one run of a server.
type conn struct {
	name    string // of the server
	session *mcp.ClientSession
	stdin   io.Closer // closing it asks the server to exit
	kill    func()
	reason  func(error) error // replaces an error of the session by its cause
	plain   func(error) error // removes secrets from an error of a request
	stderr  *tail
	changed func()

	done  chan struct{} // closed at the end of the run, when err and lived are final
	err   error         // why the run ended
	lived time.Duration // uptime

	notices *notices

	mu      sync.Mutex
	version int // of the server's list: 1 plus the list_changed notifications
	listed  int // the version of tools
	tools   []*mcp.Tool
}

// open starts the server and initializes the session. ctx bounds the run.
func (s *server) open(ctx context.Context) (*conn, error) {
	c, err := s.openAs(ctx, initializeVersion)
	if e, ok := errors.AsType[*jsonrpc.Error](err); ok &&
		(e.Code == jsonrpc.CodeMethodNotFound || e.Code == mcp.CodeUnsupportedProtocolVersion) {
		return s.openAs(ctx, newestVersion)
	}
	return c, err
}

func (s *server) openAs(ctx context.Context, version string) (*conn, error) {
	c := &conn{name: s.name, changed: s.changed, version: 1, notices: newNotices(s.share), done: make(chan struct{})}
	transport, drained, err := s.dial(ctx, c)
	if err != nil {
		return nil, err
	}
	kill := c.kill
	c.kill = func() { c.notices.end(); kill() }
	client := c.client(s.spec.Blind)
	initialize, stop := context.WithTimeout(ctx, s.timeout)
	defer stop()
	begin := time.Now()
	unhook := context.AfterFunc(initialize, c.kill) // Connect blocks in a write that the server never reads
	err = guard(func() (err error) {
		c.session, err = client.Connect(initialize, transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
		return err
	})
	if !unhook() || err != nil {
		await(drained, drainTime)
		c.kill()
		<-drained
		if err = c.reason(err); errors.Is(initialize.Err(), context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %v", s.timeout) // err is only the effect of kill
		}
		return nil, c.stderr.explain(err)
	}
	go func() {
		defer close(c.done)
		err := c.session.Wait()
		await(drained, drainTime)
		c.kill()
		<-drained
		c.err, c.lived = c.stderr.explain(c.reason(err)), time.Since(begin)
	}()
	return c, nil
}

// dial starts the server's command, or prepares the HTTP client for its URL, and
// sets the fields of c for it. drained is closed at the end of the server's stderr.
func (s *server) dial(ctx context.Context, c *conn) (_ mcp.Transport, drained chan struct{}, err error) {
	drained = make(chan struct{})
	if s.spec.URL != "" {
		f, err := newRemote(ctx, s.spec, c.notices)
		if err != nil {
			return nil, nil, err
		}
		c.stdin, c.kill, c.stderr, c.reason, c.plain = f, f.kill, newTail(nil), f.reason, f.reason
		close(drained)
		return f, drained, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	p, err := s.sandboxes.Exec(ctx, s.name, sandbox.Command{
		Argv: append([]string{s.spec.Command}, s.spec.Args...), Env: s.spec.Env, Dir: s.spec.Cwd,
	})
	if err != nil {
		cancel()
		return nil, nil, err
	}
	c.stdin, c.stderr = p.Stdin, newTail(s.spec.Env)
	c.kill = func() { // closing the pipes ends reads from a child that outlives the server
		cancel()
		for _, f := range []*os.File{p.Stdin, p.Stdout, p.Stderr} {
			f.Close()
		}
	}
	go func() {
		defer close(drained)
		_, _ = io.Copy(c.stderr, p.Stderr) // until EOF, or until kill closes it
	}()
	stdio := newStdio(p.Stdin, p.Stdout, c.stderr, c.notices)
	c.reason, c.plain = stdio.reason, func(err error) error { return err }
	return &mcp.IOTransport{Reader: stdio, Writer: stdio.writer(), MaxLineLength: maxLine}, drained, nil
}

// client returns an MCP client without sampling and elicitation. It has the root
// /workspace, unless blind.
func (c *conn) client(blind bool) *mcp.Client {
	client := mcp.NewClient(&mcp.Implementation{Name: "scopefs", Version: "1"}, &mcp.ClientOptions{
		Capabilities:           &mcp.ClientCapabilities{RootsV2: &mcp.RootCapabilities{}},
		MultiRoundTrip:         &mcp.MultiRoundTripOptions{Disabled: true}, // a server may not ask for input
		ToolListChangedHandler: c.listChanged,
	})
	if !blind {
		client.AddRoots(&mcp.Root{URI: "file://" + sandbox.Workspace, Name: "workspace"})
	}
	return client
}

// await waits up to d for done and reports whether it was closed.
func await(done <-chan struct{}, d time.Duration) bool {
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// end stops the server and waits for the end of the run. It closes the server's
// standard input, as MCP's stdio transport specifies, and kills the server after
// exitTime.
func (c *conn) end() {
	go c.stdin.Close() // for a URL this is a request, which may block
	await(c.done, exitTime)
	c.kill()
	<-c.done
}

// errAnswer is the error of a server whose response is malformed.
var errAnswer = errors.New("invalid response")

// because returns the cause of a failed request: the end of the run, if the run
// has ended.
func (c *conn) because(err error) error {
	err = c.plain(err)
	switch _, theirs := answered(err); {
	case theirs, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("MCP server %q: %w", c.name, err)
	case await(c.done, 2*drainTime):
		return fmt.Errorf("MCP server %q ended: %w", c.name, c.err)
	}
	if _, unsent := errors.AsType[*jsonrpc.Error](err); unsent {
		return fmt.Errorf("MCP server %q: %w", c.name, err)
	}
	return fmt.Errorf("MCP server %q: %w: %w", c.name, errAnswer, err)
}

// answered returns the server's error response, if err is one. The SDK uses the
// same type for a request that it could not send.
func answered(err error) (*jsonrpc.Error, bool) {
	e, ok := errors.AsType[*jsonrpc.Error](err)
	return e, ok && e.Message != "rejected by transport"
}

func (c *conn) listChanged(context.Context, *mcp.ToolListChangedRequest) {
	c.notices.changed.Store(0) // what changes from here on needs another one
	c.mu.Lock()
	c.version++
	c.mu.Unlock()
	c.changed()
}

// reporting makes the server report the progress of a request to report, until done is called.
func (c *conn) reporting(params *mcp.CallToolParams, report func(string)) (done func()) {
	token := rand.Text()
	params.SetProgressToken(token)
	c.notices.reports.Store(token, report)
	return func() { c.notices.reports.Delete(token) }
}

// list returns the server's tools. It requests the list again only after a
// list_changed notification. It fails beyond maxTools or maxPages.
func (c *conn) list(ctx context.Context) ([]*mcp.Tool, error) {
	c.mu.Lock()
	version, known := c.version, c.tools
	fresh := c.listed == version
	c.mu.Unlock()
	if fresh {
		return known, nil
	}
	var all []*mcp.Tool
	left := newBudget()
	params := &mcp.ListToolsParams{}
	for page := 0; ; page++ {
		r, err := promptly(ctx, func() (*mcp.ListToolsResult, error) { return c.session.ListTools(ctx, params) })
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
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tools, c.listed = all, version
	return all, nil
}

// promptly calls f and returns when f or ctx ends. f may block longer, in a write
// that the server does not read; it ends at the latest with the run.
func promptly[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	result := make(chan answer, 1)
	go func() {
		var a answer
		a.err = guard(func() (err error) {
			a.value, err = f()
			return err
		})
		result <- a
	}()
	select {
	case a := <-result:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// guard returns a panic of f as an error. The SDK (1.8.0) panics, for example, if a
// result's inputRequests are null. The daemon serves all agents and must survive
// that.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}
