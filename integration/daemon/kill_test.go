package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// sessionsOf returns the ids of an agent's sessions.
func sessionsOf(h *harness.Host, agent string) []string {
	for line := range strings.Lines(h.Must("ps")) {
		if f := strings.Fields(line); f[0] == agent && f[3] != "-" {
			return f[3 : len(f)-1]
		}
	}
	return nil
}

// signalTree sends a signal to a process and to all below it.
func signalTree(t *testing.T, pid int, sig unix.Signal) {
	t.Helper()
	require.NoError(t, unix.Kill(pid, sig))
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	require.NoError(t, err)
	for _, name := range names {
		text, _ := os.ReadFile(name)
		for _, word := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(word)
			require.NoError(t, err)
			signalTree(t, child, sig)
		}
	}
}

// TestKillSession: kill ends one command with all its processes, also when all of them are
// stopped, and the agent's other command goes on.
func TestKillSession(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "", "b": ""})
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	_, other := harness.StartTalking(t, m, "echo ready; until [ -e go ]; do sleep 0.02; done; echo still here; exec sleep "+harness.Seconds(1))
	other.Expect("ready")
	before := sessionsOf(h, "a")
	require.Len(t, before, 1)
	cmd, out := harness.StartTalking(t, m, "sleep "+harness.Seconds(2)+" & setsid sleep "+harness.Seconds(3)+" & echo ready; wait")
	out.Expect("ready")
	h.Eventually("its processes run", func() bool {
		return len(harness.Running("sleep", harness.Seconds(2))) == 1 && len(harness.Running("sleep", harness.Seconds(3))) == 1
	})
	all := sessionsOf(h, "a")
	require.Len(t, all, 2)
	assert.Equal(t, before[0], all[0], "the oldest first")
	_, pid, _ := strings.Cut(all[1], "-")
	init, err := strconv.Atoi(pid)
	require.NoError(t, err)
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", init))
	require.NoError(t, err)
	bwrap, err := strconv.Atoi(strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')'):]))[2])
	require.NoError(t, err)
	signalTree(t, bwrap, unix.SIGSTOP)

	for _, forged := range []string{"", "-", "*", "a", all[1] + " ", all[1] + "/", "../" + all[1], all[1][:len(all[1])-1], "c1-1", strconv.Itoa(init), strings.Repeat("x", 1<<16), "\x1b[2J"} {
		_, errs, code := h.Try("kill", forged)
		assert.NotZero(t, code, "%.20q", forged)
		assert.NotContains(t, errs, "\x1b")
	}
	require.Len(t, sessionsOf(h, "a"), 2, "a name that is no id ends nothing")

	began := time.Now()
	assert.Equal(t, all[1]+" of a: killed\n", h.Must("kill", all[1]))
	assert.Less(t, time.Since(began), 10*time.Second)
	assert.Empty(t, harness.Running("sleep", harness.Seconds(2)))
	assert.Empty(t, harness.Running("sleep", harness.Seconds(3)))
	_ = cmd.Wait()
	assert.Equal(t, 125, cmd.ProcessState.ExitCode())
	assert.Equal(t, before, sessionsOf(h, "a"))
	require.NoError(t, os.WriteFile(h.Scope("a", "go"), nil, 0o644))
	other.Expect("still here")
	found := false
	for _, e := range h.Events("a") {
		if e.Op == "kill" && e.Session == all[1] && e.Outcome == "killed" && e.UID != nil && *e.UID == 0 {
			found = true
		}
	}
	assert.True(t, found, "it is recorded with the operator")
	_, errs, code := h.Try("kill", all[1])
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, "scopefs ps has the ids")
}

// TestKillClient: kill disconnects one client, and ends its commands, its calls and what
// waits for approval. Another client of the agent keeps both.
func TestKillClient(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "policy: {tools: {ask: [write_file]}}"})
	connect := func(n int) (*harness.User, string) {
		u := h.Connect("a")
		u.Call("bash", args{"command": "sleep " + harness.Seconds(n), "background": true})
		u.Waits("write_file", args{"path": fmt.Sprint("f", n), "content": "x"})
		return u, h.Last("a", "write_file").Session
	}
	_, first := connect(4)
	second, name := connect(5)
	require.NotEqual(t, first, name)
	require.ElementsMatch(t, []string{first, name}, sessionsOf(h, "a"))
	assert.Equal(t, 2, strings.Count(h.Must("approvals", "--json"), `"tool": "write_file"`))
	waiting := second.Begin(h.Soon(), "bash", args{"command": "sleep " + harness.Seconds(6)})
	h.Eventually("the command runs", func() bool { return len(harness.Running("sleep", harness.Seconds(6))) == 1 })

	h.Must("kill", name)
	assert.Error(t, <-waiting)
	for n, want := range map[int]int{4: 1, 5: 0, 6: 0} {
		assert.Len(t, harness.Running("sleep", harness.Seconds(n)), want, n)
	}
	left := h.Must("approvals", "--json")
	assert.Contains(t, left, `"path": "f4"`)
	assert.NotContains(t, left, `"path": "f5"`)
	h.Eventually("the program of the client has connected again", func() bool { return len(sessionsOf(h, "a")) == 2 })
	assert.NotContains(t, sessionsOf(h, "a"), name)
	assert.True(t, h.Recorded("a", audit.Event{Op: "kill", Outcome: "killed"}))
}
