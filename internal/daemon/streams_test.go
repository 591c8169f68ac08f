package daemon

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestWithin: a stop that waits for a disk without an answer is not waited for.
func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Daemon{}
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
