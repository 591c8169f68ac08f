package session

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// TestHoldResumed: a task whose runner works already does not wait for a slot, and frees no other task's.
func TestHoldResumed(t *testing.T) {
	var q taskQueues
	ended, end := context.WithCancel(t.Context())
	end()
	free, err := q.hold(t.Context(), 1, "b", 1, false)
	require.NoError(t, err)
	for _, id := range []scope.ID{"a", "b"} {
		resumed, err := q.hold(ended, 1, id, 1, true)
		require.NoError(t, err, id)
		resumed()
	}
	_, err = q.hold(ended, 1, "a", 1, false)
	assert.ErrorIs(t, err, context.Canceled, "the others wait")
	free()
	free, err = q.hold(t.Context(), 1, "a", 1, true)
	require.NoError(t, err)
	_, err = q.hold(ended, 1, "b", 1, false)
	assert.ErrorIs(t, err, context.Canceled, "for it, if it found one")
	free()
	free, err = q.hold(t.Context(), 1, "b", 1, false)
	require.NoError(t, err)
	free()
}
