package bash

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// testLog is a log that a test writes to.
type testLog struct {
	*log
	t testing.TB
	b *budget
}

func newTestLog(t testing.TB, room int64) testLog {
	b := &budget{}
	b.free.Store(room)
	l, err := newLog(b)
	require.NoError(t, err)
	return testLog{l, t, b}
}

// write records bytes as collect does.
func (l *testLog) write(s stream, p []byte) {
	r, w, err := os.Pipe()
	require.NoError(l.t, err)
	defer r.Close()
	defer w.Close()
	for len(p) > 0 {
		n := min(len(p), chunkSize)
		_, err := w.Write(p[:n])
		require.NoError(l.t, err)
		for p = p[n:]; n > 0; {
			moved, err := l.streams[s].tape.Record(r, chunkSize)
			require.NoError(l.t, err)
			l.grow(s, moved)
			n -= moved
		}
	}
}

// reload replaces the log by what the next daemon has of it, when this daemon was killed: after it had recorded some more
// bytes, and before it had counted them.
func (l *testLog) reload(uncounted [2][]byte) {
	for s, p := range uncounted {
		r, w, err := os.Pipe()
		require.NoError(l.t, err)
		_, err = w.Write(p)
		require.NoError(l.t, err)
		w.Close()
		for err == nil {
			_, err = l.streams[s].tape.Record(r, chunkSize)
		}
		require.Equal(l.t, io.EOF, err)
		r.Close()
	}
	var files []*os.File
	for _, t := range l.tapes() {
		f, err := t.File()
		require.NoError(l.t, err)
		files = append(files, f)
	}
	l.discard()
	next, err := load(l.b, files)
	require.NoError(l.t, err)
	l.log = next
}

// TestLogPages compares random writes and reads with a byte slice as the model.
func TestLogPages(t *testing.T) {
	for name, room := range map[string]int64{"room": maxKept, "little room": 3 * chunkSize, "no room": 0} {
		t.Run(name, func(t *testing.T) {
			l := newTestLog(t, room)
			b := l.b
			var model [3][]byte
			r := rand.New(rand.NewPCG(1, 2))
			some := func() []byte {
				p := make([]byte, r.IntN(5000))
				for i := range p {
					p[i] = byte(r.Uint32())
				}
				return p
			}
			for range 3000 {
				p, s := some(), stream(r.IntN(2))
				l.write(s, p)
				model[s], model[both] = append(model[s], p...), append(model[both], p...)
				if r.IntN(100) != 0 {
					continue
				}
				l.setPosition(s, int64(len(p)))
				more := [2][]byte{some(), some()}
				last := s // the output of the last run is first
				if len(p) == 0 && len(model[both]) > 0 {
					last = l.runs[len(l.runs)-1].stream
				}
				l.reload(more)
				for _, s := range []stream{last, 1 - last} {
					model[s], model[both] = append(model[s], more[s]...), append(model[both], more[s]...)
				}
				require.Equal(t, int64(len(p)), l.position(s))
			}
			for range 3000 {
				s, n := stream(r.IntN(3)), 1+r.IntN(100<<10)
				off := r.Int64N(int64(len(model[s])) + 1)
				p, at := l.page(s, off, n)
				require.GreaterOrEqual(t, at, off)
				require.LessOrEqual(t, len(p), n)
				require.True(t, bytes.Equal(model[s][at:at+int64(len(p))], p), "stream %d offset %d got %d at %d", s, off, len(p), at)
				if at+int64(len(p)) < int64(len(model[s])) {
					require.NotEmpty(t, p)
				}
			}
			for s := stdout; s <= both; s++ { // read everything, page by page
				kept := 0
				for off := int64(0); off < l.length(s); {
					p, at := l.page(s, off, chunkSize)
					kept, off = kept+len(p), at+int64(len(p))
				}
				t.Logf("stream %d: %d of %d bytes kept", s, kept, len(model[s]))
				assert.GreaterOrEqual(t, kept, 2*chunkSize)
			}
			l.discard()
			assert.EqualValues(t, room, b.free.Load())
			l.grow(stdout, 4) // a late one
			p, _ := l.page(both, 0, 10)
			assert.Empty(t, p)
		})
	}
}

func TestLogIsBounded(t *testing.T) {
	l := newTestLog(t, maxKept)
	b := l.b
	for range 2 * maxRuns {
		l.write(stdout, []byte("o"))
		l.write(stderr, []byte("e"))
	}
	assert.LessOrEqual(t, cap(l.runs), 2*maxRuns)
	p, at := l.page(both, 0, 4)
	assert.Greater(t, at, int64(0), "the order of the oldest is lost")
	assert.Equal(t, "oeoe", string(p))
	p, _ = l.page(stdout, 0, 4)
	assert.Equal(t, "oooo", string(p), "they are not")
	l.write(stdout, make([]byte, 30<<20))
	assert.LessOrEqual(t, int64(maxKept)-b.free.Load(), int64(maxStream+chunkSize))
	for _, tape := range l.tapes() { // the memory is freed
		var st unix.Stat_t
		f, err := tape.File()
		require.NoError(t, err)
		require.NoError(t, unix.Fstat(int(f.Fd()), &st))
		assert.LessOrEqual(t, st.Blocks*512, int64(maxStream+2*chunkSize))
		f.Close()
	}
}

func TestClip(t *testing.T) {
	for name, room := range map[string]int64{"room": maxKept, "no room": 0} {
		t.Run(name, func(t *testing.T) {
			for _, n := range []int{0, 1, maxShown, maxShown + 1, 3*chunkSize - 1, 3 * chunkSize, 3*chunkSize + 1, 1 << 20} {
				l := newTestLog(t, room)
				all := bytes.Repeat([]byte("0123456789"), n/10+1)[:n]
				l.write(stderr, all)
				got, truncated, replaced := l.clip(stderr, maxShown)
				want := string(all)
				if n > maxShown {
					want = fmt.Sprintf("%s\n[%d bytes left out]\n%s", all[:maxShown/2], n-maxShown, all[n-maxShown/2:])
				}
				assert.Equal(t, want, got)
				assert.Equal(t, n > maxShown, truncated)
				assert.Zero(t, replaced)
			}
		})
	}
	l := newTestLog(t, maxKept)
	l.write(stdout, []byte("x"))
	l.write(stdout, bytes.Repeat([]byte("€"), maxShown))
	_, truncated, replaced := l.clip(stdout, maxShown)
	assert.True(t, truncated)
	assert.Zero(t, replaced, "characters that were cut")
}

func TestTrim(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "a": "a", "aé": "aé", "a\xc3": "a", "a\xe2\x82": "a", "a\xf0\x9d\x84": "a", "a\xff": "a\xff", "\x80\x80\x80\x80": "\x80\x80\x80\x80",
	} {
		assert.Equal(t, want, string(trimEnd([]byte(in))), "%q", in)
	}
	for in, want := range map[string]string{"": "", "a": "a", "\xa9a": "a", "\x82\xaca": "a", "\x80\x80\x80\x80\x80": "\x80\x80\x80\x80\x80"} {
		assert.Equal(t, want, string(trimStart([]byte(in))), "%q", in)
	}
}
