package streams

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/streams/wire"
)

// TestReportFlood: a receiver that refuses each event, or a process that it has taken over, does not fill the log, from which
// the events of agents would be removed.
func TestReportFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var recorded atomic.Int64
		var last atomic.Value
		s := &stream{
			Stream: config.Stream{Name: "x", Late: time.Hour}, idle: time.Now(), gaps: make(chan string, maxGaps),
			host: Host{Logger: slog.New(slog.DiscardHandler), Record: func(_ context.Context, e audit.Event) error {
				recorded.Add(1)
				last.Store(e.Detail)
				return nil
			}},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); s.watch(ctx) }()
		for range 600 { // one for each that was recorded, and more
			for range 5 {
				_, err := s.report(ctx, wire.Progress{Sent: 1, Gap: "the receiver refused 1 of the events 1 to 1"})
				assert.NoError(t, err)
			}
			time.Sleep(time.Second)
		}
		cancel()
		<-done
		assert.LessOrEqual(t, recorded.Load(), int64(30), "in 10 minutes")
		assert.GreaterOrEqual(t, recorded.Load(), int64(20))
		assert.Contains(t, last.Load(), "more", "those that are left out are counted")
	})
}

// TestReportLarge: what a receiver answers is kept in part, and without the terminal's control characters.
func TestReportLarge(t *testing.T) {
	s := &stream{idle: time.Now(), gaps: make(chan string, 1)}
	evil := "\x1b]0;owned\a" + strings.Repeat("e", 1<<20)
	_, err := s.report(t.Context(), wire.Progress{Error: evil, Gap: evil})
	assert.NoError(t, err)
	for _, text := range []string{s.status(time.Now()).Err, <-s.gaps} {
		assert.Less(t, len(text), 2<<10)
		assert.NotContains(t, text, "\x1b")
		assert.Contains(t, text, "eee")
	}
}
