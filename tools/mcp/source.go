package mcp

import (
	"encoding/json"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/internal/rpc"
)

// methodCall is the method of a call of a tool.
const methodCall = "tools/call"

// source is a request to call a tool, until its response is written.
type source struct {
	lines  *lines
	id     []byte // as the client sent it
	resume string // see tools.Call

	mu       sync.Mutex
	answered bool
	told     []func() // called when the response is written
}

// sources are the requests in flight of a connection, by id.
type sources struct {
	mu  sync.Mutex
	all map[jsonrpc.ID]*source
}

// sourceKey is where a request has its source. The SDK takes nothing else of a transport than a [mcp.RequestExtra].
const sourceKey = "scopefs"

// add notes a request to call a tool. An id that is in flight already stays that of the first request.
func (l *lines) add(r *jsonrpc.Request, id []byte) {
	call, resumed := strings.CutPrefix(r.Method, rpc.ResumePrefix)
	if !resumed && r.Method != methodCall {
		return
	}
	r.Method = methodCall
	src := &source{lines: l, id: id}
	if resumed {
		src.resume = call
	}
	l.sources.mu.Lock()
	defer l.sources.mu.Unlock()
	if l.sources.all == nil {
		l.sources.all = map[jsonrpc.ID]*source{}
	}
	if l.sources.all[r.ID] == nil {
		l.sources.all[r.ID] = src
		r.Extra = &mcp.RequestExtra{TokenInfo: &auth.TokenInfo{Extra: map[string]any{sourceKey: src}}}
	}
}

// take returns the source of the request with an id, which has no other response, or nil.
func (l *lines) take(id jsonrpc.ID) *source {
	l.sources.mu.Lock()
	defer l.sources.mu.Unlock()
	src := l.sources.all[id]
	delete(l.sources.all, id)
	return src
}

// sourceOf returns the source of a request; nil over HTTP: see streamOf.
func sourceOf(req *mcp.CallToolRequest) *source {
	if req.Extra == nil || req.Extra.TokenInfo == nil {
		return nil
	}
	src, _ := req.Extra.TokenInfo.Extra[sourceKey].(*source)
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
