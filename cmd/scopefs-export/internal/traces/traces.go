// Package traces makes spans of OpenTelemetry from events of the log: a trace for each session, a span for each call, and
// below it spans for what was denied, connections, waits for approvals, and what other agents do for the call.
//
// The names are those of the semantic conventions for GenAI and MCP, in the version that is the schema of each span. What they
// do not name begins with "scopefs." and has the name that the field has in the log. A span has nothing that the log has not.
//
// The event that ends something has nearly all of its span, so that a process that has not seen the beginning makes the same
// span, and the ids follow from the events (package trace): a receiver that gets a span twice gets it with the same id.
package traces

import (
	"cmp"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0" // the last version with gen_ai and mcp; they have no later stable release
	otel "go.opentelemetry.io/otel/trace"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/trace"
)

// The bounds of what Spans remembers.
const (
	maxCalls    = 4096 // that run, wait for an approval, or were made in a trace of the client's
	maxSessions = 4096
	silence     = time.Hour // after the last event of a session its span is made, if no sandbox of it has ended
)

// Source is what all spans have in common.
type Source struct {
	Host    string
	Node    string // its name in a fleet; "": it is in none
	Version string // of scopefs
}

// Spans makes spans from the events of a log, in their order. It is not safe for concurrent use.
type Spans struct {
	source   Source
	calls    map[string]*call
	begun    []string // the keys of calls, oldest first, and some that are gone
	sessions map[sessionKey]*session
	swept    time.Time
}

// call is what the event that ends a call does not have.
type call struct {
	began, asked time.Time // zero: not yet
	waited       bool      // the span of the wait was made
	made, state  string    // the fields Trace and TraceState
}

type sessionKey struct{ agent, name string }

// session is a session from its first event to its last one.
type session struct {
	first, last time.Time
	ended       bool // its span was made
}

// NewSpans returns Spans for a log.
func NewSpans(source Source) *Spans {
	return &Spans{source: source, calls: map[string]*call{}, sessions: map[sessionKey]*session{}}
}

// Add takes the next event, and returns the spans that end with it.
func (s *Spans) Add(e audit.Event) (done []sdk.ReadOnlySpan) {
	done = s.silent(e.Time)
	if e.Session == "" {
		return done
	}
	done = append(done, s.touch(e)...)
	one, ok := s.span(e)
	if ok {
		done = append(done, one...)
	}
	return done
}

// span returns the spans that end with an event.
func (s *Spans) span(e audit.Event) (spans []sdk.ReadOnlySpan, ok bool) {
	denied := e.Verdict == audit.Deny || e.Verdict == audit.Violation
	switch {
	case e.Event == audit.KindCall && e.Outcome == audit.OutcomeBegin:
		c := s.remember(e)
		c.began, c.made, c.state = e.Time, e.Trace, e.TraceState
	case e.Event == audit.KindCall:
		return s.ofCall(e), true
	case e.Event == audit.KindApproval:
		return s.ofApproval(e), true
	case e.Event == audit.KindNetwork && (denied || e.Outcome != audit.OutcomeBegin):
		return s.one(s.ofNetwork(e)), true
	case e.Event == audit.KindSandbox && e.Op == "exec" && e.Outcome != audit.OutcomeBegin:
		return s.one(s.ofExec(e)), true
	case e.Event == audit.KindSandbox && e.Outcome == "ended":
		return s.ofSandbox(e), true
	case e.Event == audit.KindHistory && e.Outcome != audit.OutcomeBegin:
		return s.one(s.child(e, "history "+e.Op)), true
	case denied: // of a file, or of /context
		one := s.child(e, strings.TrimSpace(e.Event+" "+e.Op))
		fail(&one, cmp.Or(e.Errno, string(e.Verdict)), string(e.Verdict)+": "+e.Rule)
		return s.one(one), true
	}
	return nil, false
}

