package attack

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// TestAttackForkStorm: a fork bomb in a sandbox, and then the daemon is killed.
// Nothing survives it, and the next daemon goes on.
func TestAttackForkStorm(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"storm": "limits: {pids: 64, memory: 256MiB}", "calm": ""})
	h.Put("scopefs.yaml", "grace: 0s\n") // else the storm lives on, as TestTakeOverRun has it
	h.Start()
	harness.Plant(t, h.Scope("storm"), "f")
	daemons := []int{h.Cmd.Process.Pid}
	mark := "SCOPEFS_STORM=" + filepath.Base(h.Base)
	for _, bomb := range []string{
		`bomb() { bomb | bomb & }; bomb; exec sleep 1000`,
		`for i in $(seq 30); do (setsid bash -c 'exec 3<f; while :; do echo x >>log; sleep 0.1; done' &); done; exec sleep 1000`,
	} {
		cmd := exec.Command(harness.Program, "--base", h.Base, "run", "-T", "-e", mark, "storm", "--", "bash", "-c", bomb)
		require.NoError(t, cmd.Start())
		h.Eventually("the storm is there", func() bool { return marked(mark) > 20 })
		assert.LessOrEqual(t, marked(mark), 2*64, "one look meets processes that come and go")
		assert.Equal(t, "ok\n", h.Must("run", "-T", "calm", "--", "echo", "ok"), "the other agent lives")
		h.Kill()
		h.Eventually("every process of the storm is gone", func() bool { return marked(mark) == 0 })
		_ = cmd.Wait()
		h.Start()
		daemons = append(daemons, h.Cmd.Process.Pid)
		h.Eventually("both views are back", func() bool {
			list := h.PS()
			return len(list) == 2 && list[0].State == "mounted" && list[1].State == "mounted"
		})
		assert.Equal(t, []string{"ok", "ok"}, harness.HostOps(t, h.View("storm"), "read f", "write f"))
		assert.Equal(t, "f\n", h.Must("run", "-T", "storm", "--", "sh", "-c", "ls f"))
	}
	assert.True(t, h.Recorded("storm", audit.Event{Event: audit.KindSandbox, Outcome: "started"}))
	seq := uint64(0)
	for _, e := range h.Events("") {
		assert.Greater(t, e.Seq, seq, "the log goes on")
		seq = e.Seq
	}
	h.Stop()
	for _, daemon := range daemons {
		h.Eventually("no control group is left", func() bool {
			one, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/scopefs-%d-*storm*", daemon))
			two, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/scopefs*/scopefs-%d-*storm*", daemon))
			return len(one)+len(two) == 0
		})
	}
}

// marked counts the processes that have a variable in their environment.
func marked(variable string) int {
	n := 0
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, at := range all {
		if text, err := os.ReadFile(at); err == nil && bytes.Contains(append([]byte{0}, text...), fmt.Append(nil, "\x00", variable, "\x00")) {
			n++
		}
	}
	return n
}
