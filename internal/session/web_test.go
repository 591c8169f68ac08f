package session

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools/mcp"
)

// TestWebEndsWithItsSessions: the client of HTTP requests, and its sandbox, do not stay when its sessions have ended.
func TestWebEndsWithItsSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		var sessions, ended atomic.Int32
		watch := func() {
			whenIdle(life, func() bool { return sessions.Load() > 0 }, func() { ended.Add(1) })
		}
		sessions.Store(1)
		go watch()
		time.Sleep(time.Hour)
		sessions.Store(0)
		time.Sleep(webIdle / 2)
		sessions.Store(1)
		time.Sleep(time.Hour)
		assert.Zero(t, ended.Load())
		sessions.Store(0)
		time.Sleep(2 * webIdle)
		assert.EqualValues(t, 1, ended.Load())
		go watch()
		time.Sleep(webIdle / 2)
		end()
		time.Sleep(2 * webIdle)
		assert.EqualValues(t, 1, ended.Load())
	})
}

// TestWebStaysWithItsRequests: the client of HTTP requests stays while clients come that make a session for each call, though no
// session is open when whenIdle looks.
func TestWebStaysWithItsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &client{face: &mcp.Face{}}
		a := &Agent{web: c, socket: &socket{}}
		var ended atomic.Bool
		go whenIdle(t.Context(), func() bool { return a.webBusy(0) }, func() { ended.Store(true) })
		time.Sleep(time.Second)
		for range 100 {
			_, err := a.WebFace(t.Context())
			require.NoError(t, err)
			time.Sleep(webIdle / 2)
		}
		assert.False(t, ended.Load())
		time.Sleep(2 * webIdle)
		assert.True(t, ended.Load())
	})
}
