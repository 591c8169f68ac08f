package audit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scopefs/scopefs/audit/proof"
	"github.com/scopefs/scopefs/audit/segment"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// about returns the events that the log recorded about itself, and checks that no number occurs twice.
func about(t testing.TB, dir string) (outcomes, details []string) {
	t.Helper()
	seen := map[uint64]bool{}
	for e, err := range Read(noCtx, dir, Filter{}, false) {
		if err != nil { // damage from the attack
			continue
		}
		require.False(t, seen[e.Seq], "event %d is there twice", e.Seq)
		seen[e.Seq] = true
		if e.Event == KindAudit {
			outcomes, details = append(outcomes, e.Outcome), append(details, e.Detail)
		}
	}
	return outcomes, details
}

// removals are ways to remove lines from a log of one segment.
var removals = map[string]func(dir string) error{
	"truncated": func(dir string) error { return os.Truncate(first(dir), 0) },
	"shortened": func(dir string) error { return os.Truncate(first(dir), 150) },
	"removed":   func(dir string) error { return os.Remove(first(dir)) },
	"renamed":   func(dir string) error { return os.Rename(first(dir), filepath.Join(dir, "x")) },
	"replaced": func(dir string) error {
		if err := os.WriteFile(first(dir)+"x", []byte("not a log\n"), 0o600); err != nil {
			return err
		}
		return os.Rename(first(dir)+"x", first(dir))
	},
	"whole directory removed": func(dir string) error { // atomically
		if err := os.Rename(dir, dir+"x"); err != nil {
			return err
		}
		return os.RemoveAll(dir + "x")
	},
	"whole directory moved": func(dir string) error { return os.Rename(dir, dir+"x") },
}

// TestLinesTakenAway checks that the log detects missing lines before the next event, also without appends, and
// assigns no number twice.
func TestLinesTakenAway(t *testing.T) {
	for name, attack := range removals {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "log")
			notices := make(chan Event, 10)
			l := open(t, dir, Options{Sync: time.Hour, Notice: func(e Event) { notices <- e }})
			add(t, l, 3)
			require.NoError(t, attack(dir))
			assert.Equal(t, uint64(5), add(t, l, 1))
			assert.NoError(t, l.Err())
			outcomes, details := about(t, dir)
			assert.Equal(t, []string{OutcomeLost}, outcomes)
			assert.Contains(t, details[0], "3")
			assert.Equal(t, OutcomeLost, (<-notices).Outcome)
		})
		t.Run(name+", and nothing is appended", func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "log")
			notices := make(chan Event, 10)
			l := open(t, dir, Options{Sync: time.Millisecond, Notice: func(e Event) { notices <- e }})
			add(t, l, 3)
			require.NoError(t, attack(dir))
			select {
			case e := <-notices:
				assert.Equal(t, OutcomeLost, e.Outcome)
			case <-time.After(10 * time.Second):
				t.Fatal("not noticed")
			}
			assert.Equal(t, uint64(5), add(t, l, 1))
		})
		if strings.HasPrefix(name, "whole") { // no file is left as evidence
			continue
		}
		t.Run(name+" while nobody has it open", func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "log")
			l, err := Open(dir, Options{})
			require.NoError(t, err)
			add(t, l, 3)
			require.NoError(t, l.Close())
			require.NoError(t, attack(dir))
			assert.Greater(t, add(t, open(t, dir, Options{}), 1), uint64(4))
			outcomes, _ := about(t, dir)
			assert.Contains(t, outcomes, OutcomeLost)
		})
		t.Run(name+" under two processes", func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "log")
			a, b := open(t, dir, Options{Sync: time.Hour}), open(t, dir, Options{Sync: time.Hour})
			add(t, a, 1)
			add(t, b, 2)
			require.NoError(t, attack(dir))
			next := add(t, a, 1) // a has not seen the last two events
			assert.GreaterOrEqual(t, next, uint64(5))
			assert.Equal(t, next+1, add(t, b, 1))
			outcomes, _ := about(t, dir)
			assert.Equal(t, OutcomeLost, outcomes[len(outcomes)-1])
		})
	}
}