// remember returns the entry of an event's call.
func (s *Spans) remember(e audit.Event) *call {
	if c := s.calls[e.Call]; c != nil {
		return c
	}
	for len(s.calls) >= maxCalls {
		delete(s.calls, s.begun[0])
		s.begun = s.begun[1:]
	}
	if len(s.begun) >= 2*maxCalls {
		s.begun = slices.DeleteFunc(s.begun, func(id string) bool { return s.calls[id] == nil })
	}
	c := &call{}
	s.calls[e.Call], s.begun = c, append(s.begun, e.Call)
	return c
}

// ofCall returns the span of a call that has ended, or was refused.
func (s *Spans) ofCall(e audit.Event) []sdk.ReadOnlySpan {
	c := s.calls[e.Call]
	if c == nil {
		c = &call{}
	} else if c.made == "" {
		delete(s.calls, e.Call) // what it has started may be denied something later; only its trace is needed then
	}
	one := s.child(e, "execute_tool "+e.Op)
	made := trace.Parse(e.Trace, e.TraceState)
	own := trace.Event(e, "") // a call that was refused before it had an id
	if e.Call != "" {
		own = trace.Of(e).Span
	}
	parent := trace.OfSession(e.Agent, e.Session)
	if made.String() != "" {
		if e.Chain == "" { // a client's: conventions, "Context propagation"
			one.Links = []sdk.Link{{SpanContext: contextOf(parent, false)}}
		}
		parent = made
	}
	s.place(&one, own, parent, made.String() != "")
	switch {
	case !c.asked.IsZero():
		one.StartTime = c.asked
	case e.Outcome == audit.OutcomeUnknown && !c.began.IsZero():
		one.StartTime = c.began
	}
	add(&one, semconv.GenAIOperationNameExecuteTool, semconv.GenAIToolName(e.Op), semconv.McpMethodNameToolsCall)
	if e.Call != "" {
		add(&one, semconv.GenAIToolCallID(e.Call))
	}
	switch e.Outcome {
	case "ok", "asked the user":
	default:
		text := e.Outcome
		if why := cmp.Or(e.Rule, e.Detail); why != "" {
			text += ": " + why
		}
		fail(&one, e.Outcome, text)
	}
	return append(s.waited(e, c), s.one(one)...) // a call that was refused has waited until then
}

// ofApproval returns the span of a wait for an approval.
func (s *Spans) ofApproval(e audit.Event) []sdk.ReadOnlySpan {
	switch {
	case e.Call == "": // the operator's decision, or of a connection
		return s.one(s.child(e, strings.TrimSpace("approval "+e.Outcome)))
	case e.Outcome == audit.OutcomeAsked:
		s.remember(e).asked = e.Time
	case s.calls[e.Call] != nil:
		return s.waited(e, s.calls[e.Call])
	}
	return nil
}

// waited returns the span of the wait of a call for an approval, until e.
func (s *Spans) waited(e audit.Event, c *call) []sdk.ReadOnlySpan {
	if c.asked.IsZero() || c.waited {
		return nil
	}
	c.waited = true
	one := s.child(e, "approval "+e.Op)
	one.StartTime = c.asked
	s.place(&one, trace.Event(e, "wait"), s.under(e), false)
	return s.one(one)
}

// ofNetwork returns the span of a connection or a request.
func (s *Spans) ofNetwork(e audit.Event) tracetest.SpanStub {
	one := s.child(e, cmp.Or(e.Op, e.Event))
	one.SpanKind = otel.SpanKindClient
	host := e.Target
	if method, address, ok := strings.Cut(e.Target, " "); ok {
		if u, err := url.Parse(address); err == nil {
			one.Name, host = method, u.Host
			add(&one, semconv.HTTPRequestMethodKey.String(method), semconv.URLFull(address))
			if u.Port() == "" {
				host += ":" + map[string]string{"http": "80", "https": "443"}[u.Scheme]
			}
		}
	}
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		if port, err := strconv.ParseUint(host[i+1:], 10, 16); err == nil {
			add(&one, semconv.ServerPort(int(port)))
			host = host[:i]
		}
	}
	if host != "" {
		add(&one, semconv.ServerAddress(strings.Trim(host, "[]")))
	}
	if e.Status != 0 {
		add(&one, semconv.HTTPResponseStatusCode(e.Status))
	}
	switch {
	case e.Verdict == audit.Deny, e.Verdict == audit.Violation:
		fail(&one, string(e.Verdict), string(e.Verdict)+": "+e.Rule)
	case e.Outcome == "failed":
		fail(&one, e.Outcome, e.Detail)
	case e.Status >= 400:
		fail(&one, strconv.Itoa(e.Status), "")
	}
	return one
}

