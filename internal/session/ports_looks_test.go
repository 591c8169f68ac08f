package session

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestLookAtTimes: what listens in a sandbox is looked at after 2 s, after 10 s and then each minute, also for a run of hours, and no more
// once the command or the sandbox has ended.
func TestLookAtTimes(t *testing.T) {
	for name, end := range map[string]func(stop context.CancelFunc, ended chan struct{}){
		"the command ends": func(stop context.CancelFunc, _ chan struct{}) { stop() },
		"the sandbox ends": func(_ context.CancelFunc, ended chan struct{}) { close(ended) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				ended, done := make(chan struct{}), make(chan struct{})
				began, at := time.Now(), []time.Duration(nil)
				go func() {
					defer close(done)
					lookAtTimes(ctx, ended, func() { at = append(at, time.Since(began)) })
				}()
				time.Sleep(3*time.Hour + time.Second)
				end(stop, ended)
				<-done
				assert.Equal(t, []time.Duration{2 * time.Second, 10 * time.Second, 70 * time.Second, 130 * time.Second}, at[:4])
				assert.Len(t, at, 2+3*60-1, "each minute after the tenth second")
				time.Sleep(time.Hour)
				assert.Len(t, at, 2+3*60-1, "none after the end")
			})
		})
	}
}
