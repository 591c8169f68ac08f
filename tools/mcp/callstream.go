package mcp

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/internal/rpc"
)

// A call over HTTP can outlive the Face. When its tool says so, its stream gets an event with an id and no data, and Sessions
// keeps the request. A client whose stream has broken sends a GET with that id as Last-Event-ID (MCP 2025-11-25, Resumability
// and Redelivery). The next Face serves it as the kept request, which resumes the call. Other streams have no ids.

const (
	primingProtocol = "2025-11-25" // the first protocol with events without data
	maxKeptRequest  = 64 << 10     // bytes of a request that is kept
	maxKeptID       = 64           // bytes of its id
	retryTime       = 2 * time.Second
	primingTime     = time.Second // for a client that does not read
)

// lastEvent has the id of the last event that a client has got of a stream.
const lastEvent = "Last-Event-ID"

// callStream is the response to a POST of a session, which may have a call of a tool. It implements http.ResponseWriter for the SDK.
type callStream struct {
	http.ResponseWriter // guarded by writing
	face                *Face
	session             string // as the client knows it
	resume              string // see tools.Call
	body                *markedBody
	primes              bool // the client's protocol has events without data

	writing sync.Mutex  // a client that does not read holds it up; nothing locks it under mu
	over    atomic.Bool // the client can get no more of the stream; set under writing

	mu       sync.Mutex
	call     string // the call that lives on; "": it does not
	told     []func()
	stop     context.CancelFunc // ends the call; nil: it has not begun
	returned bool               // the call has: only its response follows
	left     bool               // to the next Face
	ended    bool               // nobody resumes the call, unless it begins later
}

// streamOf returns the stream of a request over HTTP, or nil.
func streamOf(req *mcp.CallToolRequest) *callStream {
	if req.Extra == nil || req.Extra.TokenInfo == nil {
		return nil
	}
	s, _ := req.Extra.TokenInfo.Extra[sourceKey].(*callStream)
	return s
}

// stream returns the stream of a POST. It changes the request so that the SDK passes the stream to the handlers of the request.
func (f *Face) stream(r *http.Request, session, resume string) *callStream {
	r.Header.Set("Authorization", "Bearer -") // which has been checked
	return &callStream{face: f, session: session, resume: resume, primes: r.Header.Get(protocolHeader) >= primingProtocol}
}

// protocolHeader has the version of the protocol.
const protocolHeader = "Mcp-Protocol-Version"

// serve has the SDK serve the request.
func (s *callStream) serve(w *unmarked, r *http.Request) {
	s.ResponseWriter, s.body = w, w.body
	defer s.end()
	auth.RequireBearerToken(func(context.Context, string, *http.Request) (*auth.TokenInfo, error) {
		return &auth.TokenInfo{Extra: map[string]any{sourceKey: s}}, nil
	}, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(s.face.web).ServeHTTP(s, r)
}

// Unwrap is for http.ResponseController.
func (s *callStream) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *callStream) Write(p []byte) (int, error) {
	s.mu.Lock()
	left := s.left
	s.mu.Unlock()
	if left {
		return 0, net.ErrClosed
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.ResponseWriter.Write(p)
}

// Flush sends what was written. The SDK flushes after each event, and so after the response.
func (s *callStream) Flush() {
	s.writing.Lock()
	err := http.NewResponseController(s.ResponseWriter).Flush()
	s.writing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.returned && !s.left {
		s.settle()
	}
}

// begin notes that the call begins. stop ends it, or leaves it to the next Face.
func (s *callStream) begin(stop context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop = stop
}

// keeps reports whether the client may resume the call.
func (s *callStream) keeps() bool {
	return s.resume != "" || s.primes && s.body.request != nil
}

// kept makes the call outlive the Face. told is called when nobody resumes the call.
func (s *callStream) kept(call string, told func()) {
	if s.keep(call, told) {
		s.prime(call)
	}
}

// keep reports whether the client can resume the call.
func (s *callStream) keep(call string, told func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended && s.returned {
		told()
		return false
	}
	s.told, s.call = append(s.told, told), call
	s.face.resuming.Lock()
	s.face.streams[s.key(call)] = s
	s.face.resuming.Unlock()
	// If not, the work lives on all the same, as long as the next Face waits for the client.
	return !s.over.Load() && s.face.opt.Sessions.KeepCall(s.session, call, s.body.request)
}

// prime sends the event by whose id the client resumes a call.
func (s *callStream) prime(call string) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.over.Load() {
		return
	}
	control := http.NewResponseController(s.ResponseWriter)
	_ = control.SetWriteDeadline(time.Now().Add(primingTime))
	_, _ = fmt.Fprintf(s.ResponseWriter, "id: %s\nretry: %d\ndata: \n\n", eventID(call, s.body.id), retryTime.Milliseconds())
	_ = control.Flush()
	_ = control.SetWriteDeadline(time.Time{})
}