// ofExec returns the span of a command of the operator's, of an MCP server, or of a runner: that is another agent at work.
func (s *Spans) ofExec(e audit.Event) tracetest.SpanStub {
	name := "exec"
	switch {
	case e.Server != "":
		name = "mcp_server " + e.Server
	case e.Chain != "":
		name = "invoke_agent " + e.Agent
	}
	one := s.child(e, name)
	if e.Server == "" && e.Chain != "" {
		add(&one, semconv.GenAIOperationNameInvokeAgent)
	}
	if e.Outcome != "exit 0" && e.Outcome != "ended with its sandbox" {
		fail(&one, "exit", e.Outcome)
	}
	return one
}

// ofSandbox returns the span of a session whose sandbox has ended. That of an MCP server is no session, and those of a task are
// parts of the call that waits for it.
func (s *Spans) ofSandbox(e audit.Event) []sdk.ReadOnlySpan {
	switch {
	case e.Server != "":
		return nil
	case e.Chain != "" || e.Trace != "":
		return s.one(s.child(e, "sandbox "+e.Agent))
	}
	key := keyOf(e)
	known := s.sessions[key]
	if known == nil {
		known = &session{first: e.Time}
	}
	known.ended = true
	if began := started(e); began.Before(known.first) {
		known.first = began
	}
	return s.one(s.ofSession(key, known))
}

func (s *Spans) ofSession(key sessionKey, known *session) tracetest.SpanStub {
	one := tracetest.SpanStub{Name: "invoke_agent " + key.agent, SpanKind: otel.SpanKindInternal, StartTime: known.first, EndTime: known.last}
	s.common(&one, key.agent, key.name)
	add(&one, semconv.GenAIOperationNameInvokeAgent)
	own := trace.OfSession(key.agent, key.name)
	one.SpanContext = contextOf(own, false)
	return one
}

// keyOf returns the session of an event. A sandbox belongs to the session of its client.
func keyOf(e audit.Event) sessionKey { return sessionKey{e.Agent, cmp.Or(e.Parent, e.Session)} }

// touch notes an event of a session. A session that works for a call of another agent has no span: the call has.
func (s *Spans) touch(e audit.Event) (done []sdk.ReadOnlySpan) {
	if e.Chain != "" || e.Event == audit.KindAgent {
		return nil
	}
	key := keyOf(e)
	known := s.sessions[key]
	if known == nil {
		if len(s.sessions) >= maxSessions {
			done = s.evict()
		}
		known = &session{first: started(e)}
		s.sessions[key] = known
	}
	known.last = e.Time
	return done
}

// silent returns the spans of sessions that have had no event for long.
func (s *Spans) silent(now time.Time) (done []sdk.ReadOnlySpan) {
	if now.Sub(s.swept) < time.Minute {
		return nil
	}
	s.swept = now
	for key, known := range s.sessions {
		if now.Sub(known.last) > silence {
			done = append(done, s.close(key)...)
		}
	}
	return done
}

// evict makes the spans of the half of the sessions that have been silent for longest.
func (s *Spans) evict() (done []sdk.ReadOnlySpan) {
	keys := slices.Collect(maps.Keys(s.sessions))
	slices.SortFunc(keys, func(x, y sessionKey) int {
		return cmp.Or(s.sessions[x].last.Compare(s.sessions[y].last), cmp.Compare(x.agent, y.agent), cmp.Compare(x.name, y.name))
	})
	for _, key := range keys[:len(keys)/2] {
		done = append(done, s.close(key)...)
	}
	return done
}

func (s *Spans) close(key sessionKey) (done []sdk.ReadOnlySpan) {
	if known := s.sessions[key]; !known.ended {
		done = s.one(s.ofSession(key, known))
	}
	delete(s.sessions, key)
	return done
}

