package spooled

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/internal/peer"
)

// allowed is an event that a view spools.
func allowed(path string) event.Event {
	return event.Event{Event: event.KindFile, Verdict: event.Allow, Op: "open", Rule: "default", RuleKind: "default", Path: path, PID: 7, UID: new(uint32(math.MaxUint32))}
}

// daemon is the daemon's end of a spool in memory.
type daemon struct {
	bytes.Buffer
	writes, drains, resets int
	use, silent            bool
	err                    error
	events                 []event.Event
}

func (d *daemon) Write(b []byte) (int, error) { d.writes++; return d.Buffer.Write(b) }

func (d *daemon) drain(reset bool) (use, answered bool, err error) {
	if d.silent || d.err != nil {
		return false, !d.silent, d.err
	}
	if d.drains++; reset {
		d.resets++
		events, _, err := Read(d.Bytes())
		d.events = append(d.events, events...)
		d.Reset()
		return d.use, true, err
	}
	return d.use, true, nil
}

func newDaemon() (*daemon, *Writer) {
	d := &daemon{use: true}
	s := New(d, d.drain)
	s.use.Store(true)
	return d, s
}

// TestSpooled: an event is one write, has the fields of the view's, and a time of its own.
func TestSpooled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the clock stands still
		d, s := newDaemon()
		paths := []string{"a", "", strings.Repeat("x", 100), "not\xffUTF-8\n\"", strings.Repeat("long", 1<<20)}
		for i, path := range paths {
			recorded, err := s.Record(allowed(path))
			assert.True(t, recorded)
			assert.NoError(t, err)
			assert.Equal(t, i+1, d.writes)
		}
		events, size, err := Read(d.Bytes())
		require.NoError(t, err)
		assert.Equal(t, d.Len(), size)
		assert.Equal(t, s.size, size)
		require.Len(t, events, len(paths))
		for i, e := range events {
			want := allowed(string(Cut(paths[i])))
			want.Decided = e.Decided
			assert.Equal(t, want, e)
			assert.True(t, time.Now().Add(time.Duration(i)).Equal(e.Decided))
		}
	})
}

// TestSpooledTorn: of a spool that ends anywhere, each whole event is read.
func TestSpooledTorn(t *testing.T) {
	d, s := newDaemon()
	var ends []int
	for range 3 {
		_, _ = s.Record(allowed("path"))
		ends = append(ends, d.Len())
	}
	for n := range d.Len() + 1 {
		events, size, err := Read(d.Bytes()[:n])
		require.NoError(t, err)
		whole := 0
		for _, end := range ends {
			if end <= n {
				whole++
				assert.GreaterOrEqual(t, size, end)
			}
		}
		assert.Len(t, events, whole)
		assert.LessOrEqual(t, size, n)
	}
}

// TestSpooledForged: what no view writes is an error; what was before it is read.
func TestSpooledForged(t *testing.T) {
	var good, head bytes.Buffer
	w := peer.NewWriter(&good, maxEvent, 0)
	_, err := write(w, allowed("before"), time.Now())
	require.NoError(t, err)
	for _, n := range [...]uint32{headSize, math.MaxUint32, 4, 4, 4} {
		_ = binary.Write(&head, binary.LittleEndian, n)
	}
	frame := func(parts ...string) []byte {
		var b bytes.Buffer
		all := make([][]byte, len(parts))
		for i, p := range parts {
			all[i] = []byte(p)
		}
		require.NoError(t, peer.NewWriter(&b, maxEvent, 0).Write(all...))
		return b.Bytes()
	}
	whole := strings.Repeat("\xff", headSize)
	for name, forged := range map[string][]byte{
		"huge":                  head.Bytes(),
		"text":                  []byte(strings.Repeat("text", 100)),
		"no operation":          frame(whole, "", "", "", ""),
		"another operation":     frame(whole, "exec", "", "", ""),
		"a short head":          frame(whole[1:], "open", "", "", ""),
		"a long head":           frame(whole+"x", "open", "", "", ""),
		"an operation with \\n": frame(whole, "open\n", "", "", ""),
	} {
		t.Run(name, func(t *testing.T) {
			events, size, err := Read(append(bytes.Clone(good.Bytes()), forged...))
			assert.Error(t, err)
			assert.Equal(t, good.Len(), size)
			assert.Len(t, events, 1)
		})
	}
	events, _, err := Read(frame(whole, "open", "r", "k", "p"))
	require.NoError(t, err)
	assert.Equal(t, event.Allow, events[0].Verdict)
	assert.Equal(t, event.KindFile, events[0].Event)
}

// TestSpoolBounded: a spool that is full waits for the daemon, and starts again.
func TestSpoolBounded(t *testing.T) {
	d, s := newDaemon()
	n := 0
	for ; d.resets < 3; n++ {
		recorded, err := s.Record(allowed(strings.Repeat("x", 1000)))
		require.True(t, recorded)
		require.NoError(t, err)
		require.Less(t, d.Len(), Max+2000)
	}
	assert.Len(t, d.events, n-1)
}

