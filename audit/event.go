package audit

import (
	"crypto/rand"
	"encoding/base64"
	"slices"
	"strconv"
	"time"
)

// A Verdict is the decision about a request.
type Verdict string

// The verdicts. Violation is an attempt to leave the scope.
const (
	Allow     Verdict = "allow"
	Deny      Verdict = "deny"
	Violation Verdict = "violation"
)

// The kinds of event.
const (
	KindFile     = "file"
	KindAgent    = "agent"
	KindView     = "view"
	KindSandbox  = "sandbox"
	KindCall     = "call"     // a tool call; Op is the tool's name
	KindApproval = "approval" // the operator's decision about a call
	KindNetwork  = "network"  // a connection or a request of a sandbox; Op is connect or request
	KindHistory  = "history"  // an undo, a redo or a checkpoint, or what a history gave up
	KindDaemon   = "daemon"
	KindAudit    = "audit"
)

// The outcomes of events of [KindAudit], which the log records about itself.
const (
	OutcomeTorn       = "torn"          // the end was damaged; the log moved it to a file beside the segment
	OutcomeRecovered  = "recovered"     // the log works again; the detail counts the events refused meanwhile
	OutcomeLost       = "lost"          // another program removed, renamed, replaced or truncated segments
	OutcomeLow        = "low space"     // the disk is nearly full
	OutcomeRemoved    = "removed"       // the log removed segments: too old, or the log was too large
	OutcomeKept       = "kept"          // the log could not compress or remove segments
	OutcomeAnchored   = "anchored"      // a signed head is kept elsewhere; recorded by the daemon
	OutcomeLate       = "anchor late"   // no head was kept elsewhere for some time; likewise
	OutcomeStreamLate = "stream late"   // the receiver of a stream lacks events that have waited for long; recorded by the daemon
	OutcomeStreamBack = "stream back"   // it has them; likewise
	OutcomeStreamGap  = "stream gap"    // events that the receiver will not get; likewise
	OutcomeUnclean    = "unclean start" // the kernel stopped while the log was open: the latest events may be missing
)

// The outcomes of events of [KindCall] and [KindNetwork].
const (
	OutcomeBegin   = "begin"   // the call runs; another event follows
	OutcomeUnknown = "unknown" // the log was closed before the call's end was recorded
)

// OpCall is the operation of an event of [KindSandbox] that starts the sandbox of scopefs call: a client that is one
// command.
const OpCall = "call"

// Event is one line of the log. Fields with the zero value are omitted.
//
// Strings of an event from [Read] are escaped, as in the log. [Unescape] returns the original strings.
type Event struct {
	Seq        uint64    `json:"seq"`  // set by Append
	Time       time.Time `json:"time"` // set by Append: when the log wrote the line, in UTC
	Event      string    `json:"event"`
	Agent      string    `json:"agent,omitempty"`
	Session    string    `json:"session,omitempty"`
	Call       string    `json:"call,omitempty"`
	Parent     string    `json:"parent,omitempty"`
	Chain      string    `json:"chain,omitempty"`  // the agents from the first caller to this agent: a>b>c
	Server     string    `json:"server,omitempty"` // the MCP server that a sandbox or a connection is of
	Op         string    `json:"op,omitempty"`
	Path       string    `json:"path,omitempty"`
	Target     string    `json:"target,omitempty"`
	Verdict    Verdict   `json:"verdict,omitempty"`
	Rule       string    `json:"rule,omitempty"`      // the rule's text; programs use RuleKind
	RuleKind   string    `json:"rule_kind,omitempty"` // a scope.Kind
	Outcome    string    `json:"outcome,omitempty"`
	Errno      string    `json:"errno,omitempty"` // the name, such as EACCES
	PID        int       `json:"pid,omitempty"`
	Program    string    `json:"program,omitempty"` // the process's name, which the process chooses: proc_pid_comm(5)
	UID        *uint32   `json:"uid,omitempty"`     // a pointer, because 0 is a valid user id
	Exit       *int      `json:"exit,omitempty"`    // a command's exit status, 128+N after signal N; 0 is a valid one
	Status     int       `json:"status,omitempty"`  // of an HTTP response
	Bytes      int64     `json:"bytes,omitempty"`
	Sent       int64     `json:"sent_bytes,omitempty"`  // to a host; Bytes are those from it
	DurationUS int64     `json:"duration_us,omitempty"` // microseconds
	Instance   string    `json:"instance,omitempty"`    // of a call with a context
	Context    []Scope   `json:"context,omitempty"`     // what a call sees of its client's context
	Decided    time.Time `json:"decided,omitzero"`      // of an allowed file operation that waited in a spool: when the view decided; see AppendAll
	Trace      string    `json:"trace,omitempty"`       // the span that a call was made in, a traceparent: its client's, or that of another agent's call; see audit/trace
	TraceState string    `json:"trace_state,omitempty"` // the tracestate of a client's Trace
	Unrecorded int64     `json:"unrecorded,omitempty"`  // equal denials since the last record of one, which the log left out
	Detail     string    `json:"detail,omitempty"`      // short text for people

	Raw []byte `json:"-"` // the line without its newline; set by Read, ignored by Append
}

// Scope is what the log has of one scope of a call's context. It has no content.
type Scope struct {
	Name     string `json:"scope"`
	Messages int    `json:"messages"`
	Bytes    int    `json:"bytes"`
	Hash     string `json:"hash"` // of the JSON array of the messages: sha256:HEX
}

