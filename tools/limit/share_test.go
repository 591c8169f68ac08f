package limit

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestShare: what was done already delays what comes, and callers that leave delay nobody.
func TestShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewShare(200*time.Millisecond, 100*time.Millisecond)
		wait := func(time time.Duration) func() {
			return func() { assert.NoError(t, s.Wait(t.Context(), time)) }
		}
		assert.Zero(t, took(wait(100*time.Millisecond)))
		assert.Equal(t, 100*time.Millisecond, took(wait(20*time.Millisecond)))
		assert.Equal(t, -40*time.Millisecond, s.Spend(40*time.Millisecond))
		assert.Equal(t, 300*time.Millisecond, took(wait(20*time.Millisecond)))
		assert.Equal(t, 5*time.Second, took(wait(time.Second)), "more than the burst")
		assert.Equal(t, -250*time.Millisecond, s.Spend(250*time.Millisecond))
		time.Sleep(1250 * time.Millisecond)

		gone, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() { assert.Error(t, s.Wait(gone, time.Second)) })
		}
		synctest.Wait()
		leave()
		all.Wait()
		assert.Equal(t, 100*time.Millisecond, took(wait(20*time.Millisecond)))

		var none *Share
		none.Spend(time.Hour)
		assert.Zero(t, took(func() { assert.NoError(t, none.Wait(t.Context(), time.Hour)) }))
	})
}
