package pages

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestViewers: a device that opens all the streams that it can takes none from the operator, nor do four of them.
func TestViewers(t *testing.T) {
	l := newLive(nil)
	open := 0
	for i := range 4 {
		for range 2 * maxViewers {
			if _, _, ok := l.watch(fmt.Sprint("device ", i)); ok {
				open++
			}
		}
	}
	assert.Equal(t, 4*maxOfOne, open)
	assert.Len(t, l.viewers, maxViewers)
	for range 10 {
		events, _, ok := l.watch("")
		assert.True(t, ok)
		select {
		case <-events:
			assert.Fail(t, "closed")
		default:
		}
	}
	assert.Len(t, l.viewers, maxViewers)
}
