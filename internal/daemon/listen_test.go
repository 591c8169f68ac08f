package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/scope"
)

// TestServeAt: an address that cannot be had is tried again at growing intervals, and is in Agents meanwhile.
func TestServeAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Daemon{}
		d.Logger = slog.New(slog.DiscardHandler)
		taken := errors.New("taken")
		var free atomic.Bool
		var tries []time.Time
		stopped := 0
		wait := d.serveAt(t.Context(), "http", func() (func(), error) {
			if free.Load() {
				return func() { stopped++ }, nil
			}
			tries = append(tries, time.Now())
			return nil, taken
		})
		require.Len(t, d.listening.failures(), 1)
		assert.ErrorIs(t, d.listening.failures()[0], taken)
		time.Sleep(time.Hour)
		synctest.Wait()
		last := time.Duration(0)
		for i := range len(tries) - 1 {
			pause := tries[i+1].Sub(tries[i])
			assert.GreaterOrEqual(t, pause, last)
			assert.LessOrEqual(t, pause, longListenPause)
			last = pause
		}
		assert.Equal(t, longListenPause, last)
		free.Store(true)
		time.Sleep(longListenPause)
		synctest.Wait()
		assert.Empty(t, d.listening.failures())
		assert.Zero(t, stopped)
		wait()
		assert.Equal(t, 1, stopped)

		ctx, cancel := context.WithCancel(t.Context())
		wait = d.serveAt(ctx, "metrics", func() (func(), error) { return nil, errors.New("taken") })
		cancel()
		wait()
	})
}

// TestTokenEnds: a token names its end, which nobody without the key can change, and nothing is served after it. One in which
// no end is written has the end of all that earlier releases made.
func TestTokenEnds(t *testing.T) {
	now := time.Now()
	later, before := now.Add(time.Hour), now.Add(-time.Second)
	a := agent.New(&session.Shared{}, "a")
	for name, c := range map[string]struct {
		token  string
		oldEnd time.Time
		ok     bool
		ends   time.Time
		status int
	}{
		"before its end":                {token: token([]byte("key"), "a", later), ok: true, ends: later, status: http.StatusOK},
		"after its end":                 {token: token([]byte("key"), "a", before), ok: true, ends: before, status: http.StatusUnauthorized},
		"with another end":              {token: strings.Replace(token([]byte("key"), "a", before), ".", ".9", 1)},
		"with a sign":                   {token: strings.Replace(token([]byte("key"), "a", later), ".", ".+", 1)},
		"of another key":                {token: token([]byte("other"), "a", later)},
		"of an earlier release":         {token: oldToken([]byte("key"), "a"), oldEnd: later, ok: true, ends: later, status: http.StatusOK},
		"of an earlier release, ended":  {token: oldToken([]byte("key"), "a"), oldEnd: before, ok: true, ends: before, status: http.StatusUnauthorized},
		"whose end was cut off":         {token: "a." + strings.SplitN(token([]byte("key"), "a", later), ".", 3)[2], oldEnd: later},
		"of an earlier release, an end": {token: strings.Replace(oldToken([]byte("key"), "a"), ".", ".9999999999.", 1), oldEnd: later},
	} {
		t.Run(name, func(t *testing.T) {
			h := &httpFace{d: &Daemon{agents: map[scope.ID]*agent.Agent{"a": a}}, key: []byte("key"), oldEnd: c.oldEnd, patience: time.Minute}
			r := httptest.NewRequest(http.MethodGet, "/mcp", nil)
			r.Header.Set("Authorization", "Bearer "+c.token)
			_, ends, ok := h.whose(r)
			require.Equal(t, c.ok, ok)
			if !ok {
				return
			}
			assert.Equal(t, c.ends.Unix(), ends.Unix())
			w := httptest.NewRecorder()
			h.bounded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				until, limited := r.Context().Deadline()
				assert.True(t, limited, "a stream ends with its token")
				assert.Equal(t, ends, until)
			})).ServeHTTP(w, r)
			assert.Equal(t, c.status, w.Code)
			if c.status == http.StatusUnauthorized {
				assert.Regexp(t, `^the token of a ended 20.*: make another with scopefs token a\n$`, w.Body.String())
				assert.Equal(t, `Bearer error="invalid_token"`, w.Header().Get("WWW-Authenticate"))
			}
		})
	}
}