// TestSpoolRefused: what the spool does not take goes to the daemon, or is refused.
func TestSpoolRefused(t *testing.T) {
	fill := func(t *testing.T, s *Writer) {
		for s.size < Max {
			recorded, _ := s.Record(allowed(strings.Repeat("x", 10000)))
			require.True(t, recorded)
		}
	}
	t.Run("no spool", func(t *testing.T) {
		recorded, err := (*Writer)(nil).Record(allowed("p"))
		assert.False(t, recorded)
		assert.NoError(t, err)
	})
	t.Run("a denial", func(t *testing.T) {
		d, s := newDaemon()
		for _, verdict := range []event.Verdict{event.Deny, event.Violation, ""} {
			e := allowed("p")
			e.Verdict = verdict
			recorded, err := s.Record(e)
			assert.False(t, recorded)
			assert.NoError(t, err)
		}
		assert.Zero(t, d.Len())
	})
	t.Run("not permitted", func(t *testing.T) {
		d, s := newDaemon()
		fill(t, s)
		d.use = false
		recorded, err := s.Record(allowed("p"))
		assert.False(t, recorded)
		assert.NoError(t, err)
		recorded, _ = s.Record(allowed("p"))
		assert.False(t, recorded)
		s.use.Store(true)
		recorded, _ = s.Record(allowed("p"))
		assert.True(t, recorded)
	})
	t.Run("the log fails", func(t *testing.T) {
		d, s := newDaemon()
		fill(t, s)
		d.err = errors.New("the disk is full")
		recorded, err := s.Record(allowed("p"))
		assert.False(t, recorded)
		assert.ErrorIs(t, err, d.err)
		assert.False(t, s.use.Load())
		d.err = nil
		s.use.Store(true) // with the answer to the next event
		recorded, err = s.Record(allowed("p"))
		assert.True(t, recorded)
		assert.NoError(t, err)
	})
	t.Run("the daemon does not answer", func(t *testing.T) {
		d, s := newDaemon()
		fill(t, s)
		d.silent, d.err = true, errors.New("the daemon does not respond")
		_, err := s.Record(allowed("p"))
		assert.ErrorIs(t, err, d.err)
		d.silent, d.err = false, nil
		s.use.Store(true)
		before := d.Len()
		recorded, err := s.Record(allowed("p"))
		assert.False(t, recorded, "the daemon may empty the file at any time")
		assert.NoError(t, err)
		assert.Equal(t, before, d.Len())
	})
	t.Run("no space", func(t *testing.T) {
		f, err := os.Open("writer.go") // cannot be written to
		require.NoError(t, err)
		defer f.Close()
		d, _ := newDaemon()
		s := New(f, d.drain)
		s.use.Store(true)
		for range 2 {
			recorded, err := s.Record(allowed("p"))
			assert.False(t, recorded)
			assert.NoError(t, err)
		}
	})
}

// TestSpoolDrained: the daemon appends an event soon, and empties the file within a second.
// A spool without events costs nothing.
func TestSpoolDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		d := &daemon{use: true}
		s := New(d, func(reset bool) (bool, bool, error) {
			mu.Lock()
			defer mu.Unlock()
			return d.drain(reset)
		})
		s.use.Store(true)
		go s.Run(t.Context())
		counts := func() (drains, resets int) {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return d.drains, d.resets
		}
		time.Sleep(time.Hour)
		drains, _ := counts()
		assert.Zero(t, drains)
		for range 10 {
			recorded, _ := s.Record(allowed("p"))
			require.True(t, recorded)
		}
		time.Sleep(drainDelay)
		drains, resets := counts()
		assert.Equal(t, 1, drains)
		assert.Zero(t, resets)
		time.Sleep(resetTime)
		before, resets := counts()
		assert.LessOrEqual(t, before, 3) // the last two also of what an earlier one has taken
		assert.Equal(t, 1, resets)
		assert.Len(t, d.events, 10)
		time.Sleep(time.Hour)
		drains, _ = counts()
		assert.Equal(t, before, drains)
	})
}

// TestSpoolNextDaemon: until the next daemon has appended what it finds, a spool takes as much as without a daemon: no client waits.
func TestSpoolNextDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{use: true}
		next := make(chan struct{})
		s := New(d, func(reset bool) (bool, bool, error) {
			<-next
			return d.drain(reset)
		})
		s.use.Store(true)
		s.SetAlone(true)
		record := func() {
			recorded, err := s.Record(allowed(strings.Repeat("x", 1000)))
			require.NoError(t, err)
			require.True(t, recorded)
		}
		for range 2 * Max / 1000 {
			record()
		}
		s.SetAlone(false)
		go s.Run(t.Context())
		synctest.Wait()
		record()
		close(next)
		time.Sleep(2 * resetTime)
		synctest.Wait()
		assert.Equal(t, 1, d.resets)
		assert.Equal(t, Max, s.most())
	})
}
