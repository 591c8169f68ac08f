package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Limits of sessions over HTTP.
const (
	MaxIdle     = 30 * time.Minute // until an idle session is closed
	maxSessions = 256              // per Face
)

// sessionHeader has the id of a session.
const sessionHeader = "Mcp-Session-Id"

// Sessions keeps the sessions of a Face over HTTP, by id, for the next Face of the same clients.
type Sessions interface {
	// Keep stores what a session is made of. It replaces the stored state.
	Keep(id string, state []byte)
	// Drop removes a session that has ended.
	Drop(id string)
	// Take returns the state of a session that the last Face has left. It does so once for each id.
	Take(id string) (state []byte, ok bool)
	// Left returns the number of sessions that Take can still return.
	Left() int
	// Leaves reports whether the next Face gets what is kept.
	Leaves() bool

	// KeepCall stores the request of a call of a session, and reports whether it is stored.
	KeepCall(id, call string, request []byte) bool
	// DropCall removes the request of a call that nobody resumes.
	DropCall(id, call string)
	// TakeCall returns a request that the last Face has left. It does so once for each call.
	TakeCall(id, call string) (request []byte, ok bool)
}

// Handler returns a handler of MCP's streamable HTTP transport. faceOf returns the
// Face for a request, or nil and the status of the refusal. The handler refuses
// requests of web pages: the SDK checks the Host header on loopback
// (DNS rebinding), and http.CrossOriginProtection the origin.
func Handler(faceOf func(*http.Request) (*Face, int)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, status := faceOf(r)
		id := r.Header.Get(sessionHeader)
		switch {
		case f == nil:
			refuse(w, "the agent is down", status)
			return
		case f.opt.Inbox.admit(r) != nil:
			return
		case id == "" && f.Sessions() >= maxSessions:
			refuse(w, "too many sessions: close one", http.StatusServiceUnavailable)
			return
		}
		var s *callStream
		if f.opt.Sessions != nil {
			w, r = f.resumed(w, r, id)
			switch {
			case r.Method == http.MethodPost && id != "":
				s = f.stream(r, id, "")
			case r.Method == http.MethodGet && r.Header.Get(lastEvent) != "":
				if r, s = f.resumeCall(w, r, id); r == nil {
					return
				}
			}
		}
		out := f.exactIDs(w, r)
		defer out.end()
		if s == nil {
			out.body.called = true // nobody would say so
			f.web.ServeHTTP(out, r)
			return
		}
		s.serve(out, r)
	})
}

// refuse sends an error and closes the connection. The read deadline discards the
// rest of an unread body.
func refuse(w http.ResponseWriter, text string, status int) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now())
	http.Error(w, text, status)
}

// newWeb returns the HTTP handler of a Face. Each Face has its own handler and so
// its own sessions: a session id is useless with another agent's token.
func (f *Face) newWeb() http.Handler {
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return f.server }, &mcp.StreamableHTTPOptions{
		Logger: f.opt.Logger, SessionTimeout: MaxIdle, MaxRequestBodyBytes: maxMessage, PropagateRequestCancellation: true,
		CrossOriginProtection: http.NewCrossOriginProtection(),
	})
}

// Sessions returns the number of open sessions, and of those that can be resumed.
func (f *Face) Sessions() int {
	n := len(slices.Collect(f.server.Sessions()))
	if f.opt.Sessions != nil {
		n += f.opt.Sessions.Left()
	}
	return n
}

// The SDK makes the ids of sessions, and takes no session from outside. A session that the last Face has left is therefore
// initialized anew, as its client did, when the client sends a request with its id. From then on the SDK gets the new id in
// place of the client's.

// webSession is a session over HTTP. It is a value of the context of its first request, and the SDK passes such values on to
// the session's handlers.
type webSession struct {
	mu    sync.Mutex
	id    string // as the client knows it; "": the SDK has not made it yet
	state webState
	ended bool
}

// webState is what a session is made of. It is JSON for [Sessions].
type webState struct {
	Initialize *mcp.InitializeParams `json:"initialize"`
	Level      mcp.LoggingLevel      `json:"level,omitempty"`
}

type webKey struct{}

// resumption is a session that the last Face has left, and that a client has asked for.
type resumption struct {
	start func() string // initializes it once, and returns the SDK's id
	told  atomic.Bool   // the client knows that the tools may be others now
}

