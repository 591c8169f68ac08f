package driver

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
)

// closer counts its Close.
type closer struct{ closed atomic.Int32 }

func (c *closer) Close() error {
	c.closed.Add(1)
	return nil
}

// TestLazy: many calls open a store once, a failure is tried again, and a closed store
// stays closed.
func TestLazy(t *testing.T) {
	var opened atomic.Int32
	fail := true
	one := &closer{}
	l := &Lazy[*closer]{Open: func() (*closer, error) {
		opened.Add(1)
		if fail {
			return nil, errors.New("no")
		}
		return one, nil
	}}
	_, err := l.Get(t.Context())
	e, ok := errors.AsType[*tools.Error](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, tools.Unavailable, e.Code)
	assert.EqualError(t, e.Unwrap(), "no")
	_, ok = l.Opened()
	assert.False(t, ok)
	fail = false
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			got, err := l.Get(t.Context())
			assert.NoError(t, err)
			assert.Same(t, one, got)
		})
	}
	all.Wait()
	assert.EqualValues(t, 2, opened.Load())
	for range 2 {
		require.NoError(t, l.Close())
	}
	assert.EqualValues(t, 1, one.closed.Load())
	_, err = l.Get(t.Context())
	assert.ErrorContains(t, err, "closed")
	assert.EqualValues(t, 2, opened.Load())
}

// TestLazyStuck: nobody waits longer than their context for a store that does not open,
// one goroutine at most waits for it, and it is closed when it opens after all.
func TestLazyStuck(t *testing.T) {
	frozen := make(chan struct{})
	var opened atomic.Int32
	one := &closer{}
	l := &Lazy[*closer]{Open: func() (*closer, error) {
		opened.Add(1)
		<-frozen
		return one, nil
	}}
	for range 8 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		_, err := l.Get(ctx)
		cancel()
		assert.ErrorContains(t, err, "cannot be opened")
	}
	assert.EqualValues(t, 1, opened.Load())
	require.NoError(t, l.Close())
	close(frozen)
	require.Eventually(t, func() bool { return one.closed.Load() == 1 }, 20*time.Second, time.Millisecond)
}
