package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
)

// TestAgain: an event is in the log once for each line of its agent since its request began, and as the last daemon left it.
func TestAgain(t *testing.T) {
	dir := t.TempDir()
	log, err := audit.Open(dir, audit.Options{})
	require.NoError(t, err)
	defer log.Close()
	add := func(agent, path string) {
		_, err := log.Append(t.Context(), audit.Event{Event: audit.KindFile, Agent: agent, Op: "open", Path: path, Verdict: audit.Allow})
		require.NoError(t, err)
	}
	of := func(agent, path string) audit.Event {
		return audit.Event{Agent: agent, Op: "open", Path: path, Verdict: audit.Allow}
	}
	var a Again
	began := time.Now()
	add("a", "f")
	assert.False(t, a.Recorded(of("a", "f"), began), "no view was taken over")

	add("a", "tab\t")
	time.Sleep(time.Millisecond)
	later := time.Now()
	for range 2 {
		add("b", "f")
	}
	a.Take(dir)
	add("a", "g")
	a.Take(dir)
	for i, c := range []struct {
		agent, path string
		began       time.Time
		want        bool
	}{
		{"a", "f", later, false},
		{"a", "f", began, true},
		{"a", "f", began, false},
		{"b", "f", began, true},
		{"b", "f", began.Add(-time.Hour), true},
		{"b", "f", began.Add(-time.Hour), false},
		{"a", "tab\t", began, true},
		{"a", "g", began, false},
		{"a", "none", began.Add(-time.Hour), false},
		{"a", "f", time.Now(), false},
	} {
		assert.Equal(t, c.want, a.Recorded(of(c.agent, c.path), c.began), i)
	}
}

// TestAgainOlder: a second reading adds what the first one has left out, and nothing twice.
func TestAgainOlder(t *testing.T) {
	dir := t.TempDir()
	log, err := audit.Open(dir, audit.Options{})
	require.NoError(t, err)
	defer log.Close()
	e := audit.Event{Event: audit.KindFile, Agent: "a", Op: "open", Path: "f", Verdict: audit.Allow}
	first := time.Now()
	for range 2 {
		_, err := log.Append(t.Context(), e)
		require.NoError(t, err)
		time.Sleep(againSpan + 10*time.Millisecond)
	}
	var a Again
	a.Take(dir)
	assert.False(t, a.Recorded(e, time.Now().Add(-time.Millisecond)))
	assert.True(t, a.Recorded(e, first))
	assert.True(t, a.Recorded(e, first))
	assert.False(t, a.Recorded(e, first))
}
