// Package trace has the ids of OpenTelemetry's traces and spans, which follow from events of the log, and reads and writes
// W3C trace contexts. A daemon and an exporter of the log agree on the ids without a word.
package trace

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/scopefs/scopefs/audit"
)

// ID is the id of a trace. The zero value is none.
type ID [16]byte

// Span is the id of a span. The zero value is none.
type Span [8]byte

// Context is a span in a trace, as one program names it to the next one: www.w3.org/TR/trace-context. The zero value is
// none.
type Context struct {
	ID      ID
	Span    Span
	Sampled bool
	State   string // tracestate, valid
}

const (
	parentKey = "traceparent"
	stateKey  = "tracestate"
)

// MaxState is how many bytes of a tracestate Parse accepts: what section 3.3.1.5 of W3C Trace Context wants at least.
const MaxState = 512

// The grammar of W3C Trace Context, sections 3.2.2 and 3.3.1.
var (
	parentForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})\z`) })
	memberForm = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(
			`\A([a-z][-a-z0-9_*/]{0,255}|[a-z0-9][-a-z0-9_*/]{0,240}@[a-z][-a-z0-9_*/]{0,13})=[ -+\--<>-~]{0,255}[!-+\--<>-~]\z`)
	})
)

const maxMembers = 32 // of a tracestate: section 3.3.1.1

// Parse reads a traceparent of version 00, and the tracestate that goes with it. It returns the zero Context for any other
// text, and leaves out a tracestate that is invalid or too long. It keeps no flag but sampled.
func Parse(parent, state string) Context {
	m := parentForm().FindStringSubmatch(parent)
	if m == nil {
		return Context{}
	}
	var c Context
	_, err1 := hex.Decode(c.ID[:], []byte(m[1]))
	_, err2 := hex.Decode(c.Span[:], []byte(m[2]))
	flags, err3 := strconv.ParseUint(m[3], 16, 8)
	if err1 != nil || err2 != nil || err3 != nil || c.ID == (ID{}) || c.Span == (Span{}) {
		return Context{}
	}
	c.Sampled, c.State = flags&1 != 0, members(state)
	return c
}

// members returns a tracestate without blanks between its members; "" if it is invalid.
func members(state string) string {
	if len(state) > MaxState {
		return ""
	}
	var keys, all []string
	for member := range strings.SplitSeq(state, ",") {
		if member = strings.Trim(member, " \t"); member == "" {
			continue
		}
		m := memberForm().FindStringSubmatch(member)
		if m == nil || slices.Contains(keys, m[1]) || len(all) == maxMembers {
			return ""
		}
		keys, all = append(keys, m[1]), append(all, member)
	}
	return strings.Join(all, ",")
}

// String returns the traceparent; "" for the zero Context.
func (c Context) String() string {
	if c.ID == (ID{}) {
		return ""
	}
	flags := 0
	if c.Sampled {
		flags = 1
	}
	return fmt.Sprintf("00-%x-%x-%02x", c.ID, c.Span, flags)
}

// Meta returns the Context as _meta of MCP (SEP-414).
func (c Context) Meta() map[string]any {
	meta := map[string]any{}
	if parent := c.String(); parent != "" {
		meta[parentKey] = parent
	}
	if c.State != "" {
		meta[stateKey] = c.State
	}
	return meta
}

// OfMeta returns the Context that _meta of MCP has; the zero Context: none.
func OfMeta(meta map[string]any) Context {
	parent, _ := meta[parentKey].(string)
	state, _ := meta[stateKey].(string)
	return Parse(parent, state)
}

// Environ returns the variable by which a program starts in the context: opentelemetry.io/docs/specs/otel/context/env-carriers.
// It leaves out the State.
func (c Context) Environ() map[string]string {
	if c.ID == (ID{}) {
		return nil
	}
	return map[string]string{"TRACEPARENT": c.String()}
}

// Call returns the context of a call's own span. The call belongs to the trace in which it was made, and without one to that
// of its session.
func Call(agent, session, call string, made Context) Context {
	if made.ID == (ID{}) {
		made = OfSession(agent, session)
	}
	made.Span = Span(sum(call)[:8])
	return made
}

// OfSession returns the context of a session's own span.
func OfSession(agent, session string) Context {
	if session == "" {
		return Context{}
	}
	return Context{ID: ID(sum(agent, session)[:16]), Span: Span(sum("session", agent, session)[:8]), Sampled: true}
}

// Of returns the context of the span that an event is a part of: its call's, or else its session's. A sandbox belongs to the
// session of the client that it works for. The zero Context: none.
func Of(e audit.Event) Context {
	session := e.Session
	if e.Parent != "" {
		session = e.Parent
	}
	made := Parse(e.Trace, e.TraceState)
	switch {
	case e.Call != "":
		return Call(e.Agent, session, e.Call, made)
	case made.ID != (ID{}):
		return made
	}
	return OfSession(e.Agent, session)
}

// Event returns the id of a span of one event alone. An event may have several of them, with names.
func Event(e audit.Event, name string) Span {
	return Span(sum("event", e.Agent, e.Session, strconv.FormatUint(e.Seq, 10), name)[:8])
}

// sum returns the SHA-256 of words.
func sum(words ...string) []byte {
	h := sha256.New()
	for _, word := range words {
		h.Write([]byte(word + "\x00"))
	}
	return h.Sum(nil)
}
