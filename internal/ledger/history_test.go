package ledger

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
)

// TestEventOf: what changes something is an event that says which changes were meant; the pages of a list are none.
func TestEventOf(t *testing.T) {
	name := "green"
	sel := func(s history.Selection) query.Request { return query.Request{Undo: &s} }
	of := func(op, path, target string) *audit.Event {
		return &audit.Event{Event: audit.KindHistory, Op: op, Path: path, Target: target}
	}
	for what, c := range map[string]struct {
		request query.Request
		want    *audit.Event
	}{
		"checkpoint":  {query.Request{Checkpoint: &name}, of("checkpoint", "", "green")},
		"calls":       {sel(history.Selection{Calls: []string{"x", "y"}}), of("undo", "", "call x y")},
		"session":     {sel(history.Selection{Session: "s"}), of("undo", "", "session s")},
		"since":       {sel(history.Selection{Since: time.Unix(1, 0)}), of("undo", "", "since 1970-01-01T00:00:01Z")},
		"state":       {sel(history.Selection{Checkpoint: "green"}), of("undo", "", "since checkpoint green")},
		"generations": {sel(history.Selection{Generations: []string{"1f"}}), of("undo", "", "generation 1f")},
		"path":        {sel(history.Selection{Paths: []string{`n\xff`}}), of("undo", "n\xff", "the last session")},
		"redo":        {sel(history.Selection{Undo: true}), of("redo", "", "")},
		"redo of one": {sel(history.Selection{Undo: true, Generations: []string{"1f"}}), of("redo", "", "1f")},
		"page":        {query.Request{Undo: &history.Selection{}, Offset: 3}, nil},
		"plan":        {query.Request{Plan: &history.Selection{}}, nil},
		"cancel":      {query.Request{Cancel: true}, nil},
	} {
		e, changes := HistoryEvent(&c.request)
		assert.Equal(t, c.want != nil, changes, what)
		if c.want != nil {
			assert.Equal(t, *c.want, e, what)
		}
	}
}

// TestOutcomeOf: a view may answer anything.
func TestOutcomeOf(t *testing.T) {
	for answer, want := range map[string][2]string{
		`{"checkpoint":"1f"}`:                            {"done", "1f"},
		`{"result":{"done":3},"conflicts":1,"unkept":2}`: {"done", "3 steps, 1 conflicts, 2 not kept"},
		`{"result":{"done":3,"rolled_back":true}}`:       {"rolled back", "3 steps, 0 conflicts, 0 not kept"},
		`{}`:             {"failed", "the view's answer has no result"},
		`null`:           {"failed", "the view's answer has no result"},
		`{"result":"x"}`: {"failed", ""},
	} {
		outcome, detail := HistoryOutcome(json.RawMessage(answer))
		assert.Equal(t, want[0], outcome, answer)
		if want[1] != "" {
			assert.Equal(t, want[1], detail, answer)
		}
	}
	require.NotPanics(t, func() { HistoryOutcome(nil) })
}
