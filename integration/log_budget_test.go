package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
)

// TestLogBudget: an agent that writes more than its part of the log is slowed down, which is recorded and shown; all that
// it was denied is recorded, and others notice nothing.
func TestLogBudget(t *testing.T) {
	t.Parallel()
	rules := "view: {paths: {\"ro/**\": read}}"
	h := layOut(t, map[string]string{"a": rules, "b": rules})
	h.put("scopefs.yaml", "log: {agent_day: 1MiB}\n")
	for _, id := range []string{"a", "b"} {
		require.NoError(t, os.Mkdir(h.scope(id, "ro"), 0o755))
	}
	h.start()
	answered := make(chan int)
	go func() {
		n := 0
		for syscall.Mkdir(h.view("a", "ro", fmt.Sprint(strings.Repeat("x", 200), n)), 0o755) == syscall.EACCES {
			n++
		}
		answered <- n
	}()
	h.eventually("the budget is used up", func() bool {
		return h.recorded("a", audit.Event{Event: audit.KindAgent, Outcome: "log budget used up"})
	})
	require.ErrorIs(t, syscall.Mkdir(h.view("b", "ro", "d"), 0o755), syscall.EACCES)
	h.stop()
	assert.Contains(t, h.log.String(), "log: agent_day in scopefs.yaml")
	denied, used := 0, 0
	for _, e := range h.unique() {
		if e.Agent == "a" && e.Verdict == audit.Deny {
			denied++
		}
		if e.Outcome == "log budget used up" {
			used++
		}
	}
	n := <-answered
	assert.Greater(t, n, 100)
	assert.GreaterOrEqual(t, denied, n)
	assert.Equal(t, 1, used)
}

// TestLogRetention: complete segments are compressed, and old ones removed, as scopefs.yaml says.
func TestLogRetention(t *testing.T) {
	t.Parallel()
	h := newHost(t, map[string]string{"a": ""})
	h.stop()
	dir := filepath.Join(h.base, "state", "audit")
	first := filepath.Join(dir, "00000001.jsonl")
	require.NoError(t, os.Chmod(first, 0o400))
	before := h.unique()
	h.start()
	h.eventually("the segment is compressed", func() bool { _, err := os.Stat(first); return os.IsNotExist(err) })
	assert.FileExists(t, first+".zst")
	after := h.unique()
	require.Greater(t, len(after), len(before))
	assert.Equal(t, before, after[:len(before)])
	h.stop()

	h.put("scopefs.yaml", "log: {keep: 1h}\n")
	old := before[0].Time.AddDate(0, 0, -1)
	require.NoError(t, os.Chtimes(first+".zst", old, old))
	h.start()
	h.eventually("the segment is removed", func() bool { return h.recorded("", audit.Event{Outcome: audit.OutcomeRemoved}) })
	assert.NoFileExists(t, first+".zst")
	assert.Equal(t, before[len(before)-1].Seq+1, h.unique()[0].Seq)
}
