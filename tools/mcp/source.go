package mcp

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/internal/rpc"
)

const (
	methodInitialize = "initialize"
	methodCall       = "tools/call"           // of a tool
	methodListen     = "subscriptions/listen" // of version 2026-07-28
)

// source is a message that the SDK has: a request until its response is written, or a notification until it is handled.
type source struct {
	lines  *lines
	method string
	id     []byte // as the client sent it
	resume string // see tools.Call
	bytes  int
	cost   time.Duration // to parse it
	call   bool          // of a tool
	mute   bool          // the client has cancelled the request: it gets no response. lines.sources.mu guards it until take
	size   func()        // releases the message's bytes; called once
	place  func()        // releases its place in lines.open; called once
	turn   func()        // ends its turn to be parsed

	mu       sync.Mutex
	answered bool
	told     []func() // called when the response is written
}

// sources are the messages of a connection that the SDK has.
type sources struct {
	mu   sync.Mutex
	byID map[jsonrpc.ID]*source // requests
	all  map[*source]bool
}

// sourceKey is where a message has its source. The SDK takes nothing else of a transport than a [mcp.RequestExtra].
const sourceKey = "scopefs"

// add notes a message, which took so long to parse, has a place in l.open and a turn to be parsed, and whose text release gives back.
// The error is for the client, and releases the place.
func (l *lines) add(r *jsonrpc.Request, id []byte, cost time.Duration, turn, release func()) error {
	src := &source{lines: l, method: r.Method, id: id, cost: cost, place: sync.OnceFunc(l.leave), turn: turn}
	if call, resumed := strings.CutPrefix(r.Method, rpc.ResumePrefix); resumed {
		r.Method, src.resume = methodCall, call
	}
	src.bytes, src.call = len(r.Method)+len(r.Params)+len(id), isCall(r.Method)
	free, ok := l.inbox.held.Hold(src.bytes, maxInbox)
	if !ok {
		src.place()
		return errFull
	}
	src.size = handOver(src.bytes, free, release)
	l.sources.mu.Lock()
	defer l.sources.mu.Unlock()
	if l.sources.all == nil {
		l.sources.all, l.sources.byID = map[*source]bool{}, map[jsonrpc.ID]*source{}
	}
	if r.IsCall() && l.sources.byID[r.ID] != nil {
		src.size()
		src.place()
		return errInFlight
	}
	l.sources.all[src] = true
	if r.IsCall() {
		l.sources.byID[r.ID] = src
	}
	if r.Method == methodCall || !r.IsCall() {
		r.Extra = &mcp.RequestExtra{TokenInfo: &auth.TokenInfo{Extra: map[string]any{sourceKey: src}}}
	}
	return nil
}

// cancel reports whether a request with the id is in flight and can be cancelled. It gets no response (MCP, Cancellation), unless it
// is a subscription, which ends by one. The client must not cancel initialize.
func (l *lines) cancel(id jsonrpc.ID) bool {
	l.sources.mu.Lock()
	defer l.sources.mu.Unlock()
	src := l.sources.byID[id]
	if src == nil || src.method == methodInitialize {
		return false
	}
	src.mute = src.method != methodListen
	return true
}

// leave releases a place in l.open.
func (l *lines) leave() {
	<-l.open
	select {
	case l.answered <- struct{}{}:
	default:
	}
}

// take returns the source of the request with an id, which has no other response, or nil. Its mute changes no more.
func (l *lines) take(id jsonrpc.ID) *source {
	l.sources.mu.Lock()
	defer l.sources.mu.Unlock()
	src := l.sources.byID[id]
	delete(l.sources.byID, id)
	return src
}

// free releases what the message takes.
func (s *source) free() {
	if s == nil {
		return
	}
	s.lines.sources.mu.Lock()
	delete(s.lines.sources.all, s)
	s.lines.sources.mu.Unlock()
	s.size()
	s.place()
	s.turn()
}

// read ends the turn of a message to be parsed.
func (s *source) read() {
	if s != nil {
		s.turn()
	}
}

// freeAll releases what the messages of a closed connection take: the SDK writes no more responses.
func (l *lines) freeAll() {
	l.sources.mu.Lock()
	all := slices.Collect(maps.Keys(l.sources.all))
	l.sources.mu.Unlock()
	for _, src := range all {
		src.free()
	}
}

// sourceOf returns the source of a message; nil over HTTP: see streamOf.
func sourceOf(req mcp.Request) *source {
	extra := req.GetExtra()
	if extra == nil || extra.TokenInfo == nil {
		return nil
	}
	src, _ := extra.TokenInfo.Extra[sourceKey].(*source)
	return src
}

// kept tells scopefs mcp that the call outlives the daemon. told is called when the client has the response.
func (s *source) kept(call string, told func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answered {
		told()
		return
	}
	s.told = append(s.told, told)
	_ = s.lines.write(rpc.KeptLine(s.id, call)) // a client that is gone learns it from its next daemon
}

// answer notes that the response follows. No line about the call does.
func (s *source) answer() {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.answered = true
	}
}

// done notes that the response is written.
func (s *source) done() {
	if s != nil {
		for _, told := range s.told {
			told()
		}
	}
}

// codeGone is the code of scopefs mcp for a call that has ended with its daemon.
const codeGone = -32000

// lost is the error of a call that cannot be resumed.
func lost(why string) error {
	return &jsonrpc.Error{Code: codeGone, Message: why + ": whether it had an effect is unknown, check before you send it again",
		Data: json.RawMessage(`{"code":"unavailable","effect":"unknown"}`)}
}
