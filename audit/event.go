package audit

import (
	"strconv"
	"time"
)

// A Verdict is what was decided.
type Verdict string

// The verdicts. A violation is an attempt to leave the scope.
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
	KindCall     = "call"     // of a tool: Op is its name
	KindApproval = "approval" // of a call, by the operator
	KindDaemon   = "daemon"
	KindAudit    = "audit"
)

// What the log says about itself, in the outcome of an event of [KindAudit].
const (
	OutcomeTorn      = "torn"          // the end was damaged, and was set aside in a file beside the segment
	OutcomeRecovered = "recovered"     // the log works again; the detail counts the events refused meanwhile
	OutcomeLost      = "lost"          // segments were removed, renamed, replaced or truncated by others
	OutcomeLow       = "low space"     // little room is left on the disk
	OutcomeRemoved   = "removed"       // segments were removed: too old, or the log too large
	OutcomeKept      = "kept"          // segments could not be compressed or removed
	OutcomeUnclean   = "unclean start" // the kernel stopped while the log was open: the latest events may be missing
)

// Outcomes of events of [KindCall].
const (
	OutcomeBegin   = "begin"   // the call runs; another event follows
	OutcomeUnknown = "unknown" // the log was closed before the call's end was recorded
)

// Event is one line of the log. Of a field that is zero nothing is written.
//
// In an event that was read, strings are as they stand in the log; [Unescape] gives what they were.
type Event struct {
	Seq        uint64    `json:"seq"`  // set by Append
	Time       time.Time `json:"time"` // set by Append: when the line was written, UTC
	Event      string    `json:"event"`
	Agent      string    `json:"agent,omitempty"`
	Session    string    `json:"session,omitempty"`
	Call       string    `json:"call,omitempty"`
	Parent     string    `json:"parent,omitempty"`
	Chain      string    `json:"chain,omitempty"` // of agents, from the first that delegated to this one: a>b>c
	Op         string    `json:"op,omitempty"`
	Path       string    `json:"path,omitempty"`
	Target     string    `json:"target,omitempty"`
	Verdict    Verdict   `json:"verdict,omitempty"`
	Rule       string    `json:"rule,omitempty"`      // for people
	RuleKind   string    `json:"rule_kind,omitempty"` // the sort of rule: a scope.Kind
	Outcome    string    `json:"outcome,omitempty"`
	Errno      string    `json:"errno,omitempty"` // by name, such as EACCES
	PID        int       `json:"pid,omitempty"`
	UID        *uint32   `json:"uid,omitempty"` // a pointer, because 0 is a user
	Bytes      int64     `json:"bytes,omitempty"`
	DurationUS int64     `json:"duration_us,omitempty"` // microseconds
	Detail     string    `json:"detail,omitempty"`      // short free text

	Raw []byte `json:"-"` // the line as read, without its newline; ignored by Append
}

// The bounds of a string in the log, in bytes after escaping.
const (
	maxPath = 4096
	maxText = 256
)

// clean returns e as the log may hold it: redacted, escaped, bounded.
func clean(e Event) Event {
	e.Path = bound(e.Path, maxPath)
	// Redacted before it is cut: half a secret matches no pattern.
	// Of a file's event the target is a path, and proof.
	if e.Event != KindFile {
		e.Target = redact(e.Target)
	}
	e.Target = bound(e.Target, maxPath)
	e.Detail = bound(redact(e.Detail), maxText)
	e.Verdict = Verdict(bound(string(e.Verdict), maxText))
	for _, s := range []*string{
		&e.Event, &e.Agent, &e.Session, &e.Call, &e.Parent, &e.Chain, &e.Op, &e.Rule, &e.RuleKind, &e.Outcome, &e.Errno,
	} {
		*s = bound(*s, maxText)
	}
	return e
}

// appendBody appends the line of a clean event from its kind on. What stands before, the writer knows: appendHead.
func appendBody(b []byte, e Event) []byte {
	b = appendString(append(b, `"event":`...), e.Event)
	for _, f := range [...]struct{ key, value string }{
		{`,"agent":`, e.Agent}, {`,"session":`, e.Session}, {`,"call":`, e.Call}, {`,"parent":`, e.Parent}, {`,"chain":`, e.Chain},
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
	b = appendInt(b, `,"bytes":`, e.Bytes)
	b = appendInt(b, `,"duration_us":`, e.DurationUS)
	if e.Detail != "" {
		b = appendString(append(b, `,"detail":`...), e.Detail)
	}
	return append(b, "}\n"...)
}

// appendHead appends the beginning of a line, up to its body.
func appendHead(b []byte, seq uint64, now time.Time) []byte {
	b = strconv.AppendUint(append(b, `{"seq":`...), seq, 10)
	b = now.AppendFormat(append(b, `,"time":"`...), time.RFC3339Nano)
	return append(b, `",`...)
}

func appendInt(b []byte, key string, n int64) []byte {
	if n == 0 {
		return b
	}
	return strconv.AppendInt(append(b, key...), n, 10)
}

// appendString appends an escaped string as JSON: there is no control character left in it, so that only the quote and
// the backslash need care (RFC 8259, section 7).
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
