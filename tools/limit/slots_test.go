package limit

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSlots(t *testing.T) {
	s := NewSlots(2)
	first, ok := s.Try()
	require.True(t, ok)
	second, err := s.Take(t.Context())
	require.NoError(t, err)
	_, ok = s.Try()
	assert.False(t, ok)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Take(ctx)
	assert.ErrorIs(t, err, context.Canceled)

	first()
	first() // frees it once
	third, err := s.Take(t.Context())
	require.NoError(t, err)
	_, ok = s.Try()
	assert.False(t, ok)
	second()
	third()

	var none *Slots
	release, ok := none.Try()
	assert.True(t, ok)
	release()
	release, err = none.Take(ctx)
	assert.NoError(t, err)
	release()
}

func TestBudget(t *testing.T) {
	var b Budget
	first, ok := b.Hold(6, 10)
	require.True(t, ok)
	_, ok = b.Hold(5, 10)
	assert.False(t, ok)
	second, ok := b.Hold(4, 10)
	require.True(t, ok)
	assert.EqualValues(t, 10, b.Held())
	first()
	second()
	assert.Zero(t, b.Held())
}
