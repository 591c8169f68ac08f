package audit

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/segment"
)

var noCtx = context.Background()

func open(t testing.TB, dir string, opts Options) *Log {
	t.Helper()
	l, err := Open(dir, opts)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.Close()) })
	return l
}

func add(t testing.TB, l *Log, n int) (last uint64) {
	t.Helper()
	for range n {
		var err error
		last, err = l.Append(noCtx, Event{Event: KindFile, Agent: "a", Op: "open", Path: "some/path"})
		require.NoError(t, err)
	}
	return last
}

// all reads a log and checks an invariant of every log: each number once, in order, from 1.
func all(t testing.TB, dir string) []Event {
	t.Helper()
	var events []Event
	for e, err := range Read(noCtx, dir, Filter{}, false) {
		require.NoError(t, err)
		require.Equal(t, uint64(len(events)+1), e.Seq)
		events = append(events, e)
	}
	return events
}

func storeOf(l *Log) *store { return l.disk.(*store) }

func first(dir string) string { return filepath.Join(dir, segment.Name(1)) }

func TestAppend(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "log")
	l := open(t, dir, Options{})
	before := time.Now()
	seq, err := l.Append(noCtx, Event{Seq: 99, Event: KindDaemon, Detail: "started"})
	require.NoError(t, err)
	assert.Equal(t, uint64(1), seq)
	assert.Equal(t, uint64(3), add(t, l, 2))
	assert.NoError(t, l.Err())

	events := all(t, dir)
	require.Len(t, events, 3)
	assert.Equal(t, "started", events[0].Detail)
	assert.False(t, events[0].Time.Before(before.Truncate(0)))
	assert.Equal(t, time.UTC, events[0].Time.Location())

	for name, want := range map[string]os.FileMode{dir: 0o700, first(dir): 0o600, filepath.Join(dir, lockName): 0o600} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		assert.Equal(t, want, info.Mode().Perm(), name)
	}
}

func TestUID(t *testing.T) {
	dir, mine := t.TempDir(), uint32(7)
	l := open(t, dir, Options{UID: func(uid uint32) uint32 { return uid + 1000 }})
	_, err := l.Append(noCtx, Event{Event: KindAgent, UID: &mine})
	require.NoError(t, err)
	require.NoError(t, l.AppendAll([]Event{{Event: KindFile, UID: &mine}, {Event: KindFile}}))
	got := all(t, dir)
	require.Len(t, got, 3)
	assert.Equal(t, uint32(1007), *got[0].UID)
	assert.Equal(t, uint32(1007), *got[1].UID)
	assert.Nil(t, got[2].UID)
	assert.Equal(t, uint32(7), mine, "the caller's event is unchanged")
}

func TestNumbersGoOnAcrossOpensAndSegments(t *testing.T) {
	dir := t.TempDir()
	for range 5 {
		l, err := Open(dir, Options{SegmentBytes: 1000})
		require.NoError(t, err)
		add(t, l, 20)
		require.NoError(t, l.Close())
	}
	assert.Len(t, all(t, dir), 100)

	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	numbers, err := segment.List(root)
	require.NoError(t, err)
	require.Greater(t, len(numbers), 8)
	for i, seg := range numbers {
		assert.Equal(t, i+1, seg.Number)
		info, err := root.Stat(seg.Name())
		require.NoError(t, err)
		assert.LessOrEqual(t, info.Size(), int64(1000))
		assert.Equal(t, i < len(numbers)-1, info.Mode().Perm() == sealed, "all but the last are sealed")
	}
}

func TestCrashBetweenSealingAndTheNextSegment(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	add(t, l, 3)
	require.NoError(t, os.Chmod(first(dir), sealed))
	assert.Equal(t, uint64(4), add(t, l, 1), "seen by a log that is open")
	require.NoError(t, os.Chmod(filepath.Join(dir, segment.Name(2)), sealed))
	assert.Equal(t, uint64(5), add(t, open(t, dir, Options{}), 1), "and by one that opens")
	require.NoError(t, os.Chmod(filepath.Join(dir, segment.Name(3)), sealed))
	require.NoError(t, os.WriteFile(filepath.Join(dir, segment.Name(4)), nil, 0o600))
	assert.Equal(t, uint64(6), add(t, open(t, dir, Options{}), 1), "an empty last segment")
}

