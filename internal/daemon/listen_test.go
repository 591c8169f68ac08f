package daemon

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/session"
)

// TestServeAt: an address that cannot be had is tried again at growing intervals, and is in Agents meanwhile.
func TestServeAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Daemon{Shared: agent.Shared{Shared: session.Shared{Host: &account.Host{}}}}
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
