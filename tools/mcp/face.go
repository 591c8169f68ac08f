// Package mcp serves a tool set to clients of the Model Context Protocol
// (https://modelcontextprotocol.io/specification). It decides nothing: every call
// goes to Set.Call.
package mcp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/limit"
	"github.com/scopefs/scopefs/tools/mcp/names"
)

// maxMessage bounds a client's message, in bytes.
const maxMessage = 16 << 20

// Options configure a Face.
type Options struct {
	Version      string        // of scopefs, for clients
	Log          *Log          // of the session, as a resource; nil: none
	Instructions func() string // returns the current instructions for the model; nil: none
	Logger       *slog.Logger  // of the SDK
	Encoders     *limit.Slots  // of all faces of a daemon, see [MaxEncoders]; nil: no bound
	Inbox        *Inbox        // of all faces of the agent; nil: one for this Face

	// FullSchemas lists tools with the schemas of their results and every bound of their arguments, for clients that read them.
	FullSchemas bool

	// Listing is called before each tools/list and may call Refresh. It returns the names of
	// servers that are still starting, whose tools the list lacks: the client gets them as
	// scopefs/starting in the result's _meta. Nil: nothing.
	Listing func(context.Context) (starting []string)

	// Sessions keeps sessions over HTTP. Nil: they end with the Face.
	Sessions Sessions

	// Returns reports whether the client resumes its calls with the next daemon. Nil: it does not.
	Returns func() bool

	Context     *scoped.Environment                      // of each session until it has another; nil: none
	HoldContext func(size int) (release func(), ok bool) // reserves memory for a session's context; nil: no bound

	// KeepContext keeps what tools.Env.Keep has set in a session, for the next Face of the same clients; nil is nothing.
	// KeptContext calls restore with what the last Face has left, if there is anything; after an error the session has none. session
	// is an id of Sessions; "": the client's only session. Nil: the messages end with the Face.
	KeepContext func(session string, messages []byte)
	KeptContext func(session string, restore func(*scoped.Environment) error)
}

// Face is an MCP server for a tool set, with any number of clients. Nothing that a
// client declares, roots included, changes what it may do.
type Face struct {
	set    *tools.Set
	opt    Options
	server *mcp.Server
	web    http.Handler

	mu     sync.Mutex
	listed map[string]string // MCP name of each listed tool, and its fingerprint

	contexts contexts
	notes    notes

	resuming    sync.Mutex
	resumptions map[string]*resumption // by the id that the client knows; guarded by resuming
	streams     map[string]*callStream // of calls that are kept or resumed, by stream.key; guarded by resuming
}

// New returns a Face that serves set. The caller must close it.
func New(set *tools.Set, opt Options) *Face {
	f := &Face{set: set, opt: opt, listed: map[string]string{}, resumptions: map[string]*resumption{}, streams: map[string]*callStream{}}
	f.server = mcp.NewServer(
		implementation(opt.Version),
		&mcp.ServerOptions{
			Logger: opt.Logger,
			// scopefs mcp sends log messages when the daemon restarts.
			Capabilities: &mcp.ServerCapabilities{Logging: &mcp.LoggingCapabilities{},
				Tools: &mcp.ToolCapabilities{ListChanged: true}, Resources: &mcp.ResourceCapabilities{}},
			CompletionHandler: f.complete,
			// Lists differ by agent: without "private" a proxy may cache one for all (SEP-2549).
			SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.CacheScope = "private" },
		})
	if opt.Instructions == nil {
		f.opt.Instructions = func() string { return "" }
	}
	f.server.AddPrompt(&mcp.Prompt{Name: "agent", Title: "The agent's prompt",
		Description: "The agent's instructions: its role, and the tools and files that it may use."}, f.prompt)
	if opt.Inbox == nil {
		f.opt.Inbox = NewInbox(tools.NewShare())
	}
	f.web = f.newWeb()
	f.addResources()
	f.server.AddReceivingMiddleware(f.handled, f.introduce, f.resources, f.answer, f.keepWeb)
	f.Refresh()
	return f
}

