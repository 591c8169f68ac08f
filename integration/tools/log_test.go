package tools

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
)

// TestToolsLogFull: while the log cannot be written no call runs, and when it can
// be again they do.
func TestToolsLogFull(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "tools: [\"*\"]\npolicy: {tools: {ask: [make_dir]}}"})
	dir := harness.SmallState(t, h)
	harness.Plant(t, h.Scope("a"), "f")
	h.Start()
	u := h.Connect("a")
	id := u.Waits("make_dir", args{"path": "d"})
	late := u.Call("bash", args{"command": "until [ -e /tmp/go ]; do sleep 0.02; done; touch late; echo $?", "background": true})["process_id"]
	before := harness.Picture(t, h.Scope("a"))
	free := harness.Fill(t, h, dir)
	h.Eventually("calls are refused", func() bool {
		r, err := u.Send(u.Soon(), "stat", args{"path": "f"})
		require.NoError(t, err)
		return r.IsError
	})
	assert.Equal(t, tools.Denied, u.Fails("no_such_tool", args{}).Code, "the log keeps a reserve for denials")
	h.Eventually("the reserve is used up", func() bool { return u.Fails("no_such_tool", args{}).Code == tools.Unavailable })
	for tool, a := range map[string]args{
		"read_file": {"path": "f"}, "list_dir": {}, "bash": {"command": "touch ran; touch /tmp/ran"}, "write_file": {"path": "ran", "content": ""},
		"delete_file": {"path": "f"}, "move": {"from": "f", "to": "ran"}, "scope_info": {}, "process_stop": {"id": late}, "no_such_tool": {}, "make_dir": {"path": "d"},
	} {
		e := u.Fails(tool, a)
		assert.Equal(t, tools.Unavailable, e.Code, tool)
		assert.Contains(t, e.Message, "cannot be recorded", tool)
		assert.NotContains(t, e.Message+e.Hint, "space left", "that is the operator's")
	}
	assert.Equal(t, before, harness.Picture(t, h.Scope("a")))
	_, errs, code := h.Try("approvals", "approve", id)
	assert.Equal(t, 1, code, "nor can anything be approved: %s", errs)
	_, _, code = h.Try("call", "--agent", "a", "bash", "command=touch ran")
	assert.NotZero(t, code, "nor does a new client's call run")
	assert.NoFileExists(t, h.Scope("a", "ran"))

	free()
	h.Eventually("calls run again", func() bool {
		r, err := u.Send(u.Soon(), "stat", args{"path": "f"})
		require.NoError(t, err)
		return !r.IsError
	})
	assert.Equal(t, "no", u.Bash("touch /tmp/go; [ -e /tmp/ran ] || echo no"))
	h.Must("approvals", "approve", u.Waits("make_dir", args{"path": "d"}))
	u.Call("make_dir", args{"path": "d"})
	h.Stop()
	h.Unbroken()
}

// TestToolsEmbedded: without a daemon the tools work all the same, alike for root
// and others, and leave nothing.
func TestToolsEmbedded(t *testing.T) {
	for name, uid := range map[string]int{"root": 0, "user": 1234} {
		for how, end := range map[string]func(u *harness.User){
			"goodbye": func(u *harness.User) { _ = u.Session.Close() },
			"term":    func(u *harness.User) { _ = u.Process.Process.Signal(syscall.SIGTERM) },
			"killed":  func(u *harness.User) { _ = u.Process.Process.Kill() },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				m := harness.Embed(t, uid, map[string]string{"a": "view: {paths: {\"ro/**\": read}}"})
				harness.Plant(t, m.Scope("a"), "f", "ro/f")
				require.NoError(t, exec.Command("chown", "-R", strconv.Itoa(uid)+":"+strconv.Itoa(uid), m.Scope("a")).Run())
				cmd := m.Command("mcp", "--agent", "a")
				cmd.Stderr = os.Stderr
				u := m.Attach(nil, cmd, &mcp.CommandTransport{Command: cmd})
				assert.Equal(t, "f", u.Call("read_file", args{"path": "f"})["text"])
				u.Bash("echo made >made; cat f; ! touch ro/x")
				assert.FileExists(t, m.Scope("a", "made"))
				assert.Equal(t, tools.NotFound, u.Fails("read_file", args{"path": "../../etc/passwd"}).Code)
				u.Call("bash", args{"command": stray(harness.Seconds(7)), "background": true})
				m.Eventually("all five run", func() bool { return len(harness.Running("sleep", harness.Seconds(7))) == 5 })
				names, err := filepath.Glob(m.Tmp + "/*")
				require.NoError(t, err)
				require.NotEmpty(t, names)
				end(u)
				m.Eventually("nothing runs", func() bool {
					return len(harness.Running("sleep", harness.Seconds(7))) == 0 && len(harness.ProcessesOf(m.Base)) == 0
				})
				m.Clean()
				mounts, err := os.ReadFile("/proc/self/mounts")
				require.NoError(t, err)
				assert.NotContains(t, string(mounts), m.Base)
				assert.True(t, m.Recorded("a", audit.Event{Event: audit.KindFile, Path: "ro/x", Verdict: audit.Deny}))
				m.Unbroken()
			})
		}
	}
}

// TestToolsEmbeddedTwo: two at the same time are each for themselves, on the same
// files and the same log.
func TestToolsEmbeddedTwo(t *testing.T) {
	m := harness.Embed(t, 0, map[string]string{"a": "", "b": ""})
	t.Setenv("TMPDIR", m.Tmp)
	first, second, third := m.Connect("a"), m.Connect("a"), m.Connect("b")
	first.Bash("echo one >f")
	assert.Equal(t, "one\n", second.Call("read_file", args{"path": "f"})["text"])
	assert.Equal(t, tools.NotFound, third.Fails("read_file", args{"path": "f"}).Code)
	for _, u := range []*harness.User{first, second, third} {
		require.NoError(t, u.Session.Close())
	}
	m.Unbroken()
}
