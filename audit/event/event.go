// Package event has what one line of the log says. A process that only makes events links this package, and neither what writes the log
// nor what reads and proves it: package audit.
package event

import "time"

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
	KindNetwork  = "network"  // a connection or a request of a sandbox; Op is connect, request, publish or host-port
	KindKey      = "key"      // a use of an SSH key of the user's; Op is login or sign
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
	OutcomeForeign    = "foreign lines" // another program appended lines while the log was closed
	OutcomeUnclean    = "unclean start" // the kernel stopped while the log was open: the latest events may be missing
)

// The outcomes of events of [KindCall] and [KindNetwork].
const (
	OutcomeBegin   = "begin"   // the call runs; another event follows
	OutcomeUnknown = "unknown" // the log was closed before the call's end was recorded
)

// The outcomes of events of [KindApproval] that an agent's requests cause. The others are decisions.
const (
	OutcomeAsked = "asked" // the operator is asked
	OutcomeUsed  = "used"  // what the operator has decided holds for this request
)

// The outcomes of events of [KindAgent] that an agent causes.
const (
	OutcomeDelegated = "delegated to"       // it does a task for another agent
	OutcomeBudget    = "log budget used up" // its calls and denials are slowed down
)

// Event is one line of the log. Fields with the zero value are omitted.
//
// Strings of an event of audit.Read are escaped, as in the log. [Unescape] returns the original strings.
type Event struct {
	Seq      uint64    `json:"seq"`  // set by Append
	Time     time.Time `json:"time"` // set by Append: when the log wrote the line, in UTC
	Event    string    `json:"event"`
	Agent    string    `json:"agent,omitempty"`
	Session  string    `json:"session,omitempty"`
	Call     string    `json:"call,omitempty"`
	Parent   string    `json:"parent,omitempty"`
	Chain    string    `json:"chain,omitempty"`  // the agents from the first caller to this agent: a>b>c
	Server   string    `json:"server,omitempty"` // the MCP server that a sandbox or a connection is of
	Op       string    `json:"op,omitempty"`
	Path     string    `json:"path,omitempty"`
	Target   string    `json:"target,omitempty"`
	Verdict  Verdict   `json:"verdict,omitempty"`
	Rule     string    `json:"rule,omitempty"`      // the rule's text; programs use RuleKind
	RuleKind string    `json:"rule_kind,omitempty"` // a scope.Kind
	Outcome  string    `json:"outcome,omitempty"`
	Errno    string    `json:"errno,omitempty"` // the name, such as EACCES
	PID      int       `json:"pid,omitempty"`
	Program  string    `json:"program,omitempty"` // the process's name, which the process chooses: proc_pid_comm(5)
	UID      *uint32   `json:"uid,omitempty"`     // a pointer, because 0 is a valid user id
	Exit     *int      `json:"exit,omitempty"`    // a command's exit status, 128+N after signal N; 0 is a valid one
	// how many files a call changed, as far as the view sees; a pointer, because 0 says that it changed none
	Changed    *int    `json:"changed,omitempty"`
	Effects    string  `json:"effects,omitempty"` // what a call or a command changed, for people: numbers and the first names
	Status     int     `json:"status,omitempty"`  // of an HTTP response
	Bytes      int64   `json:"bytes,omitempty"`
	Sent       int64   `json:"sent_bytes,omitempty"`  // to a host; Bytes are those from it
	DurationUS int64   `json:"duration_us,omitempty"` // microseconds
	Instance   string  `json:"instance,omitempty"`    // of a call with a context
	Context    []Scope `json:"context,omitempty"`     // what a call sees of its client's context
	// of an allowed file operation that waited in a spool: when the view decided; see AppendAll
	Decided time.Time `json:"decided,omitzero"`
	// the span that a call was made in, a traceparent: its client's, or that of another agent's call; see audit/trace
	Trace      string `json:"trace,omitempty"`
	TraceState string `json:"trace_state,omitempty"` // the tracestate of a client's Trace
	Unrecorded int64  `json:"unrecorded,omitempty"`  // equal denials since the last record of one, which the log left out
	Detail     string `json:"detail,omitempty"`      // short text for people

	Raw []byte `json:"-"` // the line without its newline; set by Read, ignored by Append
}

// Scope is what the log has of one scope of a call's context. It has no content.
type Scope struct {
	Name     string `json:"scope"`
	Messages int    `json:"messages"`
	Bytes    int    `json:"bytes"`
	Hash     string `json:"hash"` // of the JSON array of the messages: sha256:HEX
}
