package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestRestartOutage measures a planned restart: how long after SIGTERM the next
// daemon answers a stat in a view, and a call through scopefs mcp that was there
// before. SCOPEFS_TEST_ROUNDS and SCOPEFS_TEST_AGENTS make it a measurement.
func TestRestartOutage(t *testing.T) {
	need.Once(t)
	agents := map[string]string{"a": ""}
	more := 4
	if text := os.Getenv("SCOPEFS_TEST_AGENTS"); text != "" {
		_, err := fmt.Sscan(text, &more)
		require.NoError(t, err)
	}
	for i := range more {
		agents["other-"+strconv.Itoa(i)] = ""
	}
	h := harness.LayOut(t, agents)
	h.Timeout = 10 * time.Minute
	h.Start()
	c := startBridge(h, "a")
	c.says(harness.Hello)
	require.Nil(t, c.answer("hello").Error)
	c.says(harness.Request(0, "bash", `{"command":"true"}`)) // there is a sandbox to end
	c.answer(0)
	var ended, stats, calls []time.Duration
	for i := 1; i <= rounds(2); i++ {
		began := time.Now()
		require.NoError(t, h.Cmd.Process.Signal(syscall.SIGTERM))
		<-h.Ended
		ended = append(ended, time.Since(began))
		seen := make(chan time.Duration, 1)
		go func() {
			for end := began.Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
				// By a process of its own, which may be killed if the view hangs.
				if exec.Command("stat", "-f", "-c", "%T", h.View("a")).Run() == nil && isFUSE(h.View("a")) {
					break
				}
			}
			seen <- time.Since(began)
		}()
		c.says(harness.Request(i, "stat", `{"path":"."}`))
		h.Launch()
		m := c.answer(i)
		calls = append(calls, time.Since(began))
		require.NotNil(t, m.Result, "%+v", m.Error)
		stats = append(stats, <-seen)
		h.Eventually("every view is mounted", func() bool {
			return !slices.ContainsFunc(h.PS(), func(a harness.Agent) bool { return a.State != "mounted" }) && len(h.PS()) == len(agents)
		})
	}
	for what, all := range map[string][]time.Duration{"the daemon has ended": ended, "stat in a view": stats, "call by scopefs mcp": calls} {
		slices.Sort(all)
		t.Logf("%d agents: from SIGTERM to %s: p50 %v, max %v (%d rounds)", len(agents), what, all[len(all)/2].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond), len(all))
		assert.Less(t, all[len(all)-1], 30*time.Second)
	}
}

// isFUSE reports whether a view is mounted at a path.
func isFUSE(path string) bool {
	var st syscall.Statfs_t
	return syscall.Statfs(path, &st) == nil && st.Type == 0x65735546 // FUSE_SUPER_MAGIC, statfs(2)
}
