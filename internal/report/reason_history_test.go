package report

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/audit"
)

// TestDidHeld: what happens to held changes is a sentence.
func TestDidHeld(t *testing.T) {
	e := audit.Event{Event: audit.KindHistory, Op: "fork", Outcome: "done", Session: "c1", Target: "task task-x", Chain: "a>b"}
	assert.Equal(t, "made a branch for changes of task task-x (a>b), for session c1: done", historyText(e))
	e.Op, e.Call, e.Detail = "commit", "k", "2 steps"
	assert.Equal(t, "took over held changes of task task-x (a>b), for session c1, call k: done, 2 steps", historyText(e))
	e = audit.Event{Event: audit.KindHistory, Op: "discard", Outcome: "done", Target: "src/**"}
	assert.Equal(t, "dropped held changes of src/**: done", historyText(e))
}
