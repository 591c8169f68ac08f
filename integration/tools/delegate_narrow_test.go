package tools

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestDelegateNarrowed: what a member left running does not go on when its caller
// may not write any more.
func TestDelegateNarrowed(t *testing.T) {
	h := harness.Delegating(t, "", map[string]string{"a": "tools: ['*']\nmembers: [b]", "b": "tools: ['*']"})
	a := h.Connect("a")
	ctx, cancel := context.WithCancel(h.Soon())
	ended := a.Begin(ctx, "delegate", args{"member": "b", "task": "scopefs call bash command='while :; do date +%N >tick; sleep 0.1; done'"})
	tick := func() string {
		text, _ := os.ReadFile(h.Scope("b", "tick"))
		return string(text)
	}
	h.Eventually("it writes", func() bool { return tick() != "" })
	h.Define("a", "tools: ['*']\nmembers: [b]\nview: {access: read}")
	h.Must("reload")
	h.Eventually("it writes no more", func() bool {
		was := tick()
		time.Sleep(time.Second)
		return was == tick()
	})
	cancel()
	<-ended
}
