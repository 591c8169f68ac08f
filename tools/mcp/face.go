// Package mcp is the face that a tool set has for clients of the Model Context
// Protocol (https://modelcontextprotocol.io/specification). It decides nothing:
// every call goes to the set's door.
package mcp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/tools"
)

// The bounds of clients.
const (
	maxMessage  = 16 << 20         // bytes that one may send at once
	maxIdle     = 30 * time.Minute // of an HTTP session
	maxSessions = 256              // by HTTP, of a face
)

// Options say how a face introduces itself.
type Options struct {
	Version      string
	Instructions func() string         // as they are now; for the model; nil: none
	Listing      func(context.Context) // is called before tools are listed; it may Refresh. nil: nothing
	Logger       *slog.Logger
}

// Face is a tool set as an MCP server, for any number of clients. What a client
// says of itself, its roots included, changes nothing of what it may do.
type Face struct {
	set    *tools.Set
	opt    Options
	server *mcp.Server
	web    http.Handler

	mu     sync.Mutex
	listed map[string]string // names by which tools are listed, and what of them a client sees
}

// New returns the face of a set.
func New(set *tools.Set, opt Options) *Face {
	f := &Face{set: set, opt: opt, listed: map[string]string{}}
	f.server = mcp.NewServer(
		&mcp.Implementation{Name: "scopefs", Title: "scopefs", Version: opt.Version},
		&mcp.ServerOptions{
			Logger: opt.Logger,
			// Log messages come from scopefs mcp, when the daemon restarts.
			Capabilities: &mcp.ServerCapabilities{Logging: &mcp.LoggingCapabilities{}, Tools: &mcp.ToolCapabilities{ListChanged: true}},
			// What one agent is told is for no other: without it, a proxy may keep it for all (SEP-2549).
			SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.CacheScope = "private" },
		})
	if opt.Instructions == nil {
		f.opt.Instructions = func() string { return "" }
	}
	f.server.AddPrompt(&mcp.Prompt{Name: "agent", Title: "The agent's prompt", Description: "Who you are, and what you may use: the same as the instructions."}, f.prompt)
	f.web = f.newWeb()
	f.server.AddReceivingMiddleware(f.introduce, f.answer)
	f.Refresh()
	return f
}

// Refresh lists what may be called now, and tells clients if that has changed.
// Calls need it not: each is decided by the rules that hold when it comes.
func (f *Face) Refresh() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := map[string]string{}
	for _, t := range f.set.List() {
		name := wireName(t.Name)
		now[name] = seen(t)
		if f.listed[name] != now[name] {
			f.server.AddTool(describe(t), f.ask)
		}
	}
	var gone []string
	for name := range maps.Keys(f.listed) {
		if _, still := now[name]; !still {
			gone = append(gone, name)
		}
	}
	if len(gone) > 0 {
		slices.Sort(gone)
		f.server.RemoveTools(gone...)
	}
	f.listed = now
}

// Serve speaks with one client, a JSON-RPC message a line, until it goes or ctx
// ends. What is running then is cancelled: of a client that has closed its
// sending end after [lastCalls], so that it can hear the answers.
func (f *Face) Serve(ctx context.Context, conn io.ReadWriteCloser) error {
	l := newLines(conn, f.set.HoldAnswer)
	session, err := f.server.Connect(ctx, l, nil)
	if err != nil {
		return err
	}
	// Not the session's Close, which waits for calls: that they cannot be answered
	// any more cancels them.
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	err = session.Wait()
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		return nil
	}
	return err
}

// Handler serves streamable HTTP. faceOf says whose request it is, or with
// which status it is refused. Pages of the web are refused whatever they know:
// by the name that they use for us, and by where they say they are from.
func Handler(faceOf func(*http.Request) (*Face, int)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, status := faceOf(r)
		switch {
		case status == http.StatusUnauthorized:
			w.Header().Set("WWW-Authenticate", "Bearer")
			refuse(w, "give the agent's token: Authorization: Bearer TOKEN", status)
			return
		case f == nil:
			refuse(w, "the agent is down", status)
			return
		case r.Header.Get("Mcp-Session-Id") == "" && f.sessions() >= maxSessions:
			refuse(w, "there are too many sessions", http.StatusServiceUnavailable)
			return
		}
		r.Body = &tallied{ReadCloser: r.Body}
		out, end := exactIDs(w, r)
		defer end()
		f.web.ServeHTTP(out, r)
	})
}

// refuse answers and hangs up: the rest of what anybody sends is not waited for.
func refuse(w http.ResponseWriter, text string, status int) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now())
	http.Error(w, text, status)
}

func (f *Face) sessions() (n int) {
	for range f.server.Sessions() {
		n++
	}
	return n
}

// newWeb returns what serves a face by HTTP. Each face has its own, and with it
// its own sessions: the id of one is worth nothing to who has another's token.
func (f *Face) newWeb() http.Handler {
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return f.server }, &mcp.StreamableHTTPOptions{
		Logger: f.opt.Logger, SessionTimeout: maxIdle, MaxRequestBodyBytes: maxMessage, PropagateRequestCancellation: true,
		CrossOriginProtection: http.NewCrossOriginProtection(),
	})
}

// Close ends what clients there are.
func (f *Face) Close() {
	for s := range f.server.Sessions() {
		_ = s.Close()
	}
}

// prompt is the instructions for clients that show none of them to the model.
func (f *Face) prompt(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: f.opt.Instructions()}}}}, nil
}

// introduce puts the instructions of now into what a client first gets.
func (f *Face) introduce(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if err != nil { // beside it a result may be a nil pointer
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

// answer takes calls to the door, also those of what is not listed: there they
// are refused, and recorded. What the SDK does between here and a tool's handler
// only a call that asks the user needs.
func (f *Face) answer(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if _, ok := req.(*mcp.ListToolsRequest); ok && f.opt.Listing != nil {
			f.opt.Listing(ctx)
		}
		call, ok := req.(*mcp.CallToolRequest)
		if !ok {
			return next(ctx, method, req)
		}
		res, asked := f.call(ctx, call)
		if asked == nil {
			return res, nil
		}
		return next(context.WithValue(ctx, askedKey{}, asked), method, req)
	}
}

// MCP allows no colon in a name: mcp:SERVER:TOOL is mcp__SERVER__TOOL to clients.
func wireName(name string) string {
	if rest, ok := strings.CutPrefix(name, "mcp:"); ok {
		return "mcp__" + strings.Replace(rest, ":", "__", 1)
	}
	return name
}

// toolName is the reverse. A server's name has no two underscores in a row, or
// its tools would be taken for another's.
func toolName(wire string) string {
	if rest, ok := strings.CutPrefix(wire, "mcp__"); ok {
		return "mcp:" + strings.Replace(rest, "__", ":", 1)
	}
	return wire
}
