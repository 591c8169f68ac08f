package audit

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit/segment"
	"github.com/scopefs/scopefs/internal/need"
)

// packed reports whether all segments of a log except the last are packed.
func packed(dir string) bool {
	plain, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	return len(plain) == 1
}

// TestPackedSegments checks that every filter reads from compressed segments what was written.
func TestPackedSegments(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{SegmentBytes: 1 << 20, Sync: 5 * time.Millisecond})
	written := sha256.New()
	for i := range 20000 {
		e := Event{Event: KindFile, Agent: fmt.Sprint("a", i%7), Op: "open", Path: fmt.Sprint("some/path/", i), Verdict: Allow}
		if i%5000 == 4321 {
			e.Verdict = Deny
		}
		_, err := l.Append(noCtx, e)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return packed(dir) }, 20*time.Second, 10*time.Millisecond)
	names, err := filepath.Glob(filepath.Join(dir, "*"+segment.PackedSuffix))
	require.NoError(t, err)
	require.Greater(t, len(names), 1)

	events := all(t, dir)
	require.Len(t, events, 20000)
	for _, e := range events {
		written.Write(append(e.Raw, '\n'))
	}
	t.Run("zstd -d", func(t *testing.T) {
		need.Program(t, "zstd")
		text := sha256.New()
		for _, name := range names {
			cmd := exec.Command("zstd", "-dcq", name)
			cmd.Stdout = text
			require.NoError(t, cmd.Run())
		}
		last, err := os.ReadFile(filepath.Join(dir, segment.Name(lastNumber(t, dir))))
		require.NoError(t, err)
		text.Write(last)
		assert.Equal(t, written.Sum(nil), text.Sum(nil))
	})
	for name, filter := range map[string]Filter{
		"denied": {Denied: true}, "agent": {Agent: "a3"}, "since": {Since: events[15000].Time}, "number": {Seq: 7777},
		"denied since": {Denied: true, Since: events[9000].Time},
	} {
		t.Run(name, func(t *testing.T) {
			var want, got []uint64
			for _, e := range events {
				if filter.match(e) {
					want = append(want, e.Seq)
				}
			}
			for e, err := range Read(noCtx, dir, filter, false) {
				require.NoError(t, err)
				got = append(got, e.Seq)
			}
			require.NotEmpty(t, want)
			assert.Equal(t, want, got)
		})
	}
	for range Read(noCtx, dir, Filter{}, false) { // a loop that breaks early does not block
		break
	}
}

// TestPackedSegmentDamaged checks that Read returns the readable parts of a damaged log.
func TestPackedSegmentDamaged(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(dir, Options{SegmentBytes: 1 << 20, Sync: 5 * time.Millisecond})
	require.NoError(t, err)
	last := add(t, l, 20000)
	require.Eventually(t, func() bool { return packed(dir) }, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, l.Close())
	name := first(dir) + segment.PackedSuffix
	require.NoError(t, os.Chmod(name, 0o600))
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	for attack, damage := range map[string]func([]byte) []byte{
		"a frame": func(b []byte) []byte { b[100] ^= 0xff; return b },
		"index":   func(b []byte) []byte { return b[:len(b)-1] },
		"emptied": func([]byte) []byte { return nil },
	} {
		t.Run(attack, func(t *testing.T) {
			require.NoError(t, os.WriteFile(name, damage(bytes.Clone(text)), 0o600))
			read, bad := uint64(0), 0
			for e, err := range Read(noCtx, dir, Filter{}, false) {
				if err != nil {
					assert.NotNil(t, e.Raw)
					bad++
				} else {
					read++
				}
			}
			assert.Equal(t, 1, bad)
			assert.Greater(t, read, last/2)
			assert.Equal(t, last+1, add(t, open(t, dir, Options{}), 1))
			last++
		})
	}
}

// TestLogKeepsWhatItMay checks that the log removes the oldest segments by age and size, records that, and keeps the
// last segment.
func TestLogKeepsWhatItMay(t *testing.T) {
	for name, opts := range map[string]Options{"size": {KeepBytes: 8 << 10}, "age": {KeepAge: time.Hour}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			opts.SegmentBytes, opts.Sync = 64<<10, 5*time.Millisecond
			l, err := Open(dir, Options{SegmentBytes: 64 << 10})
			require.NoError(t, err)
			last := add(t, l, 5000)
			require.NoError(t, l.Close())
			require.NoError(t, os.WriteFile(first(dir)+damagedSuffix, []byte("x"), 0o600))
			names, err := filepath.Glob(filepath.Join(dir, "0*"))
			require.NoError(t, err)
			old := time.Now().Add(-2 * time.Hour)
			for _, name := range names[:len(names)/2] {
				require.NoError(t, os.Chtimes(name, old, old))
			}
			l = open(t, dir, opts)
			var removed []string
			require.Eventually(t, func() bool {
				outcomes, details := about(t, dir)
				removed = details
				return slices.Contains(outcomes, OutcomeRemoved) && packed(dir)
			}, 20*time.Second, 10*time.Millisecond)
			assert.Contains(t, removed[0], "segments 1 to ")
			require.Eventually(t, func() bool { // the event comes before the removal
				left, err := filepath.Glob(first(dir) + "*")
				return err == nil && len(left) == 0
			}, 20*time.Second, 10*time.Millisecond)
			outcomes, _ := about(t, dir)
			assert.NotContains(t, outcomes, OutcomeLost)
			assert.Greater(t, add(t, l, 1), last)
			assert.NoError(t, l.Err())
		})
	}
}

// TestCompleteSegmentTakenAway checks that the log records when another program removes a complete segment.
func TestCompleteSegmentTakenAway(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{SegmentBytes: 1000, Sync: 5 * time.Millisecond})
	add(t, l, 50)
	require.Eventually(t, func() bool { return packed(dir) }, 20*time.Second, 10*time.Millisecond)
	outcomes, _ := about(t, dir)
	require.Empty(t, outcomes)
	require.NoError(t, os.Remove(filepath.Join(dir, segment.Segment{Number: 3, Packed: true}.Name())))
	require.Eventually(t, func() bool {
		outcomes, _ := about(t, dir)
		return slices.Contains(outcomes, OutcomeLost)
	}, 20*time.Second, 10*time.Millisecond)
	_, details := about(t, dir)
	assert.Equal(t, []string{"00000003.jsonl was removed or renamed"}, details)
}

// TestPackStops checks that closing a log does not wait for the compression of large segments.
func TestPackStops(t *testing.T) {
	stop := make(chan struct{})
	close(stop)
	assert.ErrorIs(t, packTo(io.Discard, bytes.NewReader([]byte("x\n")), stop), errStopped)
}
