package daemon

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestLogTasks: a member that floods the log in one task after the other writes no
// more than who has one: the clients of a task that has ended do not wait, so the
// next task does.
func TestLogTasks(t *testing.T) {
	need.Once(t)
	t.Parallel()
	h := harness.Delegating(t, "log: {agent_day: 1MiB}", map[string]string{"a": "tools: [delegate]\nmembers: [b]", "b": "tools: []"})
	var flood strings.Builder
	flood.WriteString(harness.Hello)
	for i := range 60 {
		flood.WriteString(harness.Request(i, "write_file", fmt.Sprintf(`{"path":"%0500d","content":""}`, i)))
	}
	a := h.Connect("a")
	task := "cat >flood <<'EOT'\n" + flood.String() + "EOT\n" +
		`for i in $(seq 30); do { cat flood; sleep 30; } | scopefs mcp >out$i 2>&1 & done
until grep -q serverInfo out1; do sleep 0.1; done; sleep 3`
	denied := func() (n int) {
		for _, e := range h.Events("b") {
			if e.Event == audit.KindCall && e.Verdict == audit.Deny {
				n++
			}
		}
		return n
	}
	a.Call("delegate", args{"member": "b", "task": task})
	first := denied()
	require.Greater(t, first, 500, "events of more than half a KiB: the day is used up")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	<-a.Begin(ctx, "delegate", args{"member": "b", "task": task})
	assert.Equal(t, first, denied())
}