// key returns the key of Face.streams.
func (s *callStream) key(call string) string { return s.session + "." + call }

// leaveCalls ends the calls that the next Face resumes. Nothing else does over HTTP, where calls outlive connections.
func (f *Face) leaveCalls() {
	f.resuming.Lock()
	all := slices.Collect(maps.Values(f.streams))
	f.resuming.Unlock()
	for _, s := range all {
		s.mu.Lock()
		if s.stop != nil {
			s.stop()
		}
		s.mu.Unlock()
	}
}

// leave notes that the call is left to the next Face. No response follows.
func (s *callStream) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = true
}

// answer notes that the call has returned.
func (s *callStream) answer() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.returned = true; s.over.Load() {
		s.lose()
	}
}

// end notes that the client gets no more of the stream.
func (s *callStream) end() {
	s.writing.Lock()
	s.over.Store(true)
	s.writing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.returned || s.stop == nil { // the SDK may have refused the request
		s.lose()
	}
}

// lose settles a call whose response the client has not got, unless the next Face has one. The caller holds mu.
func (s *callStream) lose() {
	if !s.left && !s.face.opt.Sessions.Leaves() {
		s.settle()
	}
}

// settle notes that nobody resumes the call. The caller holds mu.
func (s *callStream) settle() {
	s.ended = true
	for _, told := range s.told {
		told()
	}
	s.told = nil
	for _, call := range []string{s.call, s.resume} {
		if call != "" {
			s.face.resuming.Lock()
			delete(s.face.streams, s.key(call))
			s.face.resuming.Unlock()
			s.face.opt.Sessions.DropCall(s.session, call)
		}
	}
}

// eventID returns the id of the event of a call, and of a request by its id.
func eventID(call string, request []byte) string {
	return call + "." + base64.RawURLEncoding.EncodeToString(request)
}

// parseEventID returns the call and the id of the request of an eventID. A client may have made it up.
func parseEventID(id string) (call string, request []byte, ok bool) {
	call, text, _ := strings.Cut(id, ".")
	if len(text) > base64.RawURLEncoding.EncodedLen(maxKeptID) {
		return "", nil, false
	}
	request, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || call == "" {
		return "", nil, false
	}
	h, err := rpc.Parse(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"x","id":%s}`, request))
	return call, request, err == nil && h.Kind == rpc.Request && bytes.Equal(h.ID, request)
}

// resumeCall serves a GET with the id of an event of eventID. It returns the request that continues with the call, and its
// stream; nil: it has answered. session is the id that the client knows.
func (f *Face) resumeCall(w http.ResponseWriter, r *http.Request, session string) (*http.Request, *callStream) {
	call, id, ok := parseEventID(r.Header.Get(lastEvent))
	if !ok || !slices.ContainsFunc(slices.Collect(f.server.Sessions()), func(s *mcp.ServerSession) bool { return s.ID() == r.Header.Get(sessionHeader) }) {
		return r, nil // the SDK refuses it
	}
	s := f.stream(r, session, call)
	f.resuming.Lock()
	was := f.streams[s.key(call)]
	var request []byte
	if was == nil {
		if request, ok = f.opt.Sessions.TakeCall(session, call); ok {
			f.streams[s.key(call)] = s
		}
	}
	f.resuming.Unlock()
	switch {
	case was != nil && !was.over.Load():
		http.Error(w, "the stream of the call is open", http.StatusConflict)
		return nil, nil
	case request == nil:
		loseResponse(w, id)
		return nil, nil
	}
	r = r.Clone(r.Context())
	r.Method, r.Body, r.ContentLength = http.MethodPost, io.NopCloser(bytes.NewReader(request)), int64(len(request))
	r.Header.Del(lastEvent)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	return r, s
}

// loseResponse answers the request with an id whose response nobody has.
func loseResponse(w http.ResponseWriter, id []byte) {
	text, err := json.Marshal(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   error           `json:"error"`
	}{"2.0", id, lost("the result of the call is lost")})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError) // cannot happen
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache, no-transform")
	_, _ = fmt.Fprintf(w, "event: message\ndata: %s\n\n", text)
}
