package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
)

// running are the host's processes with a command line that ends in these words.
func running(words ...string) (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		text, _ := os.ReadFile(name)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if strings.HasSuffix("\x00"+string(text), "\x00"+strings.Join(words, "\x00")+"\x00") && state(pid) != 'Z' {
			pids = append(pids, pid)
		}
	}
	return pids
}

// family is a command that sleeps, as does a child, one in a session of its own
// and one whose parent has ended; seconds tells them from others.
func family(seconds string) string {
	s := "sleep " + seconds
	return s + " & setsid sh -c 'setsid " + s + "; :' & (" + s + " &) ; sh -c '" + s + "; :'"
}

// stray is family, and one that has neither its session nor a parent: it may
// outlive the call, not the sandbox.
func stray(seconds string) string { return "setsid -f sleep " + seconds + "; " + family(seconds) }

// seconds is a time that nobody else on this machine sleeps.
func seconds(n int) string { return fmt.Sprintf("471%d.%d", n, os.Getpid()) }

// workers are the file workers in an agent's sandboxes.
func (h *host) workers(agent string) (pids []int) {
	inits := h.agent(agent).Sandboxes
	for _, pid := range running("file-worker") {
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

// begin calls a tool and does not wait; what comes of it will be sent.
func (u *user) begin(ctx context.Context, tool string, a args) chan error {
	ended := make(chan error, 1)
	go func() {
		r, err := u.send(ctx, tool, a)
		if err == nil && r.IsError {
			err = errors.New(said(r))
		}
		ended <- err
	}()
	return ended
}

// TestToolsCancel: a call that its client gives up ends with all that it runs.
func TestToolsCancel(t *testing.T) {
	h := newHost(t, map[string]string{"a": ""})
	u := h.connect("a")
	kept := u.call("bash", args{"command": "exec sleep " + seconds(9), "background": true})
	ctx, cancel := context.WithCancel(h.soon())
	ended := u.begin(ctx, "bash", args{"command": family(seconds(1))})
	h.eventually("all four run", func() bool { return len(running("sleep", seconds(1))) == 4 })
	cancel()
	assert.ErrorIs(t, <-ended, context.Canceled)
	h.eventually("none runs", func() bool { return len(running("sleep", seconds(1))) == 0 })
	h.eventually("its end is recorded", func() bool { return len(h.calls("a", "bash")) == 4 })
	assert.NotEqual(t, "ok", h.last("a", "bash").Outcome)
	assert.Len(t, running("sleep", seconds(9)), 1, "what another call began goes on")
	u.call("process_stop", args{"id": kept["process_id"]})
	assert.Equal(t, "still here", u.bash("echo still here"))
}

// TestToolsTimeout: so does one whose time is over.
func TestToolsTimeout(t *testing.T) {
	h := newHost(t, map[string]string{"a": ""})
	u := h.connect("a")
	out := u.call("bash", args{"command": family(seconds(2)), "timeout_ms": 300})
	assert.Equal(t, true, out["timed_out"])
	h.eventually("none runs", func() bool { return len(running("sleep", seconds(2))) == 0 })
	assert.Equal(t, "still here", u.bash("echo still here"))
}

// TestToolsClientGone: when a client is gone, so are its sandbox and all that ran
// in it, however it went.
func TestToolsClientGone(t *testing.T) {
	t.Parallel()
	h := newHost(t, map[string]string{"a": ""})
	for name, end := range map[string]func(u *user){
		"killed":     func(u *user) { _ = u.process.Process.Kill() },
		"terminated": func(u *user) { _ = u.process.Process.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			other, u := h.connect("a"), h.connect("a")
			other.bash("true")
			u.call("bash", args{"command": stray(seconds(3)), "background": true})
			u.begin(h.soon(), "bash", args{"command": stray(seconds(3))})
			h.eventually("all run", func() bool { return len(running("sleep", seconds(3))) == 10 })
			require.Len(t, h.agent("a").Sandboxes, 2)
			end(u)
			h.eventually("nothing of it runs", func() bool { return len(running("sleep", seconds(3))) == 0 })
			h.eventually("its sandbox has ended", func() bool { return len(h.agent("a").Sandboxes) == 1 })
			assert.Equal(t, "still here", other.bash("echo still here"))
			require.NoError(t, other.session.Close())
			h.eventually("the other's as well", func() bool { return len(h.agent("a").Sandboxes) == 0 })
		})
	}
	n := 0
	for _, e := range h.calls("a", "bash") {
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
	h := newHost(t, map[string]string{"a": ""})
	u := h.connect("a")
	ended := u.begin(h.soon(), "bash", args{"command": stray(seconds(4))})
	h.eventually("all run", func() bool { return len(running("sleep", seconds(4))) == 5 })
	began := time.Now()
	h.stop()
	assert.Less(t, time.Since(began), 15*time.Second)
	assert.Error(t, <-ended)
	assert.Empty(t, running("sleep", seconds(4)))
	assert.Zero(t, h.cmd.ProcessState.ExitCode())
	events := h.calls("a", "bash")
	require.Len(t, events, 2, "the call has its end in the log")
	assert.Equal(t, events[0].Call, events[1].Call)
	assert.True(t, h.recorded("", audit.Event{Event: audit.KindDaemon, Outcome: "stopped"}))
}

// TestToolsDaemonKilled: nothing of a call outlives a daemon that was killed, and
// the next daemon takes clients.
func TestToolsDaemonKilled(t *testing.T) {
	h := newHost(t, map[string]string{"a": ""})
	u := h.connect("a")
	ended := u.begin(h.soon(), "bash", args{"command": stray(seconds(8))})
	h.eventually("all run", func() bool { return len(running("sleep", seconds(8))) == 5 })
	h.kill()
	assert.Error(t, <-ended)
	h.eventually("none runs", func() bool { return len(running("sleep", seconds(8))) == 0 })
	h.start()
	assert.Equal(t, "here", h.connect("a").bash("echo here"))
}

// TestToolsDown: down ends an agent's clients, up lets new ones in.
func TestToolsDown(t *testing.T) {
	h := newHost(t, map[string]string{"a": "", "b": ""})
	u, other := h.connect("a"), h.connect("b")
	ended := u.begin(h.soon(), "bash", args{"command": stray(seconds(5))})
	h.eventually("all run", func() bool { return len(running("sleep", seconds(5))) == 5 })
	h.must("down", "a")
	assert.Error(t, <-ended)
	assert.Empty(t, running("sleep", seconds(5)))
	_, errs, code := h.try("call", "--agent", "a", "stat", "path=.")
	assert.Equal(t, 1, code)
	assert.Equal(t, "scopefs: \"a\" is not mounted: scopefs up a\n", errs)
	assert.Equal(t, "here", other.bash("echo here"))
	h.must("up", "a")
	assert.Equal(t, "here", h.connect("a").bash("echo here"))
}

// TestToolsKilled: whatever of an agent is killed while calls run, the next call
// works.
func TestToolsKilled(t *testing.T) {
	h := newHost(t, map[string]string{"a": ""})
	plant(t, h.scope("a"), "f")
	for name, victim := range map[string]func() []int{
		"the view":        func() []int { return []int{h.agent("a").ViewPID} },
		"the sandbox":     func() []int { return h.agent("a").Sandboxes },
		"the file worker": func() []int { return h.workers("a") },
	} {
		t.Run(name, func(t *testing.T) {
			u := h.connect("a")
			u.call("read_file", args{"path": "f"})
			for range 3 {
				ended := u.begin(h.soon(), "bash", args{"command": "cat f; sleep 0.3; cat f >/dev/null"})
				var pids []int
				h.eventually("it is there", func() bool { pids = victim(); return len(pids) > 0 && pids[0] > 1 })
				for _, pid := range pids {
					require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
				}
				reads := u.begin(h.soon(), "read_file", args{"path": "f"})
				<-reads // whatever came of it
				<-ended
				h.eventually("a file can be read", func() bool { return <-u.begin(h.soon(), "read_file", args{"path": "f"}) == nil })
				h.eventually("a command runs", func() bool { return <-u.begin(h.soon(), "bash", args{"command": "cat f"}) == nil })
				assert.Equal(t, "f", u.call("read_file", args{"path": "f"})["text"])
				assert.Equal(t, "f", u.bash("cat f"))
			}
			require.NoError(t, u.session.Close())
			h.eventually("nothing is left", func() bool { return len(h.agent("a").Sandboxes) == 0 })
		})
	}
}
