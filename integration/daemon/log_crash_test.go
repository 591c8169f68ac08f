package daemon

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// assertUnique reads the whole log and checks that no number is there twice.
func assertUnique(h *harness.Host) []audit.Event {
	h.T.Helper()
	seen := map[uint64]bool{}
	var all []audit.Event
	for e, err := range audit.Read(context.Background(), filepath.Join(h.Base, "state", "audit"), audit.Filter{}, false) {
		require.NoError(h.T, err)
		require.False(h.T, seen[e.Seq], "event %d is there twice", e.Seq)
		seen[e.Seq] = true
		all = append(all, e)
	}
	return all
}

// TestLogKilledDaemon: a client that was answered with a denial finds it in the log, whenever the daemon was killed. The
// log is valid after each, and has grown from every head that it had signed before.
func TestLogKilledDaemon(t *testing.T) {
	need.Once(t)
	t.Parallel()
	h := harness.NewHost(t, map[string]string{"a": "view: {paths: {\"ro/**\": read}}"})
	require.NoError(t, os.Mkdir(h.Scope("a", "ro"), 0o755))
	h.Timeout = 10 * time.Minute
	answered := map[string]bool{}
	heads, verify := t.TempDir(), []string{"audit", "verify"}
	for round := range rounds(6) {
		var mu sync.Mutex
		var clients sync.WaitGroup
		for client := range 8 {
			clients.Go(func() {
				for i := 0; ; i++ {
					name := fmt.Sprintf("%d-%d-%d", round, client, i)
					err := syscall.Mkdir(h.View("a", "ro", name), 0o755)
					if err != syscall.EACCES {
						return
					}
					mu.Lock()
					answered["ro/"+name] = true
					mu.Unlock()
				}
			})
		}
		h.Eventually("clients are denied", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(answered) > 40*(round+1)
		})
		h.Kill()
		clients.Wait()
		h.Eventually("the log is closed, and valid", func() bool {
			_, _, code := h.Try("audit", "verify")
			return code == 0
		})
		head := filepath.Join(heads, strconv.Itoa(round))
		require.NoError(t, os.WriteFile(head, []byte(harness.ReadAll(t, h.Base+"/state/audit/head")), 0o600))
		verify = append(verify, "--checkpoint", head)
		h.Start()
	}
	h.Must(verify...)
	for _, e := range assertUnique(h) {
		if e.Verdict == audit.Deny {
			delete(answered, e.Path)
		}
	}
	assert.Empty(t, answered, "denied, and not in the log")
}

// TestLogCallWithoutEnd: a call that ran when the daemon was killed gets an end when the next one starts.
func TestLogCallWithoutEnd(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "tools: [bash]"})
	cmd := exec.Command(harness.Program, "--base", h.Base, "call", "--agent", "a", "bash", "command=sleep 100")
	require.NoError(t, cmd.Start())
	h.Eventually("the call runs", func() bool { return h.Recorded("a", audit.Event{Op: "bash", Outcome: audit.OutcomeBegin}) })
	h.Kill()
	_ = cmd.Wait()
	h.Start()
	h.Eventually("the call has an end", func() bool { return h.Recorded("a", audit.Event{Op: "bash", Outcome: audit.OutcomeUnknown}) })
}

// TestLogTakenAway: what is done to the log below the daemon is recorded and shown at once, and calls go on.
func TestLogTakenAway(t *testing.T) {
	t.Parallel()
	for name, attack := range map[string]func(dir string) error{
		"truncated": func(dir string) error { return os.Truncate(filepath.Join(dir, "00000001.jsonl"), 0) },
		"renamed": func(dir string) error {
			return os.Rename(filepath.Join(dir, "00000001.jsonl"), filepath.Join(dir, "old"))
		},
		"directory moved": func(dir string) error { return os.Rename(dir, dir+"x") },
	} {
		t.Run(name, func(t *testing.T) {
			h := harness.NewHost(t, map[string]string{"a": "view: {paths: {\"ro/**\": read}}"})
			require.NoError(t, os.Mkdir(h.Scope("a", "ro"), 0o755))
			events := assertUnique(h)
			dir := filepath.Join(h.Base, "state", "audit")
			require.NoError(t, attack(dir))
			h.Eventually("there is a log", func() bool { _, err := os.Stat(dir); return err == nil })
			h.Eventually("it is recorded", func() bool { return h.Recorded("", audit.Event{Outcome: audit.OutcomeLost}) })
			assert.ErrorIs(t, os.Mkdir(h.View("a", "ro", "d"), 0o755), syscall.EACCES)
			h.Stop()
			assert.Contains(t, h.Log.String(), "outcome=lost")
			left := assertUnique(h)
			assert.Greater(t, left[0].Seq, events[len(events)-1].Seq)
			assert.True(t, h.Recorded("a", audit.Event{Path: "ro/d", Verdict: audit.Deny}))
		})
	}
}

// TestLogDamaged: damage stops neither the daemon nor those who read.
func TestLogDamaged(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	h.Stop()
	name := filepath.Join(h.Base, "state", "audit", "00000001.jsonl")
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	before := strings.Count(string(text), "\n")
	lines := strings.SplitAfterN(string(text), "\n", 2)
	bad := "{\"seq\":5,\x00\n"
	require.NoError(t, os.WriteFile(name, []byte(lines[0]+bad+lines[1]+strings.Repeat(bad, 40)), 0o600))
	h.Start()
	h.Stop()

	out, errs, code := h.Try("audit", "--json")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "00000001.jsonl before byte "+strconv.Itoa(len(lines[0]+bad)))
	assert.Contains(t, errs, "1 damaged lines in ")
	assert.Greater(t, strings.Count(out, "\n"), before, "all that is not damaged, and what came after")
	assert.Contains(t, out, `"outcome":"torn"`)
	kept, err := os.ReadFile(name + ".damaged")
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat(bad, 40), string(kept))
}
