package daemon

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/session"
)

// TestWithin: a stop that waits for a disk without an answer is not waited for.
func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Daemon{Shared: agent.Shared{Shared: session.Shared{Host: &account.Host{}}}}
		d.Logger = slog.New(slog.DiscardHandler)
		thaw, began := make(chan struct{}), time.Now()
		d.within(outsideTime, "streams", func() { <-thaw })()
		assert.Equal(t, outsideTime, time.Since(began))
		close(thaw)
		began = time.Now()
		d.within(outsideTime, "streams", func() { time.Sleep(time.Second) })()
		assert.Equal(t, time.Second, time.Since(began), "it waits for one that ends")
	})
}
