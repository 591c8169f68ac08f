package history

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// TestPruned: what a history gives up is an event of the log. The last session stays.
func TestPruned(t *testing.T) {
	k := keep(t, map[string]string{"a": "view: {changes: kept}\nhistory: {size: 1MiB}"})
	harness.Plant(t, k.Scope("a"), "big="+strings.Repeat("x", 2<<20))
	k.Must("run", "-T", "a", "--", "rm", "big")
	k.Must("down", "a")
	k.Must("up", "a")
	k.Must("undo", "a", "--session", "last")
	k.Must("run", "-T", "a", "--", "rm", "big")
	k.Must("run", "-T", "a", "--", "touch", "new")
	k.Must("down", "a")
	k.Must("up", "a")
	var events []audit.Event
	k.Eventually("the log says so", func() bool {
		count := 0
		events = nil
		for _, e := range k.Events("a") {
			if n := 0; e.Op == "pruned" {
				events = append(events, e)
				_, _ = fmt.Sscanf(e.Detail, "%d generations: more than 1048576 bytes", &n) // none in what is said beforehand
				count += n
			}
		}
		return count == 3
	})
	assert.Equal(t, "nearly full", events[0].Outcome)
	for _, e := range events {
		if e.Outcome == "done" {
			assert.Contains(t, k.Must("why", fmt.Sprint(e.Seq)), "did: the oldest part of the history was given up, "+e.Detail+"\n")
		}
	}
}

// TestWhy: why says what an event of the history did.
func TestWhy(t *testing.T) {
	k := keep(t, map[string]string{"a": "view: {changes: kept}"})
	u := k.Connect("a")
	u.Call("checkpoint", args{"name": "green"})
	u.Call("write_file", args{"path": "f", "content": "x"})
	u.Call("undo", args{"checkpoint": "green"})
	k.Must("redo", "a", k.lastUndo("a"))
	var said []string
	for _, e := range k.Events("a") {
		if e.Event == audit.KindHistory {
			said = append(said, k.Must("why", fmt.Sprint(e.Seq)))
		}
	}
	require.Len(t, said, 6)
	session, call := k.Calls("a", "undo")[0].Session, k.Calls("a", "undo")[0].Call
	assert.Contains(t, said[1], `did: the checkpoint green, for session `+session)
	assert.Contains(t, said[2],
		"took back the changes since checkpoint green, for session "+session+", call "+call+": it began; the next event undo has its outcome\n")
	assert.Contains(t, said[3], ": done, ")
	assert.Contains(t, said[3], " 0 conflicts, 0 not kept\n")
	assert.Contains(t, said[5], fmt.Sprintf("did: took the last undo back, for the operator, user %d: done", os.Getuid()))
	assert.Equal(t, 2, strings.Count(said[5], "\n"), said[5])
	assert.Contains(t, k.Must("why", "--json", fmt.Sprint(k.Calls("a", "undo")[0].Seq)), `"verdict":"allow"`)
}