// resumed returns a request as the SDK needs it to find its session, or to begin one that can be resumed.
func (f *Face) resumed(w http.ResponseWriter, r *http.Request, id string) (http.ResponseWriter, *http.Request) {
	if id == "" {
		return w, r.WithContext(context.WithValue(r.Context(), webKey{}, &webSession{}))
	}
	f.resuming.Lock()
	s := f.resumptions[id]
	if s == nil {
		if text, ok := f.opt.Sessions.Take(id); ok {
			s = &resumption{start: sync.OnceValue(func() string { return f.initialize(id, text) })}
			f.resumptions[id] = s
		}
	}
	f.resuming.Unlock()
	if s == nil {
		return w, r
	}
	now := s.start()
	if now == "" {
		f.forget(id)
		return w, r
	}
	if r.Header.Set(sessionHeader, now); r.Method == http.MethodGet && r.Header.Get(lastEvent) == "" {
		w = &refreshing{w, &s.told}
	}
	return w, r
}

// initializeTime bounds each request of initialize. None of them waits for a client.
const initializeTime = 10 * time.Second

// initialize makes a session as a client has made it, and returns the SDK's id; "" if the SDK refuses it.
func (f *Face) initialize(id string, text []byte) string {
	s := &webSession{id: id}
	if json.Unmarshal(text, &s.state) != nil || s.state.Initialize == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), webKey{}, s), initializeTime)
	defer cancel()
	given, level := "", s.state.Level
	send := func(message map[string]any) bool {
		message["jsonrpc"] = "2.0"
		body, err := json.Marshal(message)
		if err != nil {
			return false
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/", bytes.NewReader(body))
		if err != nil {
			return false
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		if given != "" {
			r.Header.Set(sessionHeader, given)
		}
		w := &unheard{header: http.Header{}}
		f.web.ServeHTTP(w, r)
		if given == "" {
			given = w.header.Get(sessionHeader)
		}
		return w.status < http.StatusBadRequest && given != ""
	}
	ok := send(map[string]any{"id": 1, "method": "initialize", "params": s.state.Initialize}) &&
		send(map[string]any{"method": "notifications/initialized"}) &&
		(level == "" || send(map[string]any{"id": 2, "method": "logging/setLevel", "params": &mcp.SetLoggingLevelParams{Level: level}}))
	if !ok {
		return ""
	}
	return given
}

// unheard is a response that nobody reads.
type unheard struct {
	header http.Header
	status int
}

func (u *unheard) Header() http.Header { return u.header }

func (u *unheard) WriteHeader(status int) { u.status = status }

func (u *unheard) Write(p []byte) (int, error) { return len(p), nil }

func (u *unheard) Flush() {}

// refreshing is the response to a GET of a resumed session. Once per session it says that the tools have changed: they may
// have, while no daemon ran. The SDK flushes the response when the stream is open.
type refreshing struct {
	http.ResponseWriter
	told *atomic.Bool
}

func (w *refreshing) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *refreshing) Flush() {
	if w.told.CompareAndSwap(false, true) {
		_, _ = w.Write([]byte("event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n"))
	}
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}

// keepWeb keeps sessions over HTTP for the next Face.
func (f *Face) keepWeb(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		s, web := ctx.Value(webKey{}).(*webSession)
		session, ok := req.GetSession().(*mcp.ServerSession)
		if !web || !ok || err != nil {
			return res, err
		}
		switch p := req.GetParams().(type) {
		case *mcp.InitializeParams:
			s.mu.Lock()
			resumed := s.id
			if s.state.Initialize = p; s.id == "" {
				s.id = session.ID()
			}
			go func() {
				_ = session.Wait()
				f.endWeb(s)
			}()
			f.store(s)
			s.mu.Unlock()
			if resumed != "" {
				f.restoreContext(session, resumed)
			}
		case *mcp.SetLoggingLevelParams:
			s.mu.Lock()
			s.state.Level = p.Level
			f.store(s)
			s.mu.Unlock()
		}
		return res, nil
	}
}

// store keeps the state of a session. The caller holds its mu.
func (f *Face) store(s *webSession) {
	if text, err := json.Marshal(s.state); err == nil && !s.ended {
		f.opt.Sessions.Keep(s.id, text)
	}
}

// endWeb drops a session that has ended.
func (f *Face) endWeb(s *webSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	f.forget(s.id)
}

// forget drops a session that cannot be resumed.
func (f *Face) forget(id string) {
	f.resuming.Lock()
	delete(f.resumptions, id)
	f.resuming.Unlock()
	f.opt.Sessions.Drop(id)
}
