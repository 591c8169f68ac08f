package audit

import (
	"crypto/rand"
	"encoding/base64"
	"slices"
	"strconv"
	"time"

	"github.com/scopefs/scopefs/audit/event"
)

// The content of a line: see package event.

type (
	// Event is [event.Event].
	Event = event.Event
	// Verdict is [event.Verdict].
	Verdict = event.Verdict
	// Scope is [event.Scope].
	Scope = event.Scope
)

// The verdicts.
const (
	Allow     = event.Allow
	Deny      = event.Deny
	Violation = event.Violation
)

// The kinds of event.
const (
	KindFile     = event.KindFile
	KindAgent    = event.KindAgent
	KindView     = event.KindView
	KindSandbox  = event.KindSandbox
	KindCall     = event.KindCall
	KindApproval = event.KindApproval
	KindNetwork  = event.KindNetwork
	KindKey      = event.KindKey
	KindHistory  = event.KindHistory
	KindDaemon   = event.KindDaemon
	KindAudit    = event.KindAudit
)

// The outcomes of events: see package event.
const (
	OutcomeTorn       = event.OutcomeTorn
	OutcomeRecovered  = event.OutcomeRecovered
	OutcomeLost       = event.OutcomeLost
	OutcomeLow        = event.OutcomeLow
	OutcomeRemoved    = event.OutcomeRemoved
	OutcomeKept       = event.OutcomeKept
	OutcomeAnchored   = event.OutcomeAnchored
	OutcomeLate       = event.OutcomeLate
	OutcomeStreamLate = event.OutcomeStreamLate
	OutcomeStreamBack = event.OutcomeStreamBack
	OutcomeStreamGap  = event.OutcomeStreamGap
	OutcomeForeign    = event.OutcomeForeign
	OutcomeUnclean    = event.OutcomeUnclean
	OutcomeBegin      = event.OutcomeBegin
	OutcomeUnknown    = event.OutcomeUnknown
	OutcomeAsked      = event.OutcomeAsked
	OutcomeUsed       = event.OutcomeUsed
	OutcomeDelegated  = event.OutcomeDelegated
	OutcomeBudget     = event.OutcomeBudget
)

// OpCall is the operation of an event of [KindSandbox] that starts the sandbox of scopefs call: a client that is one
// command.
const OpCall = "call"

// OpKill is the operation of an event of [KindSandbox] for a session that the operator has ended.
const OpKill = "kill"

// Escape is [event.Escape].
func Escape(s string) string { return event.Escape(s) }

// Unescape is [event.Unescape].
func Unescape(s string) (string, error) { return event.Unescape(s) }

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
	// Redact before truncating: a pattern does not match half a secret. The target of a file event is a path, which
	// is evidence and is not redacted. So is that of a request, but its components may be secrets.
	switch e.Event {
	case KindFile:
	case KindNetwork:
		e.Target = redactEach(e.Target)
	default:
		e.Target = redact(e.Target)
	}
	e.Detail, e.Effects, e.TraceState = redact(e.Detail), redact(e.Effects), redact(e.TraceState)
	e.Context = slices.Clone(e.Context[:min(len(e.Context), maxScopes)])
	eachText(&e, func(text *string, most int) { *text = event.Bound(*text, most) })
	return e
}

// eachText calls do with each string of an event, and the bytes that it has in the log at most.
func eachText(e *Event, do func(text *string, most int)) {
	do(&e.Path, maxPath)
	do(&e.Target, maxPath)
	do((*string)(&e.Verdict), maxText)
	for _, text := range [...]*string{
		&e.Event, &e.Agent, &e.Session, &e.Call, &e.Parent, &e.Chain, &e.Server, &e.Op, &e.Rule, &e.RuleKind,
		&e.Outcome, &e.Errno, &e.Program, &e.Instance, &e.Trace, &e.Detail, &e.Effects,
	} {
		do(text, maxText)
	}
	do(&e.TraceState, maxState)
	for i := range e.Context {
		do(&e.Context[i].Name, maxText)
		do(&e.Context[i].Hash, maxText)
	}
}

// appendBody appends the line of a clean event from its kind on. appendHead writes the beginning.
func appendBody(b []byte, e Event) []byte {
	b = event.AppendString(append(b, `"event":`...), e.Event)
	for _, f := range [...]struct{ key, value string }{
		{`,"agent":`, e.Agent}, {`,"session":`, e.Session}, {`,"call":`, e.Call}, {`,"parent":`, e.Parent},
		{`,"chain":`, e.Chain}, {`,"server":`, e.Server},
		{`,"op":`, e.Op}, {`,"path":`, e.Path}, {`,"target":`, e.Target}, {`,"verdict":`, string(e.Verdict)},
		{`,"rule":`, e.Rule}, {`,"rule_kind":`, e.RuleKind}, {`,"outcome":`, e.Outcome}, {`,"errno":`, e.Errno}, {`,"effects":`, e.Effects},
	} {
		if f.value != "" {
			b = event.AppendString(append(b, f.key...), f.value)
		}
	}
	b = appendInt(b, `,"pid":`, int64(e.PID))
	if e.UID != nil {
		b = strconv.AppendUint(append(b, `,"uid":`...), uint64(*e.UID), 10)
	}
	if e.Program != "" {
		b = event.AppendString(append(b, `,"program":`...), e.Program)
	}
	if e.Exit != nil {
		b = strconv.AppendInt(append(b, `,"exit":`...), int64(*e.Exit), 10)
	}
	if e.Changed != nil {
		b = strconv.AppendInt(append(b, `,"changed":`...), int64(*e.Changed), 10)
	}
	b = appendInt(b, `,"status":`, int64(e.Status))
	b = appendInt(b, `,"bytes":`, e.Bytes)
	b = appendInt(b, `,"sent_bytes":`, e.Sent)
	b = appendInt(b, `,"duration_us":`, e.DurationUS)
	if e.Instance != "" {
		b = event.AppendString(append(b, `,"instance":`...), e.Instance)
	}
	if len(e.Context) > 0 {
		b = appendContext(append(b, `,"context":`...), e.Context)
	}
	if !e.Decided.IsZero() {
		b = append(e.Decided.UTC().AppendFormat(append(b, `,"decided":"`...), time.RFC3339Nano), '"')
	}
	if e.Trace != "" {
		b = event.AppendString(append(b, `,"trace":`...), e.Trace)
	}
	if e.TraceState != "" {
		b = event.AppendString(append(b, `,"trace_state":`...), e.TraceState)
	}
	b = appendInt(b, `,"unrecorded":`, e.Unrecorded)
	if e.Detail != "" {
		b = event.AppendString(append(b, `,"detail":`...), e.Detail)
	}
	return append(b, "}\n"...)
}

// appendContext appends the JSON of scopes. A number is there, zero or not.
func appendContext(b []byte, scopes []Scope) []byte {
	for i, s := range scopes {
		b = append(b, "[,"[min(i, 1)])
		b = event.AppendString(append(b, `{"scope":`...), s.Name)
		b = strconv.AppendInt(append(b, `,"messages":`...), int64(s.Messages), 10)
		b = strconv.AppendInt(append(b, `,"bytes":`...), int64(s.Bytes), 10)
		b = append(event.AppendString(append(b, `,"hash":`...), s.Hash), '}')
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
