package daemon

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// TestBaseFrozenDiskStop: the disk of the agents' directories is frozen, and a command, a file
// tool and a process of the host write to a view. SIGTERM ends the daemon, and the next one
// serves when the disk has thawed.
func TestBaseFrozenDiskStop(t *testing.T) {
	t.Parallel()
	h := harness.LayOut(t, map[string]string{"a": "tools: [\"*\"]", "b": ""})
	h.Timeout = 5 * time.Minute
	agents := filepath.Join(h.Base, "agents")
	d := newDisk(t, agents)
	for _, id := range []string{"a", "b"} {
		harness.Plant(t, h.Scope(id), "f", "g")
	}
	h.Start()
	u := h.Connect("a")
	u.Call("write_file", args{"path": "tool", "content": "x"})
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	cmd, out := harness.StartTalking(t, m, "exec 3>>f; echo ready; while :; do echo x >&3; echo x > g; done")
	out.Expect("ready")
	thaw := d.freeze()
	_ = u.Begin(h.Soon(), "write_file", args{"path": "tool", "content": "y"})
	host := harness.Role("ops")
	host.Dir = h.View("b")
	in, err := host.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, host.Start())
	_, err = in.Write([]byte("create new\n"))
	require.NoError(t, err)
	h.Eventually("the views wait for the disk", func() bool { return sandbox.Stuck(h.ViewPID("a")) && sandbox.Stuck(h.ViewPID("b")) })

	began := time.Now()
	require.NoError(t, h.Cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-h.Ended:
	case <-time.After(15 * time.Second): // a write that is never done kept it for 29 s, control groups of stuck processes for 12
		t.Error("the daemon waits for the disk")
	}
	t.Logf("SIGTERM on a frozen disk: ended after %v", time.Since(began))
	in.Close()
	_ = host.Wait() // its request was aborted
	thaw()
	_ = cmd.Wait()
	<-h.Ended
	assert.Zero(t, h.Mounted(h.Base))
	h.Start()
	assert.Equal(t, "mounted", h.Agent("a").State)
	assert.NoError(t, os.WriteFile(h.View("b", "after"), nil, 0o644))
	h.Stop()
}
