package audit

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit/segment"
)

func TestReadFilters(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	for _, e := range []Event{
		{Event: KindFile, Agent: "a", Verdict: Allow},
		{Event: KindFile, Agent: "a", Verdict: Deny},
		{Event: KindFile, Agent: "b", Verdict: Violation},
		{Event: KindDaemon},
	} {
		_, err := l.Append(noCtx, e)
		require.NoError(t, err)
	}
	third := all(t, dir)[2].Time
	tests := map[string]struct {
		filter Filter
		want   []uint64
	}{
		"all":              {Filter{}, []uint64{1, 2, 3, 4}},
		"agent":            {Filter{Agent: "a"}, []uint64{1, 2}},
		"denied":           {Filter{Denied: true}, []uint64{2, 3}},
		"denied, of agent": {Filter{Agent: "b", Denied: true}, []uint64{3}},
		"since":            {Filter{Since: third}, []uint64{3, 4}},
		"in the future":    {Filter{Since: third.Add(time.Hour)}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []uint64
			for e, err := range Read(t.Context(), dir, tc.filter, false) {
				require.NoError(t, err)
				got = append(got, e.Seq)
			}
			assert.Equal(t, tc.want, got)
		})
	}
}

func TestReadGivesTheVeryBytes(t *testing.T) {
	dir := t.TempDir()
	add(t, open(t, dir, Options{SegmentBytes: 500}), 20)
	var got []byte
	for _, e := range all(t, dir) {
		got = append(append(got, e.Raw...), '\n')
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	require.NoError(t, err)
	var want []byte
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		want = append(want, text...)
	}
	assert.Equal(t, string(want), string(got))
}

func TestReadFollows(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seqs, last := make(chan uint64), make(chan error, 1)
	go func() {
		for e, err := range Read(ctx, dir, Filter{}, true) { // starts before the log exists
			if err != nil {
				last <- err
				return
			}
			seqs <- e.Seq
		}
	}()
	for round := range 3 {
		l, err := Open(dir, Options{SegmentBytes: 300})
		require.NoError(t, err)
		for i := range 8 { // both one segment at a time and many at once
			add(t, l, i)
			for j := range i {
				require.Equal(t, uint64(round*28+i*(i-1)/2+j+1), <-seqs)
			}
		}
		require.NoError(t, l.Close())
	}
	cancel()
	assert.ErrorIs(t, <-last, context.Canceled)
}

func TestReadWaitsForWholeLines(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(first(dir), []byte("{\"seq\":1}\n{\"seq\""), 0o600))
	assert.Len(t, all(t, dir), 1)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for e, err := range Read(ctx, dir, Filter{}, true) {
		require.NoError(t, err)
		if e.Seq == 2 {
			assert.Equal(t, `{"seq":2}`, string(e.Raw))
			break
		}
		// The writer dies. The next one removes the partial line and writes another.
		require.NoError(t, os.WriteFile(first(dir), []byte("{\"seq\":1}\n{\"seq\":2}\n"), 0o600))
	}
	require.NoError(t, ctx.Err())
}

func TestReadTellsDamage(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(first(dir), []byte("{\"seq\":1}\nwhat\n{\"seq\":3}\nhalf"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, segment.Name(3)), []byte("{\"seq\":4}\n"), 0o600))
	var good, bad [][]byte
	for e, err := range Read(t.Context(), dir, Filter{}, false) {
		if err != nil {
			bad = append(bad, e.Raw)
			assert.ErrorContains(t, err, segment.Name(1))
			continue
		}
		good = append(good, e.Raw)
	}
	assert.Equal(t, `{"seq":1} {"seq":3} {"seq":4}`, string(bytes.Join(good, []byte(" "))))
	assert.Equal(t, "what half", string(bytes.Join(bad, []byte(" "))))
}

func TestReadMissing(t *testing.T) {
	for _, err := range Read(t.Context(), filepath.Join(t.TempDir(), "none"), Filter{}, false) {
		assert.ErrorIs(t, err, os.ErrNotExist)
	}
}

// A reader never returns lines that a writer may still truncate.
func TestReadWaitsForTheGroupBeingWritten(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	add(t, l, 1)
	s := storeOf(l)
	s.mu.Lock()
	release, err := s.acquire()
	require.NoError(t, err)
	_, err = s.file.WriteAt([]byte("{\"seq\":2}\n"), s.size)
	require.NoError(t, err)
	got := make(chan int)
	go func() {
		n := 0
		for range Read(noCtx, dir, Filter{}, false) {
			n++
		}
		got <- n
	}()
	require.NoError(t, s.file.Truncate(s.size))
	release()
	s.mu.Unlock()
	assert.Equal(t, 1, <-got)
}

// TestReadRising: a reading that skips by times yields what one of everything does, wherever in a segment the time is, and reads less.
func TestReadRising(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{SegmentBytes: 1 << 20})
	long := strings.Repeat("x", 8000)
	for i := range 200 {
		_, err := l.Append(noCtx, Event{Event: KindFile, Agent: "a", Path: long, PID: i})
		require.NoError(t, err)
		if i%20 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	require.NoError(t, l.Close())
	every := all(t, dir)
	for i := range 202 {
		since := every[min(i, 199)].Time.Add(time.Duration(i/200*(i-200)) * time.Hour)
		var want, got []uint64
		for _, e := range every {
			if !e.Time.Before(since) {
				want = append(want, e.Seq)
			}
		}
		for e, err := range Read(t.Context(), dir, Filter{Since: since, Rising: true}, false) {
			require.NoError(t, err)
			got = append(got, e.Seq)
		}
		require.Equal(t, want, got, i)
	}
	text, err := os.ReadFile(filepath.Join(dir, segment.Name(1)))
	require.NoError(t, err)
	size := int64(len(text))
	assert.Greater(t, skip(bytes.NewReader(text), size, every[199].Time), size-2*chunkSize)
	assert.Zero(t, skip(bytes.NewReader(text), size, time.Time{}))
	assert.Zero(t, skip(bytes.NewReader(bytes.Repeat([]byte("not a line\n"), 1<<16)), 1<<19, every[0].Time))
}

// TestFollowerIsWoken: a reader that follows waits for the kernel to report a change of its segment. It looks by itself where the
// kernel reports none.
func TestFollowerIsWoken(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, segment.Name(1))
	require.NoError(t, os.WriteFile(name, nil, 0o600))
	f := follower{dir: dir}
	f.begin(filepath.Base(name))
	require.NotZero(t, f.watch, "an instance of inotify(7)")
	defer f.file.Close()
	require.NoError(t, os.WriteFile(name, []byte("{}\n"), 0o600))
	require.NoError(t, f.wait(t.Context(), true))
	assert.True(t, f.idle, "a line woke it")
	require.NoError(t, f.wait(t.Context(), false))
	assert.False(t, f.idle, "it expects another segment, and looks soon")
	require.NoError(t, f.wait(t.Context(), false))
	assert.False(t, f.idle, "nothing woke it: another host may have written")
	require.NoError(t, os.Chmod(name, sealed))
	require.NoError(t, f.wait(t.Context(), false))
	assert.True(t, f.idle, "the end of the segment woke it")
	f.begin("00000002.jsonl")
	assert.Zero(t, f.watch)
	require.NoError(t, f.wait(t.Context(), true), "without a watch it looks")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.begin(filepath.Base(name))
	for f.wait(ctx, true) == nil { // the end of the first watch is an event, too
		continue
	}
}