func TestMarkTakenAway(t *testing.T) {
	for name, attack := range map[string]func(name string) error{
		"removed":     os.Remove,
		"truncated":   func(name string) error { return os.Truncate(name, 0) },
		"overwritten": func(name string) error { return os.WriteFile(name, []byte("x"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := open(t, dir, Options{})
			add(t, l, 3)
			require.NoError(t, attack(filepath.Join(dir, segment.Mark)))
			assert.Equal(t, uint64(4), add(t, l, 1))
			assert.Equal(t, uint64(5), add(t, open(t, dir, Options{}), 1))
			assert.Len(t, all(t, dir), 5)
		})
	}
}

// die leaves a log as a killed process does.
func die(t *testing.T, l *Log) {
	t.Helper()
	s := storeOf(l)
	close(s.stop)
	s.stopped.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NoError(t, s.closeFiles())
	close(l.stop)
	<-l.stopped
}

// TestPowerLoss loses lines that never reached the disk. The next start records that and does not assign their
// numbers again.
func TestPowerLoss(t *testing.T) {
	need.Once(t)
	dir := t.TempDir()
	l, err := Open(dir, Options{Sync: time.Hour})
	require.NoError(t, err)
	add(t, l, 5)
	require.NoError(t, storeOf(l).sync())
	synced, err := os.ReadFile(filepath.Join(dir, segment.Mark)) // the version on disk
	require.NoError(t, err)
	add(t, l, 5)
	die(t, l)
	lines, err := os.ReadFile(first(dir))
	require.NoError(t, err)
	kept := slices.Collect(bytes.Lines(lines))[:7]
	require.NoError(t, os.WriteFile(first(dir), bytes.Join(kept, nil), 0o600))
	m, ok := decodeMark(synced)
	require.True(t, ok)
	m.boot++ // another kernel
	require.NoError(t, os.WriteFile(filepath.Join(dir, segment.Mark), m.encode(), 0o600))

	next := add(t, open(t, dir, Options{}), 1)
	assert.Greater(t, next, uint64(10))
	outcomes, details := about(t, dir)
	assert.Equal(t, []string{OutcomeUnclean}, outcomes)
	assert.Contains(t, details[0], "event 5 was known to be on disk, and 7 is the last that is")

	l = open(t, dir, Options{})
	assert.Equal(t, next+1, add(t, l, 1), "it is told once")
}

func TestOrdinaryStartsAreNotTold(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(dir, Options{})
	require.NoError(t, err)
	add(t, l, 3)
	die(t, l)
	l, err = Open(dir, Options{})
	require.NoError(t, err)
	assert.Equal(t, uint64(4), add(t, l, 1), "killed: the kernel has all")
	require.NoError(t, l.Close())
	b, err := os.ReadFile(filepath.Join(dir, segment.Mark))
	require.NoError(t, err)
	m, ok := decodeMark(b)
	require.True(t, ok)
	m.boot++
	require.NoError(t, os.WriteFile(filepath.Join(dir, segment.Mark), m.encode(), 0o600))
	assert.Equal(t, uint64(5), add(t, open(t, dir, Options{}), 1), "closed, and then the host was started again")
	assert.Len(t, all(t, dir), 5)
}

// TestDamagedEndIsSetAside checks that a log with a damaged end opens, and that the log keeps the damaged bytes.
func TestDamagedEndIsSetAside(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, garbage := range map[string]string{
		"17 lines":  strings.Repeat("not a log\n", 17),
		"100 lines": strings.Repeat("not a log\n", 100),
		"long line": long + "\n" + long,
		"zeros":     string(make([]byte, 1<<20)),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l, err := Open(dir, Options{})
			require.NoError(t, err)
			add(t, l, 3)
			require.NoError(t, l.Close())
			f, err := os.OpenFile(first(dir), os.O_WRONLY|os.O_APPEND, 0)
			require.NoError(t, err)
			_, err = f.WriteString(garbage)
			require.NoError(t, err)
			require.NoError(t, f.Close())

			assert.Equal(t, uint64(5), add(t, open(t, dir, Options{}), 1))
			events := all(t, dir)
			assert.Equal(t, OutcomeTorn, events[3].Outcome)
			assert.Equal(t, fmt.Sprintf("%d bytes set aside in 00000001.jsonl.damaged", len(garbage)), events[3].Detail)
			kept, err := os.ReadFile(first(dir) + ".damaged")
			require.NoError(t, err)
			assert.Equal(t, garbage, string(kept))
		})
	}
	t.Run("nothing else", func(t *testing.T) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(first(dir), []byte(strings.Repeat("not a log\n", 100)), 0o600))
		assert.Equal(t, uint64(2), add(t, open(t, dir, Options{}), 1))
	})
}

