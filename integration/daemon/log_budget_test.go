package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestLogBudget: an agent that writes more than its part of the log is slowed down, which is recorded and shown; all that
// it was denied is recorded, and others notice nothing.
func TestLogBudget(t *testing.T) {
	need.Once(t)
	t.Parallel()
	rules := "view: {paths: {\"ro/**\": read}}"
	h := harness.LayOut(t, map[string]string{"a": rules, "b": rules})
	h.Put("scopefs.yaml", "log: {agent_day: 1MiB}\n")
	for _, id := range []string{"a", "b"} {
		require.NoError(t, os.Mkdir(h.Scope(id, "ro"), 0o755))
	}
	h.Start()
	answered := make(chan int)
	go func() {
		n := 0
		for syscall.Mkdir(h.View("a", "ro", fmt.Sprint(strings.Repeat("x", 200), n)), 0o755) == syscall.EACCES {
			n++
		}
		answered <- n
	}()
	h.Eventually("the budget is used up", func() bool {
		return h.Recorded("a", audit.Event{Event: audit.KindAgent, Outcome: "log budget used up"})
	})
	require.ErrorIs(t, syscall.Mkdir(h.View("b", "ro", "d"), 0o755), syscall.EACCES)
	h.Stop()
	assert.Contains(t, h.Log.String(), "log: agent_day in scopefs.yaml")
	denied, used := 0, 0
	for _, e := range assertUnique(h) {
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
	h := harness.NewHost(t, map[string]string{"a": ""})
	h.Stop()
	dir := filepath.Join(h.Base, "state", "audit")
	first := filepath.Join(dir, "00000001.jsonl")
	require.NoError(t, os.Chmod(first, 0o400))
	before := assertUnique(h)
	h.Start()
	h.Eventually("the segment is compressed", func() bool { _, err := os.Stat(first); return os.IsNotExist(err) })
	assert.FileExists(t, first+".zst")
	after := assertUnique(h)
	require.Greater(t, len(after), len(before))
	assert.Equal(t, before, after[:len(before)])
	h.Stop()

	h.Put("scopefs.yaml", "log: {keep: 1h}\n")
	old := before[0].Time.AddDate(0, 0, -1)
	require.NoError(t, os.Chtimes(first+".zst", old, old))
	h.Start()
	h.Eventually("the segment is removed", func() bool { return h.Recorded("", audit.Event{Outcome: audit.OutcomeRemoved}) })
	h.Eventually("its file is gone, which the event precedes", func() bool {
		_, err := os.Stat(first + ".zst")
		return errors.Is(err, fs.ErrNotExist)
	})
	assert.Equal(t, before[len(before)-1].Seq+1, assertUnique(h)[0].Seq)
}

// TestLogBudgetOfUser: what an agent's user writes to the log by commands is of the agent's
// part. The operator's commands do not wait, nor do those of other agents' users.
func TestLogBudgetOfUser(t *testing.T) {
	need.Once(t)
	t.Parallel()
	h := harness.LayOut(t, map[string]string{"a": "", "b": ""})
	own(t, h, "a", alice)
	own(t, h, "b", bob)
	h.Put("scopefs.yaml", "log: {agent_day: 1MiB}\n")
	h.Start()
	ctx, stop := context.WithCancel(context.Background())
	var runs sync.WaitGroup
	for range 8 {
		runs.Go(func() {
			for ctx.Err() == nil {
				cmd := exec.CommandContext(ctx, harness.Program, "--base", h.Base, "run", "a", "--", "true", strings.Repeat("x", 4000))
				as(cmd, alice)
				_ = cmd.Run()
			}
		})
	}
	defer runs.Wait()
	defer stop()
	h.Eventually("the budget is used up", func() bool {
		return h.Recorded("a", audit.Event{Event: audit.KindAgent, Outcome: "log budget used up"})
	})
	ended := func() (n int) {
		for _, e := range h.Events("a") {
			if e.Op == "exec" && e.Outcome == "exit 0" {
				n++
			}
		}
		return n
	}
	h.Eventually("nothing runs any more", func() bool { return len(h.Agent("a").Sandboxes) == 0 })
	before := ended()
	assert.Greater(t, before, 20)
	h.Must("run", "a", "--", "true")
	assert.Zero(t, by(h, bob, "run", "b", "--", "true").Code)
	assert.Less(t, ended(), before+10, "the user's wait")
}
