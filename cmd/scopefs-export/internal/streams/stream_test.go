package streams

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/streams/wire"
)

// receiver takes what its test lets it take.
type receiver struct {
	mu    sync.Mutex
	fails int // calls that take nothing
	hangs bool
	seqs  []uint64
	most  int // of one call
}

func (r *receiver) Send(ctx context.Context, events []audit.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hangs {
		r.mu.Unlock()
		<-ctx.Done()
		r.mu.Lock()
		return ctx.Err()
	}
	if r.fails > 0 {
		r.fails--
		return errors.New("not now")
	}
	r.most = max(r.most, len(events))
	for _, e := range events {
		r.seqs = append(r.seqs, e.Seq)
	}
	return nil
}

func (r *receiver) Close() error { return nil }

func (r *receiver) got() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]uint64{}, r.seqs...)
}

// reports are what the daemon would have got.
type reports struct {
	mu   sync.Mutex
	all  []wire.Progress
	last wire.Progress
}

func (r *reports) take(_ context.Context, p wire.Progress) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all, r.last = append(r.all, p), p
	return nil
}

func (r *reports) gaps() (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.all {
		if p.Gap != "" {
			list = append(list, p.Gap)
		}
	}
	return list
}

func (r *reports) now() wire.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

const testID = "scopefs.log/1"

// begin runs a stream until stop, which returns why it ended.
func begin(t *testing.T, log, dir, from string, senders ...Sender) (said *reports, stop func() error) {
	t.Helper()
	c, err := openCursor(dir, log, testID, from)
	require.NoError(t, err)
	said = &reports{}
	s := &stream{log: log, cursor: c, senders: senders, report: said.take}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		err := <-ended
		assert.NoError(t, s.close())
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return said, stop
}

func record(t *testing.T, l *audit.Log, n int) {
	for range n {
		_, err := l.Append(t.Context(), audit.Event{Event: audit.KindFile, Path: "x", Verdict: audit.Deny})
		require.NoError(t, err)
	}
}

func count(from, to uint64) (list []uint64) {
	for n := from; n <= to; n++ {
		list = append(list, n)
	}
	return list
}

const soon = time.Minute

// TestResume: a stream begins where it is told to, goes on behind what the receiver has, and tries again what it has not.
func TestResume(t *testing.T) {
	log, dir, other := t.TempDir(), t.TempDir(), t.TempDir()
	l, err := audit.Open(log, audit.Options{})
	require.NoError(t, err)
	defer l.Close()
	record(t, l, 5)
	r, late := &receiver{fails: 2}, &receiver{}
	said, stop := begin(t, log, dir, config.FromStart, r)
	_, stopLate := begin(t, log, other, config.FromNow, late)
	require.Eventually(t, func() bool { return len(r.got()) == 5 }, soon, time.Millisecond)
	require.Eventually(t, func() bool { return said.now() == wire.Progress{Sent: 5} }, soon, time.Millisecond)
	failed := false
	for _, p := range said.all {
		failed = failed || p.Error == "not now" && p.Sent == 0 && !p.Oldest.IsZero()
	}
	assert.True(t, failed, "%+v", said.all)
	record(t, l, 2000)
	require.Eventually(t, func() bool { return len(late.got()) == 2000 }, soon, time.Millisecond)
	assert.ErrorIs(t, stopLate(), context.Canceled)
	assert.Equal(t, count(6, 2005), late.got())
	require.Eventually(t, func() bool { return said.now() == wire.Progress{Sent: 2005} }, soon, time.Millisecond)
	assert.ErrorIs(t, stop(), context.Canceled)
	assert.LessOrEqual(t, late.most, batchSize)

	record(t, l, 3)
	again := &receiver{}
	_, stop = begin(t, log, dir, config.FromNow, again)
	require.Eventually(t, func() bool { return len(again.got()) == 3 }, soon, time.Millisecond)
	assert.ErrorIs(t, stop(), context.Canceled)
	assert.Equal(t, count(2006, 2008), again.got())

	_, err = os.ReadFile(filepath.Join(dir, cursorName))
	require.NoError(t, err)
	c, err := openCursor(dir, log, "scopefs.log/another", config.FromNow)
	require.NoError(t, err)
	assert.Equal(t, position{Log: "scopefs.log/another"}, c.at, "another log begins at its start")
	_, err = openCursor(dir, log, testID, config.FromNow)
	assert.ErrorIs(t, err, errBusy)
	c.close()
	c, err = openCursor(dir, log, testID, config.FromNow)
	require.NoError(t, err)
	require.NoError(t, c.move(1<<40))
	c.close()
	restored := &receiver{}
	_, stop = begin(t, log, dir, config.FromNow, restored)
	record(t, l, 3)
	require.Eventually(t, func() bool { return len(restored.got()) == 3 }, soon, time.Millisecond, "an older copy of the log was restored")
	assert.ErrorIs(t, stop(), context.Canceled)
	require.NoError(t, os.WriteFile(filepath.Join(dir, cursorName), []byte("{"), 0o600))
	_, err = openCursor(dir, log, testID, config.FromNow)
	assert.ErrorContains(t, err, "remove it, and the stream begins anew")
}

// TestTwoSenders: a sender that has a batch does not get it again because another one failed.
func TestTwoSenders(t *testing.T) {
	log, dir := t.TempDir(), t.TempDir()
	l, err := audit.Open(log, audit.Options{})
	require.NoError(t, err)
	defer l.Close()
	record(t, l, 5)
	first, second := &receiver{}, &receiver{fails: 3}
	said, _ := begin(t, log, dir, config.FromStart, first, second)
	require.Eventually(t, func() bool { return said.now() == wire.Progress{Sent: 5} }, soon, time.Millisecond)
	assert.Equal(t, count(1, 5), first.got())
	assert.Equal(t, count(1, 5), second.got())
}

// TestHangs: a receiver that hangs stops the reader, not the log, and a stream that ends does not wait for it. What the log
// removes meanwhile is counted once.
func TestHangs(t *testing.T) {
	log, dir := t.TempDir(), t.TempDir()
	l, err := audit.Open(log, audit.Options{SegmentBytes: 4 << 10})
	require.NoError(t, err)
	defer l.Close()
	record(t, l, 5)
	hangs := &receiver{hangs: true}
	said, stop := begin(t, log, dir, config.FromStart, hangs)
	require.Eventually(t, func() bool { return !said.now().Oldest.IsZero() }, soon, time.Millisecond)
	record(t, l, 3000)
	assert.ErrorIs(t, stop(), context.Canceled)

	c, err := openCursor(dir, log, testID, config.FromStart)
	require.NoError(t, err)
	require.NoError(t, c.move(5))
	c.close()
	for _, pattern := range []string{"00000001.jsonl*", "00000002.jsonl*", "00000003.jsonl*"} { // as retention does
		names, err := filepath.Glob(filepath.Join(log, pattern))
		require.NoError(t, err)
		for _, name := range names {
			require.NoError(t, os.Remove(name))
		}
	}
	first := uint64(0)
	for e, err := range audit.Read(t.Context(), log, audit.Filter{}, false) {
		require.NoError(t, err)
		first = e.Seq
		break
	}
	require.Greater(t, first, uint64(6))
	r := &receiver{fails: 1}
	said, _ = begin(t, log, dir, config.FromStart, r)
	newest, err := audit.Last(log)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return said.now().Sent >= newest }, soon, time.Millisecond)
	assert.Equal(t, first, r.got()[0])
	if assert.Len(t, said.gaps(), 1) {
		assert.Contains(t, said.gaps()[0], "events, 6 to ")
	}
}