// TestForeignLines changes a closed log as another program would. Verify finds each change at once, and the log records it when it opens.
func TestForeignLines(t *testing.T) {
	line := `{"seq":4,"time":"2026-01-01T00:00:00Z","event":"file","agent":"a","verdict":"deny"}`
	for name, c := range map[string]struct {
		do            func(text []byte) []byte
		verify        string
		outcome, tell string
		next          uint64
	}{
		"an event":           {func(text []byte) []byte { return append(text, line+"\n"...) }, "", OutcomeForeign, "events 4 to 4 are not the log's: they were appended while it was closed", 6},
		"no event":           {func(text []byte) []byte { return append(text, "\x00\xff\n"...) }, "line 4: it is no event: another program has written it", OutcomeTorn, "3 bytes set aside", 5},
		"without a newline":  {func(text []byte) []byte { return bytes.TrimSuffix(text, []byte("\n")) }, "line 3: its newline is missing: it was cut off", OutcomeTorn, "the newline at the end of event 3 was missing", 5},
		"half an event more": {func(text []byte) []byte { return append(text, line[:20]...) }, "line 4: its newline is missing: it was cut off", OutcomeTorn, "20 bytes set aside", 5},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l, err := Open(dir, Options{})
			require.NoError(t, err)
			add(t, l, 3)
			require.NoError(t, l.Close())
			text, err := os.ReadFile(first(dir))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(first(dir), c.do(text), 0o600))
			_, err = proof.Verify(noCtx, dir, proof.VerifyOptions{})
			if c.verify == "" {
				require.NoError(t, err, "not signed yet")
			} else {
				require.ErrorContains(t, err, c.verify)
			}
			l, err = Open(dir, Options{})
			require.NoError(t, err)
			assert.Equal(t, c.next, add(t, l, 1))
			require.NoError(t, l.Close())
			outcomes, details := about(t, dir)
			require.Equal(t, []string{c.outcome}, outcomes)
			assert.Contains(t, details[0], c.tell)
			for _, e := range all(t, dir)[:3] {
				assert.Equal(t, KindFile, e.Event, "every event stays")
			}
			v, err := proof.Verify(noCtx, dir, proof.VerifyOptions{})
			require.NoError(t, err)
			assert.Equal(t, c.outcome == OutcomeForeign, len(v.Foreign) == 1)
		})
	}
}

// TestCallsWithoutEnd checks that a call of a killed process gets an end once no other process has the log open.
func TestCallsWithoutEnd(t *testing.T) {
	dir := t.TempDir()
	call := func(l *Log, id, outcome string) {
		t.Helper()
		_, err := l.Append(noCtx, Event{Event: KindCall, Agent: "a", Call: id, Op: "bash", Path: "x\ny", Verdict: Allow, Outcome: outcome})
		require.NoError(t, err)
	}
	l, err := Open(dir, Options{SegmentBytes: 300, Sync: time.Hour})
	require.NoError(t, err)
	for i := range 10 {
		call(l, fmt.Sprint("early", i), OutcomeBegin)
		call(l, fmt.Sprint("early", i), "ok")
	}
	call(l, "left", OutcomeBegin)
	add(t, l, 10)
	call(l, "done", OutcomeBegin)
	call(l, "done", "ok")
	call(l, "left2", OutcomeBegin)
	die(t, l)

	other, err := Open(dir, Options{Sync: time.Hour})
	require.NoError(t, err)
	ends := func() (ids []string) {
		for _, e := range all(t, dir) {
			if e.Outcome == OutcomeUnknown {
				assert.Equal(t, "bash", e.Op)
				assert.Equal(t, "a", e.Agent)
				assert.Equal(t, `x\x0ay`, e.Path)
				ids = append(ids, e.Call)
			}
		}
		return ids
	}
	assert.Equal(t, []string{"left", "left2"}, ends())

	call(other, "others", OutcomeBegin)
	l = open(t, dir, Options{Sync: time.Hour})
	call(l, "mine", OutcomeBegin)
	assert.Len(t, ends(), 2, "of a process that still runs")
	die(t, other)
	_, err = storeOf(l).append(nil) // as on each Sync
	require.NoError(t, err)
	assert.Equal(t, []string{"left", "left2", "others"}, ends())
}
