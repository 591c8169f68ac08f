package limit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// took is how long something takes.
func took(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPace(100, 1000, nil)
		take := func(size int) time.Duration {
			return took(func() { assert.NoError(t, p.Wait(t.Context(), nil, size)) })
		}
		assert.Zero(t, take(600))
		assert.Zero(t, take(400))
		assert.Equal(t, time.Second, take(100))
		time.Sleep(time.Hour)
		assert.Zero(t, take(1000), "and no more for having waited long")
		assert.Equal(t, 10*time.Second, take(1000))

		// Several wait for all of them together.
		assert.Equal(t, 10*time.Second, took(func() {
			for range 10 {
				go func() { _ = p.Wait(t.Context(), nil, 100) }()
			}
			synctest.Wait()
			take(0)
		}))

		// A cancelled wait takes nothing; a caller that does not wait is charged later.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		assert.ErrorIs(t, p.Wait(ctx, nil, 1<<20), context.DeadlineExceeded)
		hurry := make(chan struct{})
		close(hurry)
		assert.Zero(t, took(func() { assert.NoError(t, p.Wait(t.Context(), hurry, 1000)) }))
		assert.Equal(t, 10*time.Second, take(100), "of which a second has passed")
	})
}

func TestPaceSpend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPace(100, 1000, func() { t.Error("Spend does not wait") })
		assert.Zero(t, took(func() {
			assert.EqualValues(t, 1000, p.Spend(0))
			assert.EqualValues(t, 400, p.Spend(600))
			assert.EqualValues(t, -100, p.Spend(500))
			assert.EqualValues(t, -1100, p.Spend(5000), "at most a full bucket")
		}))
		time.Sleep(12 * time.Second)
		assert.EqualValues(t, 100, p.Spend(0))
	})
}
