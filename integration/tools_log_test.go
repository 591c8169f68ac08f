package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/tools"
)

// TestToolsLogFull: while the log cannot be written no call runs, and when it can
// be again they do.
func TestToolsLogFull(t *testing.T) {
	h := layOut(t, map[string]string{"a": "tools: [\"*\"]\npolicy: {tools: {ask: [make_dir]}}"})
	dir := smallState(t, h)
	plant(t, h.scope("a"), "f")
	h.start()
	u := h.connect("a")
	id := u.waits("make_dir", args{"path": "d"})
	late := u.call("bash", args{"command": "until [ -e /tmp/go ]; do sleep 0.02; done; touch late; echo $?", "background": true})["process_id"]
	before := picture(t, h.scope("a"))
	free := fill(t, h, dir)
	h.eventually("calls are refused", func() bool {
		r, err := u.send(u.soon(), "stat", args{"path": "f"})
		require.NoError(t, err)
		return r.IsError
	})
	assert.Equal(t, tools.Denied, u.fails("no_such_tool", args{}).Code, "the log keeps a reserve for denials")
	h.eventually("the reserve is used up", func() bool { return u.fails("no_such_tool", args{}).Code == tools.Internal })
	for tool, a := range map[string]args{
		"read_file": {"path": "f"}, "list_dir": {}, "bash": {"command": "touch ran; touch /tmp/ran"}, "write_file": {"path": "ran", "content": ""},
		"delete_file": {"path": "f"}, "move": {"from": "f", "to": "ran"}, "scope_info": {}, "process_stop": {"id": late}, "no_such_tool": {}, "make_dir": {"path": "d"},
	} {
		e := u.fails(tool, a)
		assert.Equal(t, tools.Internal, e.Code, tool)
		assert.Contains(t, e.Message, "cannot be recorded", tool)
		assert.NotContains(t, e.Message+e.Hint, "space left", "that is the operator's")
	}
	assert.Equal(t, before, picture(t, h.scope("a")))
	_, errs, code := h.try("approvals", "approve", id)
	assert.Equal(t, 1, code, "nor can anything be approved: %s", errs)
	_, _, code = h.try("call", "--agent", "a", "bash", "command=touch ran")
	assert.NotZero(t, code, "nor does a new client's call run")
	assert.NoFileExists(t, h.scope("a", "ran"))

	free()
	h.eventually("calls run again", func() bool {
		r, err := u.send(u.soon(), "stat", args{"path": "f"})
		require.NoError(t, err)
		return !r.IsError
	})
	assert.Equal(t, "no", u.bash("touch /tmp/go; [ -e /tmp/ran ] || echo no"))
	h.must("approvals", "approve", u.waits("make_dir", args{"path": "d"}))
	u.call("make_dir", args{"path": "d"})
	h.stop()
	h.unbroken()
}

// TestToolsEmbedded: without a daemon the tools work all the same, alike for root
// and others, and leave nothing.
func TestToolsEmbedded(t *testing.T) {
	for name, uid := range map[string]int{"root": 0, "user": 1234} {
		for how, end := range map[string]func(u *user){
			"goodbye": func(u *user) { _ = u.session.Close() },
			"term":    func(u *user) { _ = u.process.Process.Signal(syscall.SIGTERM) },
			"killed":  func(u *user) { _ = u.process.Process.Kill() },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				m := embed(t, uid, map[string]string{"a": "view: {paths: {\"ro/**\": read}}"})
				plant(t, m.scope("a"), "f", "ro/f")
				require.NoError(t, exec.Command("chown", "-R", itoa(uid)+":"+itoa(uid), m.scope("a")).Run())
				cmd := m.scopefs("mcp", "--agent", "a")
				cmd.Stderr = os.Stderr
				u := m.attach(nil, cmd, &mcp.CommandTransport{Command: cmd})
				assert.Equal(t, "f", u.call("read_file", args{"path": "f"})["text"])
				u.bash("echo made >made; cat f; ! touch ro/x")
				assert.FileExists(t, m.scope("a", "made"))
				assert.Equal(t, tools.NotFound, u.fails("read_file", args{"path": "../../etc/passwd"}).Code)
				u.call("bash", args{"command": stray(seconds(7)), "background": true})
				m.eventually("all five run", func() bool { return len(running("sleep", seconds(7))) == 5 })
				names, err := filepath.Glob(m.tmp + "/*")
				require.NoError(t, err)
				require.NotEmpty(t, names)
				end(u)
				m.eventually("nothing runs", func() bool { return len(running("sleep", seconds(7))) == 0 && len(processesOf(m.base)) == 0 })
				m.clean()
				mounts, err := os.ReadFile("/proc/self/mounts")
				require.NoError(t, err)
				assert.NotContains(t, string(mounts), m.base)
				assert.True(t, m.recorded("a", audit.Event{Event: audit.KindFile, Path: "ro/x", Verdict: audit.Deny}))
				m.unbroken()
			})
		}
	}
}

// TestToolsEmbeddedTwo: two at the same time are each for themselves, on the same
// files and the same log.
func TestToolsEmbeddedTwo(t *testing.T) {
	m := embed(t, 0, map[string]string{"a": "", "b": ""})
	t.Setenv("TMPDIR", m.tmp)
	first, second, third := m.connect("a"), m.connect("a"), m.connect("b")
	first.bash("echo one >f")
	assert.Equal(t, "one\n", second.call("read_file", args{"path": "f"})["text"])
	assert.Equal(t, tools.NotFound, third.fails("read_file", args{"path": "f"}).Code)
	for _, u := range []*user{first, second, third} {
		require.NoError(t, u.session.Close())
	}
	m.unbroken()
}

// unbroken sees that no event is missing in the log.
func (h *host) unbroken() {
	h.t.Helper()
	for i, e := range h.events("") {
		assert.EqualValues(h.t, i+1, e.Seq)
	}
}