func TestTornEndIsCutAndTold(t *testing.T) {
	tests := map[string]struct{ garbage, detail string }{
		"half a line":        {`{"seq":4,"ti`, "12 bytes set aside in 00000001.jsonl.damaged"},
		"zeros":              {"\x00\x00\x00\x00", "4 bytes set aside in 00000001.jsonl.damaged"},
		"a hole in a line":   {"\x00\x00\x00\"}\n", "6 bytes set aside in 00000001.jsonl.damaged"},
		"a hole, then half":  {"\x00\x00\"}\n{\"seq\":6,", "14 bytes set aside in 00000001.jsonl.damaged"},
		"whole but no event": {"{}\n", "3 bytes set aside in 00000001.jsonl.damaged"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			running := open(t, dir, Options{})
			add(t, running, 3)
			tear := func() {
				f, err := os.OpenFile(first(dir), os.O_WRONLY|os.O_APPEND, 0)
				require.NoError(t, err)
				_, err = f.WriteString(tc.garbage)
				require.NoError(t, err)
				require.NoError(t, f.Close())
			}
			tear()
			open(t, dir, Options{})
			assert.Len(t, all(t, dir), 4, "told at once by who opens")
			tear()
			assert.Equal(t, uint64(6), add(t, running, 1), "and by who goes on when another died")
			events := all(t, dir)
			require.Len(t, events, 6)
			for _, i := range []int{3, 4} {
				assert.Equal(t, KindAudit, events[i].Event)
				assert.Equal(t, OutcomeTorn, events[i].Outcome)
				assert.Equal(t, tc.detail, events[i].Detail)
			}
		})
	}
}

func TestConcurrentAppend(t *testing.T) {
	dir := t.TempDir()
	a, b := open(t, dir, Options{SegmentBytes: 10000}), open(t, dir, Options{SegmentBytes: 20000})
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			if i%2 == 0 {
				add(t, a, 100)
			} else {
				add(t, b, 100)
			}
		})
	}
	wg.Wait()
	assert.Len(t, all(t, dir), 1600)
}

func TestAppendHeedsContext(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	l.own.turn <- struct{}{} // a long write is in progress
	got := make(chan error)
	go func() {
		_, err := l.Append(ctx, Event{Event: KindFile})
		got <- err
	}()
	cancel()
	require.ErrorIs(t, <-got, context.Canceled)
	<-l.own.turn
	assert.Equal(t, uint64(1), add(t, l, 1), "what was taken back is not written")
	_, err := l.Append(ctx, Event{Event: KindFile})
	require.ErrorIs(t, err, context.Canceled)
	assert.Len(t, all(t, dir), 1)
}

func TestClose(t *testing.T) {
	l, err := Open(t.TempDir(), Options{})
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	_, err = l.Append(noCtx, Event{Event: KindFile})
	assert.ErrorIs(t, err, os.ErrClosed)
}

func TestLockFileRemoved(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir, Options{})
	add(t, a, 1)
	require.NoError(t, os.Remove(filepath.Join(dir, lockName)))
	b := open(t, dir, Options{})
	add(t, b, 1)
	add(t, a, 1)
	assert.Len(t, all(t, dir), 3)
	held, err := storeOf(a).lock.Stat()
	require.NoError(t, err)
	other, err := storeOf(b).lock.Stat()
	require.NoError(t, err)
	assert.True(t, os.SameFile(held, other))
}

func TestFailedSyncIsTold(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{Sync: time.Hour, Retry: time.Hour})
	add(t, l, 1)
	store := storeOf(l)
	last := store.file
	r, w, err := os.Pipe() // fsync(2) of a pipe is EINVAL
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	store.file = w
	l.settle(store.sync(), 0)
	store.file = last
	require.ErrorIs(t, l.Err(), unix.EINVAL)
	_, err = l.Append(noCtx, Event{Event: KindFile})
	require.ErrorIs(t, err, unix.EINVAL)

	l.own.turn <- struct{}{}
	l.flush(&l.own, true)
	<-l.own.turn
	require.NoError(t, l.Err())
	events := all(t, dir)
	require.Len(t, events, 2)
	assert.Equal(t, OutcomeRecovered, events[1].Outcome)
	assert.Regexp(t, "^1 events refused: sync log: ", events[1].Detail)
}

// TestAppendAll: events of one call are together and in order, and numbers go on after them.
func TestAppendAll(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	const writers, each = 8, 30
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			var events []Event
			for i := range each {
				events = append(events, Event{Event: KindFile, Agent: string(rune('a' + w)), PID: i + 1})
			}
			assert.NoError(t, l.AppendAll(events))
			add(t, l, 1)
		})
	}
	wg.Wait()
	assert.NoError(t, l.AppendAll(nil))
	assert.EqualValues(t, writers*(each+1)+1, add(t, l, 1))
	var last Event
	for _, e := range all(t, dir) {
		if e.PID > 1 {
			assert.Equal(t, last.Agent, e.Agent)
			assert.Equal(t, last.PID+1, e.PID)
		}
		last = e
	}
	require.NoError(t, l.Close())
	assert.ErrorIs(t, l.AppendAll([]Event{{Event: KindFile}}), os.ErrClosed)
}
