package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history"
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

// answering is a view that answers each request about its history so.
type answering struct {
	View
	text string
	err  error
}

func (v answering) History(context.Context, json.RawMessage) (json.RawMessage, error) {
	return json.RawMessage(v.text), v.err
}

// TestEffectsUnknown: an answer says why the changes are not known, in one line.
func TestEffectsUnknown(t *testing.T) {
	for want, v := range map[string]answering{
		"generation 1: it was given up\\x0ax": {err: errors.New("generation 1: it was given up\nx")},
		"the view's answer lacks it":          {text: "{}"},
	} {
		e, _ := effectsOf(t.Context(), v, history.Work{}, "")
		assert.Equal(t, "what changed is not known: "+want, e.Unknown)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e, _ := effectsOf(ctx, answering{err: ctx.Err()}, history.Work{}, "")
	assert.Equal(t, "what changed is not known: the view did not answer within 2s", e.Unknown)
}