// started returns when what ends with an event began.
func started(e audit.Event) time.Time {
	took := max(0, min(e.DurationUS, math.MaxInt64/int64(time.Microsecond)))
	return e.Time.Add(-time.Duration(took) * time.Microsecond)
}

// under returns the span that an event is a part of.
func (s *Spans) under(e audit.Event) trace.Context {
	if c := s.calls[e.Call]; e.Call != "" && c != nil && c.made != "" {
		e.Trace, e.TraceState = c.made, c.state
	}
	return trace.Of(e)
}

// child returns a span for what ends with an event, below its call or its session.
func (s *Spans) child(e audit.Event, name string) tracetest.SpanStub {
	one := tracetest.SpanStub{Name: name, SpanKind: otel.SpanKindInternal, StartTime: started(e), EndTime: e.Time}
	s.common(&one, e.Agent, e.Session)
	for _, field := range [...]struct{ name, value string }{
		{"parent", e.Parent}, {"chain", e.Chain}, {"server", e.Server}, {"op", e.Op}, {"path", e.Path},
		{"target", e.Target}, {"verdict", string(e.Verdict)},
		{"rule", e.Rule}, {"rule_kind", e.RuleKind}, {"outcome", e.Outcome}, {"errno", e.Errno}, {"program", e.Program}, {"detail", e.Detail},
	} {
		if field.value != "" {
			add(&one, attribute.String("scopefs."+field.name, field.value))
		}
	}
	for _, field := range [...]struct {
		name  string
		value int64
	}{{"seq", int64(e.Seq)}, {"bytes", e.Bytes}, {"sent_bytes", e.Sent}, {"unrecorded", e.Unrecorded}} {
		if field.value != 0 {
			add(&one, attribute.Int64("scopefs."+field.name, field.value))
		}
	}
	if e.Exit != nil {
		add(&one, semconv.ProcessExitCode(*e.Exit))
	}
	s.place(&one, trace.Event(e, ""), s.under(e), false)
	return one
}

// place puts a span below another one; remote: that of another program.
func (s *Spans) place(one *tracetest.SpanStub, own trace.Span, parent trace.Context, remote bool) {
	one.Parent = contextOf(parent, remote)
	parent.Span = own
	one.SpanContext = contextOf(parent, false)
}

// common sets what all spans of a session have.
func (s *Spans) common(one *tracetest.SpanStub, agent, session string) {
	of := []attribute.KeyValue{semconv.ServiceName("scopefs"), semconv.ServiceVersion(s.source.Version),
		semconv.HostName(s.source.Host), attribute.String("scopefs.agent", agent)}
	if s.source.Node != "" {
		of = append(of, semconv.ServiceInstanceID(s.source.Node))
	}
	one.Resource = resource.NewWithAttributes(semconv.SchemaURL, of...)
	one.InstrumentationScope = instrumentation.Scope{Name: "scopefs", Version: s.source.Version, SchemaURL: semconv.SchemaURL}
	add(one, semconv.GenAIAgentName(agent), semconv.McpSessionID(session))
}

func (s *Spans) one(stub tracetest.SpanStub) []sdk.ReadOnlySpan {
	return []sdk.ReadOnlySpan{stub.Snapshot()}
}

// contextOf returns a context as the SDK has it. All spans are sampled: the log has them all.
func contextOf(c trace.Context, remote bool) otel.SpanContext {
	state, _ := otel.ParseTraceState(c.State) // none, if the log has redacted it
	return otel.NewSpanContext(otel.SpanContextConfig{
		TraceID: otel.TraceID(c.ID), SpanID: otel.SpanID(c.Span), TraceFlags: otel.FlagsSampled, TraceState: state, Remote: remote,
	})
}

func add(one *tracetest.SpanStub, attributes ...attribute.KeyValue) {
	one.Attributes = append(one.Attributes, attributes...)
}

func fail(one *tracetest.SpanStub, kind, text string) {
	add(one, semconv.ErrorTypeKey.String(cmp.Or(kind, "_OTHER")))
	one.Status = sdk.Status{Code: codes.Error, Description: text}
}
