package outlive

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// TestCallsBounded: the requests of calls that are kept are bounded for an agent and for all, whatever daemons have left, and
// each is returned once, to its session.
func TestCallsBounded(t *testing.T) {
	dir := t.TempDir()
	open := func() *Web {
		w := &Web{dir: dir, idle: time.Hour, leaves: func() bool { return false }, logger: slog.New(slog.DiscardHandler), all: map[scope.ID]*Sessions{}}
		w.once.Do(func() {}) // it has no holder
		return w
	}
	files := func(s *Sessions) int {
		all, err := os.ReadDir(s.dir)
		require.NoError(t, err)
		return len(all)
	}
	name := func(n int) string { return fmt.Sprintf("%013d", n) }
	letters := func(text string) string {
		out := []byte(text)
		for i := range out {
			out[i] += 'a' - '0'
		}
		return string(out)
	}
	w := open()
	session, other, request := rand.Text(), rand.Text(), make([]byte, 60<<10)
	s := w.Of("a")
	assert.False(t, s.KeepCall(session, letters(name(0)), request), "there is no such session")
	s.Keep(session, []byte("{}"))
	s.Keep(other, []byte("{}"))
	for _, call := range []string{"", "..", "../../aaaaaaaaa", "AAAAAAAAAAAAA", letters(name(0)) + "a"} {
		assert.False(t, s.KeepCall(session, call, request), call)
	}
	n := 0
	for ; s.KeepCall(session, letters(name(n)), request); n++ {
	}
	assert.Equal(t, maxCalls>>16, n)
	assert.Equal(t, 2+n, files(s))
	assert.True(t, s.KeepCall(session, letters(name(0)), request), "it is kept already")

	// The next daemon.
	w = open()
	s = w.Of("a")
	s.expect()
	assert.False(t, s.KeepCall(session, letters(name(n)), request))
	_, ok := s.TakeCall(other, letters(name(0)))
	assert.False(t, ok)
	text, ok := s.TakeCall(session, letters(name(0)))
	assert.True(t, ok)
	assert.Equal(t, request, text)
	_, ok = s.TakeCall(session, letters(name(0)))
	assert.False(t, ok, "once")
	s.calls.expire()
	assert.Equal(t, 3, files(s), "the call that was resumed is kept, and the sessions")
	s.Drop(session)
	assert.Equal(t, 1, files(s))
	assert.Zero(t, s.calls.size)

	w.calls.Add(maxAllCalls - 3*fileBytes) // of other agents
	all := 0
	for _, id := range []scope.ID{"b", "c"} {
		s := w.Of(id)
		s.Keep(session, []byte("{}"))
		for n := 0; s.KeepCall(session, letters(name(n)), nil); n++ {
			all++
		}
	}
	assert.Equal(t, 3, all)
	for _, s := range w.all {
		s.end()
	}
	assert.EqualValues(t, maxAllCalls-3*fileBytes, w.calls.Load())
}

// TestExpectNothing: a daemon that was killed while it removed a session leaves no file that the next one keeps.
func TestExpectNothing(t *testing.T) {
	w := &Web{dir: t.TempDir(), idle: time.Hour, logger: slog.New(slog.DiscardHandler), all: map[scope.ID]*Sessions{}}
	w.once.Do(func() {}) // it has no holder
	s, session := w.Of("a"), rand.Text()
	s.Keep(session, []byte("{}"))
	for _, name := range []string{contextFile(session), contextFile(rand.Text()), ".next", "x"} {
		require.NoError(t, os.WriteFile(filepath.Join(s.dir, name), []byte("[]"), 0o600))
	}
	s.expect()
	all, err := filepath.Glob(s.dir + "/*")
	require.NoError(t, err)
	assert.Equal(t, []string{filepath.Join(s.dir, session), filepath.Join(s.dir, contextFile(session))}, all)
	assert.Equal(t, []byte("[]"), s.TakeContext(session))
}
