package integration

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
)

// delegating is a host whose runner works until there is a file stop.
func delegating(t *testing.T, agents map[string]string) *host {
	h := layOut(t, agents)
	h.put("runner", "#!/bin/sh\ncat >/dev/null; echo x >>begun; until [ -e stop ]; do sleep 0.05; done; echo done\n")
	require.NoError(t, os.Chmod(h.base+"/runner", 0o755))
	h.put("scopefs.yaml", "runner: ["+h.base+"/runner]\nsandbox: {expose: ["+h.base+"/runner]}\n")
	h.start()
	return h
}

// TestDelegateBounds: an agent that delegates much leaves room for others.
func TestDelegateBounds(t *testing.T) {
	h := delegating(t, map[string]string{"a": "members: [b]", "b": "", "c": "members: [b]"})
	a := h.connect("a")
	task := args{"member": "b", "task": "dig"}
	for i := range 2 {
		a.begin(h.soon(), "delegate", task)
		h.eventually("it is at work", func() bool {
			text, _ := os.ReadFile(h.scope("b", "begun"))
			return len(text) == 2*(i+1)
		})
	}
	assert.Equal(t, tools.RateLimited, a.fails("delegate", task).Code)
	assert.Equal(t, tools.RateLimited, h.connect("a").fails("delegate", task).Code, "the agent's, not a client's")
	ended := h.connect("c").begin(h.soon(), "delegate", task)
	h.eventually("the other's, too", func() bool { return len(readAll(t, h.scope("b", "begun"))) == 6 })
	plant(t, h.scope("b"), "stop")
	assert.NoError(t, <-ended)
	h.eventually("there is room again", func() bool {
		r, err := a.send(h.soon(), "delegate", task)
		return err == nil && !r.IsError
	})
}

// TestDelegateDown: whom the operator took down no delegation brings back.
func TestDelegateDown(t *testing.T) {
	h := delegating(t, map[string]string{"a": "members: [b]", "b": ""})
	plant(t, h.scope("b"), "stop")
	a := h.connect("a")
	task := args{"member": "b", "task": "dig"}
	a.call("delegate", task)
	h.must("down", "b")
	e := a.fails("delegate", task)
	assert.Equal(t, tools.Denied, e.Code)
	assert.Contains(t, e.Message, `taken "b" down`)
	assert.Equal(t, "down", h.agent("b").State)
	assert.NoFileExists(t, h.door("b"))
	h.must("up", "b")
	a.call("delegate", task)
}