// maxScopes is how many scopes of an event the log keeps. A call has fewer.
const maxScopes = 64

// The limits of a string in the log, in bytes after escaping.
const (
	maxPath  = 4096
	maxText  = 256
	maxState = 512
)

// clean returns e with its strings redacted, escaped and bounded.
func clean(e Event) Event {
	e.Path = bound(e.Path, maxPath)
	// Redact before truncating: a pattern does not match half a secret. The target of a file event is a path, which
	// is evidence and is not redacted.
	if e.Event != KindFile {
		e.Target = redact(e.Target)
	}
	e.Target = bound(e.Target, maxPath)
	e.Detail = bound(redact(e.Detail), maxText)
	e.Verdict = Verdict(bound(string(e.Verdict), maxText))
	for _, s := range []*string{
		&e.Event, &e.Agent, &e.Session, &e.Call, &e.Parent, &e.Chain, &e.Server, &e.Op, &e.Rule, &e.RuleKind, &e.Outcome, &e.Errno, &e.Program, &e.Instance, &e.Trace,
	} {
		*s = bound(*s, maxText)
	}
	e.TraceState = bound(redact(e.TraceState), maxState)
	e.Context = slices.Clone(e.Context[:min(len(e.Context), maxScopes)])
	for i := range e.Context {
		e.Context[i].Name, e.Context[i].Hash = bound(e.Context[i].Name, maxText), bound(e.Context[i].Hash, maxText)
	}
	return e
}

// appendBody appends the line of a clean event from its kind on. appendHead writes the beginning.
func appendBody(b []byte, e Event) []byte {
	b = appendString(append(b, `"event":`...), e.Event)
	for _, f := range [...]struct{ key, value string }{
		{`,"agent":`, e.Agent}, {`,"session":`, e.Session}, {`,"call":`, e.Call}, {`,"parent":`, e.Parent}, {`,"chain":`, e.Chain}, {`,"server":`, e.Server},
		{`,"op":`, e.Op}, {`,"path":`, e.Path}, {`,"target":`, e.Target}, {`,"verdict":`, string(e.Verdict)},
		{`,"rule":`, e.Rule}, {`,"rule_kind":`, e.RuleKind}, {`,"outcome":`, e.Outcome}, {`,"errno":`, e.Errno},
	} {
		if f.value != "" {
			b = appendString(append(b, f.key...), f.value)
		}
	}
	b = appendInt(b, `,"pid":`, int64(e.PID))
	if e.UID != nil {
		b = strconv.AppendUint(append(b, `,"uid":`...), uint64(*e.UID), 10)
	}
	if e.Program != "" {
		b = appendString(append(b, `,"program":`...), e.Program)
	}
	if e.Exit != nil {
		b = strconv.AppendInt(append(b, `,"exit":`...), int64(*e.Exit), 10)
	}
	b = appendInt(b, `,"status":`, int64(e.Status))
	b = appendInt(b, `,"bytes":`, e.Bytes)
	b = appendInt(b, `,"sent_bytes":`, e.Sent)
	b = appendInt(b, `,"duration_us":`, e.DurationUS)
	if e.Instance != "" {
		b = appendString(append(b, `,"instance":`...), e.Instance)
	}
	if len(e.Context) > 0 {
		b = appendContext(append(b, `,"context":`...), e.Context)
	}
	if !e.Decided.IsZero() {
		b = append(e.Decided.UTC().AppendFormat(append(b, `,"decided":"`...), time.RFC3339Nano), '"')
	}
	if e.Trace != "" {
		b = appendString(append(b, `,"trace":`...), e.Trace)
	}
	if e.TraceState != "" {
		b = appendString(append(b, `,"trace_state":`...), e.TraceState)
	}
	b = appendInt(b, `,"unrecorded":`, e.Unrecorded)
	if e.Detail != "" {
		b = appendString(append(b, `,"detail":`...), e.Detail)
	}
	return append(b, "}\n"...)
}

// appendContext appends the JSON of scopes. A number is there, zero or not.
func appendContext(b []byte, scopes []Scope) []byte {
	for i, s := range scopes {
		b = append(b, "[,"[min(i, 1)])
		b = appendString(append(b, `{"scope":`...), s.Name)
		b = strconv.AppendInt(append(b, `,"messages":`...), int64(s.Messages), 10)
		b = strconv.AppendInt(append(b, `,"bytes":`...), int64(s.Bytes), 10)
		b = append(appendString(append(b, `,"hash":`...), s.Hash), '}')
	}
	return append(b, ']')
}

// appendHead appends the beginning of a line: its sequence number, its time, and a salt of 96 random bits. With the
// salt, neither the hash of a line in the proof of another one tells what the line says, nor a commitment what a redacted
// value is: tree.Leaf.
func appendHead(b []byte, seq uint64, now time.Time) []byte {
	var salt [12]byte
	_, _ = rand.Read(salt[:]) // never fails
	b = strconv.AppendUint(append(b, `{"seq":`...), seq, 10)
	b = now.AppendFormat(append(b, `,"time":"`...), time.RFC3339Nano)
	b = base64.RawURLEncoding.AppendEncode(append(b, `","salt":"`...), salt[:])
	return append(b, `",`...)
}

func appendInt(b []byte, key string, n int64) []byte {
	if n == 0 {
		return b
	}
	return strconv.AppendInt(append(b, key...), n, 10)
}

// appendString appends an escaped string as JSON. An escaped string has no control characters, so only the quote and
// the backslash need escaping (RFC 8259, section 7).
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}
