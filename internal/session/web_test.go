package session

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestWebEndsWithItsSessions: the client of HTTP requests, and its sandbox, do not stay when its sessions have ended.
func TestWebEndsWithItsSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		var sessions, ended atomic.Int32
		watch := func() {
			whenIdle(life, func() int { return int(sessions.Load()) }, func() { ended.Add(1) })
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
