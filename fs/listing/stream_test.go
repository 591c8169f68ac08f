package listing

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestStreams: a listing that continues does not evict another listing.
func TestStreams(t *testing.T) {
	s := NewStreams(3)
	slow := &Stream{dir: 1, off: 1}
	s.Keep(slow)
	for range 10 {
		fast := &Stream{dir: 2, off: 2}
		s.Keep(fast)
		assert.Same(t, fast, s.Take(fast.dir, 2))
	}
	assert.Nil(t, s.Take(slow.dir, 2), "another offset")
	assert.Same(t, slow, s.Take(slow.dir, 1))
	assert.Nil(t, s.Take(slow.dir, 1), "it is in use")
}
