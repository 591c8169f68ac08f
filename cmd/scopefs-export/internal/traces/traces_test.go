package traces

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/trace"
)

const clients = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// receiver takes traces by OTLP/HTTP, with the collector's own decoder.
type receiver struct {
	*httptest.Server
	mu      sync.Mutex
	spans   map[string][]ptrace.Span // by name
	schemas map[string]bool
	agents  map[string]bool
	answers []func(http.ResponseWriter) // of the next requests, before the receiver takes one
	largest int                         // spans of a request that it takes; 0: any number
	tokens  []string
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{spans: map[string][]ptrace.Span{}, schemas: map[string]bool{}, agents: map[string]bool{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tokens = append(r.tokens, req.Header.Get("Authorization"))
	body, err := gzip.NewReader(req.Body)
	var text []byte
	if err == nil {
		text, err = io.ReadAll(body)
	}
	request := ptraceotlp.NewExportRequest()
	if err == nil {
		err = request.UnmarshalProto(text)
	}
	if err != nil || req.URL.Path != "/v1/traces" {
		http.Error(w, fmt.Sprint(err, req.URL), http.StatusBadRequest)
		return
	}
	if len(r.answers) > 0 {
		answer := r.answers[0]
		r.answers = r.answers[1:]
		answer(w)
		return
	}
	if r.largest > 0 && request.Traces().SpanCount() > r.largest {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	}
	for _, rs := range request.Traces().ResourceSpans().All() {
		agent, _ := rs.Resource().Attributes().Get("scopefs.agent")
		r.agents[agent.Str()] = true
		for _, ss := range rs.ScopeSpans().All() {
			r.schemas[ss.SchemaUrl()] = true
			for _, span := range ss.Spans().All() {
				r.spans[span.Name()] = append(r.spans[span.Name()], span)
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func (r *receiver) sender(t *testing.T, change func(*Options)) *Sender {
	opt := Options{URL: r.URL + "/v1/traces", Client: &http.Client{Transport: &http.Transport{}}, Source: Source{Host: "h", Version: "v1"},
		Refused: func(text string) { t.Error(text) }}
	if change != nil {
		change(&opt)
	}
	s, err := New(opt)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// only returns the only span with a name.
func (r *receiver) only(t *testing.T, name string) ptrace.Span {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Len(t, r.spans[name], 1, name)
	return r.spans[name][0]
}

func of(c trace.Context) string { return fmt.Sprintf("%x", c.Span) }

func attr(s ptrace.Span, name string) string {
	v, _ := s.Attributes().Get(name)
	return v.AsString()
}

// log numbers events, each a second after the other.
type log struct{ events []audit.Event }

var epoch = time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)

func (l *log) add(e audit.Event) audit.Event {
	e.Seq = uint64(len(l.events) + 1)
	e.Time = epoch.Add(time.Duration(e.Seq) * time.Second)
	l.events = append(l.events, e)
	return e
}

// recorded returns the log of a client's session with a delegated task.
func recorded() (l log, outer, inner, refused audit.Event) {
	box := audit.Event{Event: audit.KindSandbox, Agent: "a", Session: "7-1", Parent: "c1"}
	box.Outcome = "started"
	l.add(box)
	outer = audit.Event{Event: audit.KindCall, Agent: "a", Session: "c1", Call: "outer", Op: "delegate", Target: "b", Verdict: audit.Allow,
		Outcome: audit.OutcomeBegin, Trace: clients, TraceState: "rojo=1"}
	asked := audit.Event{Event: audit.KindApproval, Agent: "a", Session: "c1", Call: "outer", Op: "delegate", Outcome: "asked", Detail: "id", Trace: clients}
	l.add(asked)
	asked.Outcome = "used"
	l.add(asked)
	l.add(outer)
	made := trace.Of(outer).String()
	inner = audit.Event{Event: audit.KindCall, Agent: "b", Session: "c2", Chain: "a>b", Call: "inner", Op: "bash", Verdict: audit.Allow, Outcome: audit.OutcomeBegin, Trace: made}
	l.add(inner)
	l.add(audit.Event{Event: audit.KindFile, Agent: "b", Session: "7-3", Parent: "c2", Call: "inner", Op: "lookup", Path: "secret", Verdict: audit.Deny, Rule: "secret: hide", Errno: "ENOENT", Trace: made})
	l.add(audit.Event{Event: audit.KindNetwork, Agent: "b", Session: "7-3", Parent: "c2", Chain: "a>b", Call: "inner", Op: "connect", Target: "example.com:443", Verdict: audit.Allow, Outcome: audit.OutcomeBegin, Trace: made})
	l.add(audit.Event{Event: audit.KindNetwork, Agent: "b", Session: "7-3", Parent: "c2", Chain: "a>b", Call: "inner", Op: "connect", Target: "example.com:443", Verdict: audit.Allow, Outcome: "end", Bytes: 12, DurationUS: 500_000, Trace: made})
	inner.Outcome, inner.DurationUS = "ok", 3_000_000
	inner = l.add(inner)
	l.add(audit.Event{Event: audit.KindSandbox, Agent: "b", Session: "7-2", Parent: "c1", Chain: "a>b", Op: "exec", Outcome: "exit 1", DurationUS: 5_000_000, Trace: made})
	l.add(audit.Event{Event: audit.KindNetwork, Agent: "a", Session: "7-1", Parent: "c1", Call: "outer", Op: "request", Target: "GET https://example.com/x", Verdict: audit.Deny, Rule: "network"})
	outer.Outcome, outer.DurationUS = "internal", 6_000_000
	outer = l.add(outer)
	refused = l.add(audit.Event{Event: audit.KindCall, Agent: "a", Session: "c1", Call: "refused", Op: "stat", Verdict: audit.Deny, Rule: "no such tool", Outcome: "denied"})
	l.add(audit.Event{Event: audit.KindFile, Agent: "a", Session: "7-1", Parent: "c1", Op: "open", Path: "x", Verdict: audit.Violation, Errno: "EACCES"})
	box.Outcome, box.DurationUS = "ended", 14_000_000
	l.add(box)
	return l, outer, inner, refused
}

// TestSpans: a session is a trace, whose calls and what they did are below each other.
func TestSpans(t *testing.T) {
	r := newReceiver(t)
	l, outer, inner, refused := recorded()
	require.NoError(t, r.sender(t, nil).Send(t.Context(), l.events))

	root := r.only(t, "invoke_agent a")
	own := trace.OfSession("a", "c1")
	assert.Equal(t, of(own), root.SpanID().String())
	assert.True(t, root.ParentSpanID().IsEmpty())
	assert.Equal(t, l.events[len(l.events)-1].Time, root.EndTimestamp().AsTime())
	assert.Equal(t, 14*time.Second, root.EndTimestamp().AsTime().Sub(root.StartTimestamp().AsTime()))

	delegate := r.only(t, "execute_tool delegate")
	assert.Equal(t, clients[3:35], delegate.TraceID().String(), "the client's trace")
	assert.Equal(t, clients[36:52], delegate.ParentSpanID().String())
	assert.Equal(t, "rojo=1", delegate.TraceState().AsRaw())
	assert.Equal(t, of(trace.Of(outer)), delegate.SpanID().String())
	require.Equal(t, 1, delegate.Links().Len())
	assert.Equal(t, of(own), delegate.Links().At(0).SpanID().String(), "and its session's")
	assert.Equal(t, l.events[1].Time, delegate.StartTimestamp().AsTime(), "with the wait for the approval")
	assert.Equal(t, ptrace.StatusCodeError, delegate.Status().Code())
	for name, want := range map[string]string{
		"error.type": "internal", "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "delegate", "gen_ai.tool.call.id": "outer", "gen_ai.agent.name": "a",
		"mcp.method.name": "tools/call", "mcp.session.id": "c1", "scopefs.target": "b",
	} {
		assert.Equal(t, want, attr(delegate, name), name)
	}

	below := func(name string, parent ptrace.Span) ptrace.Span {
		t.Helper()
		s := r.only(t, name)
		assert.Equal(t, parent.SpanID().String(), s.ParentSpanID().String(), name)
		assert.Equal(t, parent.TraceID(), s.TraceID(), name)
		return s
	}
	wait := below("approval delegate", delegate)
	assert.Equal(t, time.Second, wait.EndTimestamp().AsTime().Sub(wait.StartTimestamp().AsTime()))
	runner := below("invoke_agent b", delegate)
	assert.Equal(t, ptrace.StatusCodeError, runner.Status().Code())
	bash := r.only(t, "execute_tool bash")
	assert.Equal(t, of(trace.Of(inner)), bash.SpanID().String())
	assert.Equal(t, delegate.SpanID(), bash.ParentSpanID(), "a delegated call")
	assert.Equal(t, delegate.TraceID(), bash.TraceID())
	assert.Equal(t, ptrace.StatusCodeUnset, bash.Status().Code())
	assert.Equal(t, 3*time.Second, bash.EndTimestamp().AsTime().Sub(bash.StartTimestamp().AsTime()))
	lookup := below("file lookup", bash)
	assert.Equal(t, "ENOENT", attr(lookup, "error.type"))
	assert.Equal(t, "secret", attr(lookup, "scopefs.path"))
	connect := below("connect", bash)
	assert.Equal(t, "example.com", attr(connect, "server.address"))
	assert.Equal(t, "443", attr(connect, "server.port"))
	assert.Equal(t, ptrace.SpanKindClient, connect.Kind())
	assert.Equal(t, 500*time.Millisecond, connect.EndTimestamp().AsTime().Sub(connect.StartTimestamp().AsTime()))
	get := below("GET", delegate)
	assert.Equal(t, "deny", attr(get, "error.type"))
	assert.Equal(t, "https://example.com/x", attr(get, "url.full"))
	below("file open", root)

	no := r.only(t, "execute_tool stat")
	assert.Equal(t, of(trace.Of(refused)), no.SpanID().String())
	assert.Equal(t, root.SpanID(), no.ParentSpanID())
	assert.Equal(t, root.TraceID(), no.TraceID())
	assert.Equal(t, "denied: no such tool", no.Status().Message())
	assert.Equal(t, map[string]bool{"https://opentelemetry.io/schemas/1.41.0": true}, r.schemas)
	assert.Equal(t, map[string]bool{"a": true, "b": true}, r.agents)
}

// TestSpansAgain: a process that begins in the middle makes spans with the same ids, and each call's span is the same.
func TestSpansAgain(t *testing.T) {
	l, _, _, _ := recorded()
	ids := func(from int) map[string]string {
		r := newReceiver(t)
		require.NoError(t, r.sender(t, nil).Send(t.Context(), l.events[from:]))
		all := map[string]string{}
		for name, spans := range r.spans {
			for _, s := range spans {
				key := name + " " + s.SpanID().String()
				assert.Empty(t, all[key])
				all[key] = "a span"
				if strings.HasPrefix(name, "execute_tool bash") || strings.HasPrefix(name, "invoke_agent") || name == "connect" {
					all[key] = fmt.Sprint(s.TraceID(), s.ParentSpanID(), s.StartTimestamp(), s.EndTimestamp())
				}
			}
		}
		return all
	}
	whole := ids(0)
	require.Len(t, whole, 10)
	for from := range l.events {
		for key, want := range ids(from) {
			assert.Equal(t, want, whole[key], "from %d: %s", from, key)
		}
	}
}

// TestSendFails: after an error the same spans are sent again, and none twice after a success.
func TestSendFails(t *testing.T) {
	l, _, _, _ := recorded()
	r := newReceiver(t)
	var refused []string
	s := r.sender(t, func(opt *Options) { opt.Refused = func(text string) { refused = append(refused, text) } })
	status := func(code int) func(http.ResponseWriter) { return func(w http.ResponseWriter) { w.WriteHeader(code) } }
	r.answers = []func(http.ResponseWriter){status(503), status(500), status(429)}
	for range 3 {
		require.Error(t, s.Send(t.Context(), l.events))
	}
	r.largest = 2
	require.NoError(t, s.Send(t.Context(), l.events))
	require.NoError(t, s.Send(t.Context(), l.events), "the other sender of a stream has failed")
	n := 0
	for _, spans := range r.spans {
		n += len(spans)
	}
	assert.Equal(t, 10, n)

	r.largest = 0
	partly := ptraceotlp.NewExportResponse()
	partly.PartialSuccess().SetRejectedSpans(1)
	partly.PartialSuccess().SetErrorMessage("too old")
	r.answers = []func(http.ResponseWriter){func(w http.ResponseWriter) {
		text, err := partly.MarshalProto()
		assert.NoError(t, err)
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(text)
	}}
	more := log{events: l.events}
	more.add(audit.Event{Event: audit.KindFile, Agent: "a", Session: "s", Op: "open", Verdict: audit.Deny})
	require.NoError(t, s.Send(t.Context(), more.events), "it would refuse them again")
	require.Len(t, refused, 1)
	assert.Contains(t, refused[0], "too old")

	r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	more.add(audit.Event{Event: audit.KindFile, Agent: "a", Session: "s", Op: "open", Verdict: audit.Deny})
	require.Error(t, s.Send(ctx, more.events))
}

// TestSpansUnknown: a call that the daemon did not end, and a session without a sandbox.
func TestSpansUnknown(t *testing.T) {
	var l log
	call := audit.Event{Event: audit.KindCall, Agent: "a", Session: "c1", Call: "x", Op: "bash", Outcome: audit.OutcomeBegin}
	l.add(call)
	l.add(audit.Event{Event: audit.KindDaemon, Outcome: "started"})
	call.Outcome = audit.OutcomeUnknown
	l.add(call)
	late := l.add(audit.Event{Event: audit.KindDaemon, Outcome: "stopped"})
	l.events[len(l.events)-1].Time = late.Time.Add(silence + time.Minute)
	r := newReceiver(t)
	require.NoError(t, r.sender(t, nil).Send(t.Context(), l.events))
	bash := r.only(t, "execute_tool bash")
	assert.Equal(t, "unknown", attr(bash, "error.type"))
	assert.Equal(t, 2*time.Second, bash.EndTimestamp().AsTime().Sub(bash.StartTimestamp().AsTime()))
	root := r.only(t, "invoke_agent a")
	assert.Equal(t, root.SpanID(), bash.ParentSpanID())
	assert.Equal(t, l.events[2].Time, root.EndTimestamp().AsTime())
}

// TestSpansBounded: calls without an end and sessions without a sandbox take no more memory than the bounds.
func TestSpansBounded(t *testing.T) {
	s := NewSpans(Source{})
	spans := 0
	for i := range 5 * maxCalls {
		id := fmt.Sprint(i)
		e := audit.Event{Seq: uint64(i), Time: epoch, Event: audit.KindCall, Agent: "a", Session: id, Call: id, Op: "bash", Outcome: audit.OutcomeBegin}
		spans += len(s.Add(e))
		if i%2 == 0 {
			e.Outcome = "ok"
			spans += len(s.Add(e))
		}
	}
	assert.LessOrEqual(t, len(s.calls), maxCalls)
	assert.LessOrEqual(t, len(s.begun), 2*maxCalls)
	assert.LessOrEqual(t, len(s.sessions), maxSessions)
	assert.Equal(t, 5*maxCalls/2+5*maxCalls-len(s.sessions), spans)
}

// TestSpansHostile: a log with anything in its fields makes spans that a receiver reads.
func TestSpansHostile(t *testing.T) {
	r := newReceiver(t)
	var l log
	odd := []string{"", "\\xff", strings.Repeat("x", 4096), "GET ://", "[::1]:99999", "a b c", "00-evil", clients + "-00"}
	for _, kind := range []string{audit.KindFile, audit.KindNetwork, audit.KindCall, audit.KindSandbox, audit.KindApproval, audit.KindHistory, "?"} {
		for _, text := range odd {
			for _, verdict := range []audit.Verdict{audit.Allow, audit.Deny} {
				l.add(audit.Event{Event: kind, Agent: text, Session: "s" + text, Parent: text, Chain: text, Op: text, Target: text, Path: text, Rule: text, Outcome: text,
					Trace: text, TraceState: text, Verdict: verdict, DurationUS: 1 << 62, Status: 1 << 30})
			}
		}
	}
	require.NoError(t, r.sender(t, nil).Send(t.Context(), l.events))
	assert.NotEmpty(t, r.spans)
	for _, spans := range r.spans {
		for _, s := range spans {
			assert.False(t, s.TraceID().IsEmpty())
			assert.False(t, s.SpanID().IsEmpty())
			assert.NotContains(t, s.TraceState().AsRaw(), "evil")
		}
	}
}
