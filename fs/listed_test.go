package fs

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestListers: one listing without attributes shows what a program does, however many threads
// it has. A thread that does not look entries up gets no further attributes.
func TestListers(t *testing.T) {
	list := func(s *listers, pid uint32, looks bool) bool {
		dir := &node{}
		whole := s.wantsPlus(pid, dir)
		if looks && !whole { // with attributes the kernel looks nothing up
			dir.looked.Add(1)
		}
		return whole
	}
	var s listers
	bare := 0
	for i := range uint32(200) {
		if !list(&s, 1+i%20, true) {
			bare++
		}
	}
	assert.Equal(t, 1, bare, "of twenty threads that look up, one has shown it")

	s = listers{}
	for i := range uint32(60) {
		assert.Equal(t, i < 20, list(&s, 1+i%20, false), "listing %d of threads that do not look up", i)
	}
	list(&s, 1, true)
	assert.True(t, list(&s, 1, true), "one of them begins to look up")

	s = listers{}
	bare = 0
	for range 10 * (probeEvery + 2) {
		if !list(&s, 1, true) {
			bare++
		}
	}
	assert.Equal(t, 10, bare, "one of 34")
	bare = 0
	for range probeEvery + 100 {
		if !list(&s, 1, false) {
			bare++
		}
	}
	assert.GreaterOrEqual(t, bare, 98, "it has stopped to look up")
}
