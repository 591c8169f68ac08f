package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// TestTop is top on a terminal: a call is approved, one of two commands is killed, and the
// log of an agent is followed, all by keys.
func TestTop(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "policy: {tools: {ask: [write_file]}}\nview: {paths: {hidden: hide}}"})
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	require.NoError(t, os.WriteFile(filepath.Join(h.Scope("a"), "hidden"), nil, 0o644))
	_, first := harness.StartTalking(t, m, "echo ready; exec sleep "+harness.Seconds(21))
	first.Expect("ready")
	_, second := harness.StartTalking(t, m, "echo ready; cat hidden; exec sleep "+harness.Seconds(22))
	second.Expect("ready")
	u := h.Connect("a")
	id := u.Waits("write_file", map[string]any{"path": "approved \x1b[2J", "content": "x"})

	// Without a terminal: a line of JSON, or the table.
	var top struct {
		Sessions []struct {
			Session, Agent, Kind, Command string
			Memory                        int64 `json:"memory_bytes"`
		}
		Agents []struct{ Denials int64 }
	}
	require.NoError(t, json.Unmarshal([]byte(h.Must("top", "--once", "--json")), &top))
	require.Len(t, top.Sessions, 3)
	assert.Equal(t, "run", top.Sessions[0].Kind)
	assert.Contains(t, top.Sessions[0].Command, harness.Seconds(21))
	assert.Equal(t, "client", top.Sessions[2].Kind)
	assert.Positive(t, top.Sessions[0].Memory)
	assert.Positive(t, top.Agents[0].Denials)
	once := h.Must("top", "--once")
	assert.Contains(t, once, "  "+id+" ")
	assert.Contains(t, once, "  "+top.Sessions[1].Session+" ")
	assert.NotContains(t, once, "\x1b")
	_, errs, code := h.Try("top")
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, "use --once or --json")

	cmd := m.Command("top", "--interval", "1s")
	cmd.Env = append(cmd.Env, "TERM=xterm-256color")
	_, k := harness.OnTerminal(t, cmd, 60, 140)
	k.Expect(id)
	enter(k, "jj") // the agent, then the call
	enter(k, "\r")
	k.Expect("approve this call?")
	k.Expect("y approve once")
	enter(k, "y")
	h.Eventually("the call is approved", func() bool {
		return h.Recorded("a", audit.Event{Event: audit.KindApproval, Op: "write_file", Outcome: "approved"})
	})
	k.Expect("write_file of a: approved")
	u.Call("write_file", map[string]any{"path": "approved \x1b[2J", "content": "x"})
	h.Eventually("nothing waits", func() bool { return strings.TrimSpace(h.Must("approvals", "--json")) == "[]" })
	k.Expect("wait for approval: 0")

	enter(k, "jjj") // the agent, and the second command
	enter(k, "x")
	k.Expect("kill " + top.Sessions[1].Session + " of a?")
	enter(k, "y")
	h.Eventually("it is killed", func() bool { return len(harness.Running("sleep", harness.Seconds(22))) == 0 })
	assert.Len(t, harness.Running("sleep", harness.Seconds(21)), 1)

	enter(k, "kkkk")
	enter(k, "l")
	k.Expect("log of a")
	k.Expect("lookup hidden")
	enter(k, "q")
	k.Drain()
	enter(k, "q")
	require.NoError(t, cmd.Wait())
}

// TestTopWritten: top has what a session wrote to a disk, also by programs that have ended. What
// the process of a mediated view writes for it does not count again.
func TestTopWritten(t *testing.T) {
	for name, front := range map[string]string{"passthrough": "", "mediated": "view: {data: mediated}"} {
		t.Run(name, func(t *testing.T) {
			h := harness.NewHost(t, map[string]string{"a": front, "idle": ""})
			m := &harness.Way{Host: h, Tmp: t.TempDir()}
			const size = 2 << 20
			before := writtenBySelf(t)
			require.NoError(t, os.WriteFile(h.Scope("idle", "probe"), make([]byte, size), 0o644))
			least := writtenBySelf(t) - before - 64<<10 // with the directory; below 0 if the files are on no disk
			_, talk := harness.StartTalking(t, m, "dd if=/dev/zero of=f bs=64k count=32 2>/dev/null; echo ready; exec sleep "+harness.Seconds(23))
			talk.Expect("ready")
			type use struct {
				Agent   string
				Written int64 `json:"written_bytes"`
			}
			var top struct{ Sessions, Agents []use }
			require.NoError(t, json.Unmarshal([]byte(h.Must("top", "--once", "--json")), &top))
			require.Len(t, top.Sessions, 1)
			require.Len(t, top.Agents, 2)
			assert.GreaterOrEqual(t, top.Sessions[0].Written, least)
			assert.Less(t, top.Sessions[0].Written, int64(size+size/2))
			assert.Equal(t, top.Sessions[0].Written, top.Agents[0].Written)
			assert.Zero(t, top.Agents[1].Written, "the idle one")
		})
	}
}

// writtenBySelf returns what the kernel counted as written to disks by this process.
func writtenBySelf(t *testing.T) (n int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/io")
	require.NoError(t, err)
	_, number, _ := strings.Cut(string(text), "\nwrite_bytes: ")
	number, _, _ = strings.Cut(number, "\n")
	n, err = strconv.ParseInt(number, 10, 64)
	require.NoError(t, err)
	return n
}