// Refresh updates the advertised tools, and notifies clients if they changed. Each
// call is authorised on its own, whatever is advertised.
func (f *Face) Refresh() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := map[string]string{}
	for _, t := range f.set.List() {
		name := names.OfTool(t.Name)
		now[name] = fingerprint(t, f.opt.FullSchemas)
		if f.listed[name] != now[name] {
			f.server.AddTool(describe(t, f.opt.FullSchemas), f.handleQuestion)
		}
	}
	gone := slices.DeleteFunc(slices.Sorted(maps.Keys(f.listed)), func(name string) bool { return now[name] != "" })
	if len(gone) > 0 {
		f.server.RemoveTools(gone...)
	}
	f.listed = now
}

// Serve serves one client on conn, with one JSON-RPC message per line, until the
// client disconnects or ctx ends. It then cancels the client's running calls. A
// client that has only closed its sending side has a second ([maxLinger]) to
// receive the responses. Serve returns nil when the client has disconnected and at
// the end of ctx, otherwise the error of the connection.
func (f *Face) Serve(ctx context.Context, conn io.ReadWriteCloser) error {
	l := newLines(conn, f.opt.Inbox, f.set.HoldAnswer)
	defer l.freeAll()
	l.begin = make(chan struct{})
	session, err := f.server.Connect(ctx, l, nil)
	if err != nil {
		return err
	}
	// session.Close would wait for running calls; closing the connection cancels them.
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer f.endContext(session)
	f.restoreContext(session, "")
	close(l.begin)
	err = session.Wait()
	if ctx.Err() != nil || slices.ContainsFunc(disconnected, func(end error) bool { return errors.Is(err, end) }) {
		return nil
	}
	return err
}

// disconnected are the errors of a connection whose client has disconnected: of a read,
// or of a write that was in progress.
var disconnected = []error{io.EOF, io.ErrClosedPipe, net.ErrClosed, syscall.EPIPE, syscall.ECONNRESET}

// Close closes the sessions of all clients.
func (f *Face) Close() {
	f.leaveCalls()
	for s := range f.server.Sessions() {
		_ = s.Close()
	}
}

// prompt returns the instructions as a prompt, for clients that do not pass
// instructions to the model.
func (f *Face) prompt(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: f.opt.Instructions()}}}}, nil
}

// introduce sets the current instructions in the responses to initialize and server/discover.
func (f *Face) introduce(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if err != nil { // res may hold a nil pointer
			return nil, err
		}
		switch r := res.(type) {
		case *mcp.InitializeResult:
			r.Instructions = f.opt.Instructions()
		case *mcp.DiscoverResult:
			r.Instructions = f.opt.Instructions()
		}
		return res, nil
	}
}

func implementation(version string) *mcp.Implementation {
	return &mcp.Implementation{Name: "scopefs", Title: "scopefs", Version: version}
}

// answer passes every tools/call to Set.Call, which also refuses and records calls
// of tools that are not listed. Only a call with a question for the user continues
// in the SDK, to handleQuestion.
func (f *Face) answer(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if _, ok := req.(*mcp.ListToolsRequest); ok && f.opt.Listing != nil {
			starting := f.opt.Listing(ctx)
			res, err := next(ctx, method, req)
			if list, ok := res.(*mcp.ListToolsResult); ok && err == nil && len(starting) > 0 {
				list.SetMeta(map[string]any{names.Meta + "starting": starting})
			}
			return res, err
		}
		call, ok := req.(*mcp.CallToolRequest)
		if !ok {
			return next(ctx, method, req)
		}
		res, asked, err := f.call(ctx, call)
		if asked == nil {
			streamOf(call).answer()
			return res, err
		}
		return next(context.WithValue(ctx, askedKey{}, asked), method, req)
	}
}
