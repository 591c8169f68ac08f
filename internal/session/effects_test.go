package session

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/audit"
)

// TestWatches: a watch says whether a process of its call or sandbox has asked to change something, once: of a call that has not, no view
// is asked. It has what was refused, and of what nobody watches everything may have happened.
func TestWatches(t *testing.T) {
	var w watches
	w.begin("call")
	w.begin("box")
	assert.Equal(t, watched{}, w.take("call", false), "nothing has happened")
	w.touch(origin{call: "other", session: "box"})
	assert.Equal(t, watched{}, w.take("call", false))
	assert.True(t, w.take("box", false).touched)
	assert.False(t, w.take("box", false).touched, "once")
	from := origin{call: "call", session: "box"}
	for n := range maxRefused + 3 {
		for range 2 {
			w.refuse(from, audit.Event{Op: "create", Path: fmt.Sprint(n % (maxRefused + 1)), Rule: "rule"})
		}
	}
	w.refuse(from, audit.Event{Op: "lookup", Path: "hidden"})
	seen := w.take("call", true)
	assert.Len(t, seen.refused, maxRefused)
	assert.Equal(t, 2, seen.more)
	assert.False(t, seen.touched)
	assert.True(t, w.take("call", true).touched, "nobody watches")
	assert.Len(t, w.take("box", false).refused, maxRefused)
}

// TestTold: the number of the last change grows alone, and the memory of calls is bounded.
func TestTold(t *testing.T) {
	var told told
	assert.Zero(t, told.of("a"))
	told.set("a", 2)
	told.set("a", 1)
	assert.EqualValues(t, 2, told.of("a"))
	for n := range 2 * maxTold {
		told.set(fmt.Sprint(n), 1)
	}
	assert.LessOrEqual(t, len(told.until), maxTold)
}
