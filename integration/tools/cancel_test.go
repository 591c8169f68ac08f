package tools

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// family is a command that sleeps, as does a child, one in a session of its own
// and one whose parent has ended; seconds tells them from others.
func family(seconds string) string {
	s := "sleep " + seconds
	return s + " & setsid sh -c 'setsid " + s + "; :' & (" + s + " &) ; sh -c '" + s + "; :'"
}

// stray is family, and one that has neither its session nor a parent: it may
// outlive the call, not the sandbox.
func stray(seconds string) string { return "setsid -f sleep " + seconds + "; " + family(seconds) }

// workersOf are the file workers in an agent's sandboxes.
func workersOf(h *harness.Host, agent string) (pids []int) {
	inits := h.Agent(agent).Sandboxes
	for _, pid := range harness.Running("scopefs-files", "/workspace") {
		for up := pid; up > 1; {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", up))
			if err != nil {
				break
			}
			fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
			if up, _ = strconv.Atoi(fields[1]); slices.Contains(inits, up) {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

// TestToolsCancel: a call that its client gives up ends with all that it runs.
func TestToolsCancel(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	u := h.Connect("a")
	kept := u.Call("bash", args{"command": "exec sleep " + harness.Seconds(9), "background": true})
	ctx, cancel := context.WithCancel(h.Soon())
	ended := u.Begin(ctx, "bash", args{"command": family(harness.Seconds(1))})
	h.Eventually("all four run", func() bool { return len(harness.Running("sleep", harness.Seconds(1))) == 4 })
	cancel()
	assert.ErrorIs(t, <-ended, context.Canceled)
	h.Eventually("none runs", func() bool { return len(harness.Running("sleep", harness.Seconds(1))) == 0 })
	h.Eventually("its end is recorded", func() bool { return len(h.Calls("a", "bash")) == 4 })
	assert.NotEqual(t, "ok", h.Last("a", "bash").Outcome)
	assert.Len(t, harness.Running("sleep", harness.Seconds(9)), 1, "what another call began goes on")
	u.Call("process_stop", args{"id": kept["process_id"]})
	assert.Equal(t, "still here", u.Bash("echo still here"))
}

// TestToolsTimeout: so does one whose time is over.
func TestToolsTimeout(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	u := h.Connect("a")
	out := u.Call("bash", args{"command": family(harness.Seconds(2)), "timeout_ms": 300})
	assert.Equal(t, true, out["timed_out"])
	h.Eventually("none runs", func() bool { return len(harness.Running("sleep", harness.Seconds(2))) == 0 })
	assert.Equal(t, "still here", u.Bash("echo still here"))
}

// TestToolsClientGone: when a client is gone, so are its sandbox and all that ran
// in it, however it went.
func TestToolsClientGone(t *testing.T) {
	need.Once(t)
	t.Parallel()
	h := harness.NewHost(t, map[string]string{"a": ""})
	for name, end := range map[string]func(u *harness.User){
		"killed":     func(u *harness.User) { _ = u.Process.Process.Kill() },
		"terminated": func(u *harness.User) { _ = u.Process.Process.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			other, u := h.Connect("a"), h.Connect("a")
			other.Bash("true")
			u.Call("bash", args{"command": stray(harness.Seconds(3)), "background": true})
			u.Begin(h.Soon(), "bash", args{"command": stray(harness.Seconds(3))})
			h.Eventually("all run", func() bool { return len(harness.Running("sleep", harness.Seconds(3))) == 10 })
			require.Len(t, h.Agent("a").Sandboxes, 2)
			end(u)
			h.Eventually("nothing of it runs", func() bool { return len(harness.Running("sleep", harness.Seconds(3))) == 0 })
			h.Eventually("its sandbox has ended", func() bool { return len(h.Agent("a").Sandboxes) == 1 })
			assert.Equal(t, "still here", other.Bash("echo still here"))
			require.NoError(t, other.Session.Close())
			h.Eventually("the other's as well", func() bool { return len(h.Agent("a").Sandboxes) == 0 })
		})
	}
	n := 0
	for _, e := range h.Calls("a", "bash") {
		if e.Outcome == "begin" {
			n++
		} else {
			n--
		}
	}
	assert.Zero(t, n, "every call has its end in the log")
}

// TestToolsDaemonStops: a daemon that is told to stop while calls run stops.
func TestToolsDaemonStops(t *testing.T) {
	t.Parallel() // its client waits for a minute at the end
	h := harness.NewHost(t, map[string]string{"a": ""})
	u := h.Connect("a")
	ended := u.Begin(h.Soon(), "bash", args{"command": stray(harness.Seconds(4))})
	h.Eventually("all run", func() bool { return len(harness.Running("sleep", harness.Seconds(4))) == 5 })
	began := time.Now()
	h.Stop()
	assert.Less(t, time.Since(began), 15*time.Second)
	assert.Error(t, <-ended)
	assert.Empty(t, harness.Running("sleep", harness.Seconds(4)))
	assert.Zero(t, h.Cmd.ProcessState.ExitCode())
	events := h.Calls("a", "bash")
	require.Len(t, events, 2, "the call has its end in the log")
	assert.Equal(t, events[0].Call, events[1].Call)
	assert.True(t, h.Recorded("", audit.Event{Event: audit.KindDaemon, Outcome: "stopped"}))
}

// TestToolsDaemonKilled: nothing of a call outlives a daemon that was killed, and
// the next daemon takes clients.
func TestToolsDaemonKilled(t *testing.T) {
	t.Parallel() // its client waits for a minute at the end
	h := harness.NewHost(t, map[string]string{"a": ""})
	u := h.Connect("a")
	ended := u.Begin(h.Soon(), "bash", args{"command": stray(harness.Seconds(8))})
	h.Eventually("all run", func() bool { return len(harness.Running("sleep", harness.Seconds(8))) == 5 })
	h.Kill()
	assert.Error(t, <-ended)
	h.Eventually("none runs", func() bool { return len(harness.Running("sleep", harness.Seconds(8))) == 0 })
	h.Start()
	assert.Equal(t, "here", h.Connect("a").Bash("echo here"))
}

// TestToolsDown: down ends an agent's clients, up lets new ones in.
func TestToolsDown(t *testing.T) {
	t.Parallel() // its client waits for a minute at the end
	h := harness.NewHost(t, map[string]string{"a": "", "b": ""})
	u, other := h.Connect("a"), h.Connect("b")
	ended := u.Begin(h.Soon(), "bash", args{"command": stray(harness.Seconds(5))})
	h.Eventually("all run", func() bool { return len(harness.Running("sleep", harness.Seconds(5))) == 5 })
	h.Must("down", "a")
	assert.Error(t, <-ended)
	assert.Empty(t, harness.Running("sleep", harness.Seconds(5)))
	_, errs, code := h.Try("call", "--agent", "a", "stat", "path=.")
	assert.Equal(t, 1, code)
	assert.Equal(t, "scopefs: \"a\" is not mounted: scopefs up a\n", errs)
	assert.Equal(t, "here", other.Bash("echo here"))
	h.Must("up", "a")
	assert.Equal(t, "here", h.Connect("a").Bash("echo here"))
}

// TestToolsKilled: whatever of an agent is killed while calls run, the next call
// works.
func TestToolsKilled(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	harness.Plant(t, h.Scope("a"), "f")
	for name, victim := range map[string]func() []int{
		"the view":        func() []int { return []int{h.Agent("a").ViewPID} },
		"the sandbox":     func() []int { return h.Agent("a").Sandboxes },
		"the file worker": func() []int { return workersOf(h, "a") },
	} {
		t.Run(name, func(t *testing.T) {
			u := h.Connect("a")
			u.Call("read_file", args{"path": "f"})
			for range 3 {
				ended := u.Begin(h.Soon(), "bash", args{"command": "cat f; sleep 0.3; cat f >/dev/null"})
				var pids []int
				h.Eventually("it is there", func() bool { pids = victim(); return len(pids) > 0 && pids[0] > 1 })
				for _, pid := range pids {
					require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
				}
				reads := u.Begin(h.Soon(), "read_file", args{"path": "f"})
				<-reads // whatever came of it
				<-ended
				h.Eventually("a file can be read", func() bool { return <-u.Begin(h.Soon(), "read_file", args{"path": "f"}) == nil })
				h.Eventually("a command runs", func() bool { return <-u.Begin(h.Soon(), "bash", args{"command": "cat f"}) == nil })
				assert.Equal(t, "f", u.Call("read_file", args{"path": "f"})["text"])
				assert.Equal(t, "f", u.Bash("cat f"))
			}
			require.NoError(t, u.Session.Close())
			h.Eventually("nothing is left", func() bool { return len(h.Agent("a").Sandboxes) == 0 })
		})
	}
}
