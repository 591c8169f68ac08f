package daemon

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/proof"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

func init() {
	harness.Roles["log"] = func(args []string) error { return appendForever(args[0]) }
}

// smallSegments has a log do within a second what it otherwise does in days.
var smallSegments = audit.Options{SegmentBytes: 128 << 10, Sync: 20 * time.Millisecond, KeepBytes: 512 << 10}

// appendForever appends calls to a log from four goroutines until an append fails.
func appendForever(dir string) error {
	l, err := audit.Open(dir, smallSegments)
	if err != nil {
		return err
	}
	failed := make(chan error)
	for g := range 4 {
		go func() {
			for i := 0; ; i++ {
				e := audit.Event{Event: audit.KindCall, Agent: "a", Call: fmt.Sprint(g, "-", i/2), Op: "stat", Path: fmt.Sprint("some/path/", i)}
				if e.Outcome = "ok"; i%2 == 0 {
					e.Outcome = audit.OutcomeBegin
				}
				if _, err := l.Append(context.Background(), e); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	return <-failed
}

// TestLogCuts cuts the power of the log's disk while two processes append and the log signs, compresses and removes. The next
// start verifies by each head that was signed before, and a number that is missing is in a gap that the log names.
func TestLogCuts(t *testing.T) {
	need.Once(t)
	at := t.TempDir()
	d := newDisk(t, at)
	dir := filepath.Join(at, "log")
	random := rand.New(rand.NewPCG(27, 4))
	heads := map[string][]byte{}
	signed := int64(0)
	keep := func() int64 {
		if head, size, err := proof.Head(dir); err == nil && size > signed {
			heads[fmt.Sprint(size)], signed = head, size
		}
		return signed
	}
	var v proof.Verified
	gaps, n := 0, rounds(3)
	for round := range n {
		before, seq := signed, uint64(0)
		kill := []func(){startLog(t, dir), startLog(t, dir)}
		require.Eventually(t, func() bool { return keep() > before }, time.Minute, time.Millisecond, "round %d: no head is signed", round)
		for end := time.Now().Add(time.Duration(random.IntN(400)) * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
			keep()
		}
		d.Cut()
		for _, do := range kill {
			do()
		}
		d.Unmount()
		d.Mount()
		l, err := audit.Open(dir, smallSegments)
		require.NoError(t, err, "round %d", round)
		seq, err = l.Append(t.Context(), audit.Event{Event: audit.KindDaemon, Detail: fmt.Sprint("round ", round)})
		require.NoError(t, err, "round %d", round)
		require.NoError(t, l.Close(), "round %d", round)
		v, err = proof.Verify(t.Context(), dir, proof.VerifyOptions{Heads: readers(heads)})
		require.NoError(t, err, "round %d", round)
		require.Equal(t, len(heads), v.Matched+v.Older, "round %d", round)
		require.Zero(t, v.After, "round %d: the log was closed", round)
		assert.GreaterOrEqual(t, seq, uint64(signed), "round %d", round)
		gaps += min(1, len(v.Gaps))
		keep()
	}
	assert.NotZero(t, gaps, "nothing was lost: does the cut have an effect?")
	t.Logf("%d cuts, %d heads, all match; %d lines, of which %d were removed; after %d cuts lines were lost, and the log says which",
		n, len(heads), v.Head.Size, v.Removed, gaps)
}

// startLog starts a process that appends to a log.
func startLog(t *testing.T, dir string) (kill func()) {
	t.Helper()
	cmd := harness.Role("log", dir)
	cmd.Stderr = io.Discard // the disk fails
	require.NoError(t, cmd.Start())
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	return kill
}

func readers(heads map[string][]byte) map[string]io.Reader {
	all := map[string]io.Reader{}
	for name, head := range heads {
		all[name] = bytes.NewReader(head)
	}
	return all
}
