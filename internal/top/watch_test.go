package top

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/tools/approvals"
)

// TestTypedAhead: a key decides about no call that was not there when it was typed.
func TestTypedAhead(t *testing.T) {
	for _, key := range []byte("ynasp") {
		w := &watch{out: io.Discard, shown: approvals.Approval{ID: "x"}, since: time.Now()}
		assert.NotPanics(t, func() { assert.NoError(t, w.key(t.Context(), key)) }) // there is no client
		assert.Equal(t, "x", w.shown.ID)
		w.since = time.Now().Add(-typedAhead)
		assert.Panics(t, func() { _ = w.key(t.Context(), key) })
	}
}
