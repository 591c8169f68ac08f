package integration

import (
	"context"
	"os"
	"testing"
	"time"
)

// TestDelegateNarrowed: what a member left running does not go on when its caller
// may not write any more.
func TestDelegateNarrowed(t *testing.T) {
	h := delegating(t, "", map[string]string{"a": "tools: ['*']\nmembers: [b]", "b": "tools: ['*']"})
	a := h.connect("a")
	ctx, cancel := context.WithCancel(h.soon())
	ended := a.begin(ctx, "delegate", args{"member": "b", "task": "scopefs call bash command='while :; do date +%N >tick; sleep 0.1; done'"})
	tick := func() string {
		text, _ := os.ReadFile(h.scope("b", "tick"))
		return string(text)
	}
	h.eventually("it writes", func() bool { return tick() != "" })
	h.define("a", "tools: ['*']\nmembers: [b]\nview: {access: read}")
	h.must("reload")
	h.eventually("it writes no more", func() bool {
		was := tick()
		time.Sleep(time.Second)
		return was == tick()
	})
	cancel()
	<-ended
}
