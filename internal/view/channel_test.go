package view

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/view/wire"
)

// TestEventForged: an event of a view that an agent has taken over has the fields of a file operation alone. What names
// another agent, its server, or what it does, is the daemon's.
func TestEventForged(t *testing.T) {
	uid, exit := uint32(7), 3
	e := eventOf(wire.FromView{Path: []byte("p"), Target: []byte("t"), Event: &audit.Event{
		Seq: 9, Time: time.Now(), Event: audit.KindCall, Agent: "other", Session: "s", Call: "c", Parent: "p", Chain: "other>a", Server: "bank",
		Op: "open", Path: "x", Target: "x", Verdict: audit.Deny, Rule: "r", RuleKind: "k", Outcome: "ok", Errno: "EACCES",
		PID: 5, Program: "x", UID: &uid, Exit: &exit, Status: 200, Bytes: 1 << 40, Sent: 1 << 40, DurationUS: 1 << 40, Instance: "i",
		Context: []audit.Scope{{Name: "input"}}, Decided: time.Now(), Trace: "00-1-1-01", TraceState: "x=y", Unrecorded: 1 << 60, Detail: "approved",
	}}, "a")
	assert.Equal(t, audit.Event{
		Event: audit.KindFile, Agent: "a", Op: "open", Path: "p", Target: "t", Verdict: audit.Deny, Rule: "r", RuleKind: "k", Errno: "EACCES", PID: 5, UID: &uid,
	}, e)
}
