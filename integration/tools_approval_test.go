package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/tools"
)

// waits calls a tool that must be approved, and returns the approval's id.
func (u *user) waits(tool string, a args) string {
	u.t.Helper()
	e := u.fails(tool, a)
	require.Equal(u.t, tools.ApprovalRequired, e.Code, "%+v", e)
	require.NotEmpty(u.t, e.ApprovalID)
	return e.ApprovalID
}

const askWrite = "policy: {tools: {ask: [write_file, edit_file, move, delete, bash]}}"

// TestApprovals: what the operator grants is one call, once.
func TestApprovals(t *testing.T) {
	h := newHost(t, map[string]string{"a": askWrite, "b": askWrite})
	plant(t, h.scope("a"), "f")
	u := h.connect("a")
	assert.Contains(t, u.list(), "bash", "what must be approved is listed")
	run := args{"command": "echo x >>ran"}
	id := u.waits("bash", run)
	assert.Equal(t, id, u.waits("bash", run), "to ask again is to ask once")
	assert.NoFileExists(t, h.scope("a", "ran"))

	assert.Contains(t, h.must("approvals"), id)
	assert.Regexp(t, `waits +a +bash +"echo x >>ran" `, h.must("approvals", "list"))
	var shown tools.Approval
	require.NoError(t, json.Unmarshal([]byte(h.must("approvals", "show", id)), &shown))
	assert.Equal(t, tools.Approval{ID: id, State: "waits", Agent: "a", Tool: "bash", Arguments: shown.Arguments, Rule: shown.Rule},
		tools.Approval{ID: shown.ID, State: shown.State, Agent: shown.Agent, Tool: shown.Tool, Arguments: shown.Arguments, Rule: shown.Rule})
	assert.JSONEq(t, `{"command": "echo x >>ran"}`, string(shown.Arguments))
	assert.Contains(t, shown.Rule, "ask")

	assert.Contains(t, h.must("approvals", "approve", id), "approved until")
	// It is of this agent and these arguments.
	other := u.waits("bash", args{"command": "echo y >>ran"})
	assert.NotEqual(t, id, other)
	assert.NotEqual(t, id, u.waits("bash", args{"command": "echo x >>ran", "cwd": "/tmp"}))
	assert.NotEqual(t, id, h.connect("b").waits("bash", run))
	assert.NoFileExists(t, h.scope("b", "ran"))
	// Of this agent it may be used by another client, and then it is used up.
	h.connect("a").call("bash", run)
	assert.Equal(t, "x\n", readAll(t, h.scope("a", "ran")))
	again := u.waits("bash", run)
	assert.NotEqual(t, id, again)
	_, errs, code := h.try("approvals", "approve", id)
	assert.Equal(t, 1, code)
	assert.Equal(t, "scopefs: "+tools.ErrNoApproval.Error()+"\n", errs)

	h.must("approvals", "deny", other)
	assert.Equal(t, tools.Denied, u.fails("bash", args{"command": "echo y >>ran"}).Code)
	_, _, code = h.try("approvals", "approve", other)
	assert.Equal(t, 1, code, "denied is denied")
	for _, outcome := range []string{"asked", "approved", "used", "denied"} {
		assert.True(t, h.recorded("a", audit.Event{Event: audit.KindApproval, Op: "bash", Outcome: outcome}), outcome)
	}

	// With other rules it is asked anew, also when it was granted before.
	h.must("approvals", "approve", again)
	h.define("a", askWrite+"\nrate_limits: {stat: 1/second}")
	h.must("reload")
	assert.NotEqual(t, again, u.waits("bash", run))
	assert.Equal(t, "x\n", readAll(t, h.scope("a", "ran")))
}

// TestApprovalsOfContent: what is granted for a file is granted for what was in
// it, whoever has changed it since.
func TestApprovalsOfContent(t *testing.T) {
	h := newHost(t, map[string]string{"a": askWrite})
	plant(t, h.scope("a"), "f=one")
	u := h.connect("a")
	write := args{"path": "f", "content": "two"}
	id := u.waits("write_file", write)
	assert.Contains(t, h.must("approvals", "show", id), `"content": "sha256:`)
	h.must("approvals", "approve", id)
	plant(t, h.scope("a"), "f=other")
	second := u.waits("write_file", write)
	assert.NotEqual(t, id, second)
	assert.Equal(t, "other", readAll(t, h.scope("a", "f")))
	plant(t, h.scope("a"), "f=one")
	u.call("write_file", write)
	assert.Equal(t, "two", readAll(t, h.scope("a", "f")))

	// What a file is moved over counts as well.
	move := args{"from": "f", "to": "g", "overwrite": true}
	plant(t, h.scope("a"), "g=old")
	id = u.waits("move", move)
	assert.Contains(t, h.must("approvals", "show", id), `"replaced": "sha256:`)
	assert.Regexp(t, `waits +a +move +"f -> g" `, h.must("approvals"))
	h.must("approvals", "approve", id)
	plant(t, h.scope("a"), "g=newer")
	assert.NotEqual(t, id, u.waits("move", move))
	assert.Equal(t, "newer", readAll(t, h.scope("a", "g")))
	plant(t, h.scope("a"), "g=old")
	u.call("move", move)
	assert.Equal(t, "two", readAll(t, h.scope("a", "g")))
	plant(t, h.scope("a"), "f=two")

	// So does what is in a directory.
	plant(t, h.scope("a"), "dir/sub/x=old")
	remove := args{"path": "dir", "recursive": true}
	id = u.waits("delete", remove)
	assert.Equal(t, id, u.waits("delete", remove))
	h.must("approvals", "approve", id)
	plant(t, h.scope("a"), "dir/sub/x=new")
	require.NoError(t, os.Chmod(h.scope("a", "dir/sub"), 0o300))
	waiting := h.must("approvals", "list")
	assert.NotEqual(t, tools.ApprovalRequired, u.fails("delete", remove).Code, "what is in it cannot be seen")
	assert.Equal(t, waiting, h.must("approvals", "list"))
	require.NoError(t, os.Chmod(h.scope("a", "dir/sub"), 0o755))
	id = u.waits("delete", remove)
	assert.FileExists(t, h.scope("a", "dir/sub/x"))
	h.must("approvals", "approve", id)
	u.call("delete", remove)
	assert.NoDirExists(t, h.scope("a", "dir"))

	// What does not exist yet has no content.
	write = args{"path": "new", "content": "x"}
	h.must("approvals", "approve", u.waits("write_file", write))
	u.call("copy", args{"from": "f", "to": "new"})
	u.waits("write_file", write)
	assert.Equal(t, "two", readAll(t, h.scope("a", "new")))

	// Another spelling of a path is another call.
	u.waits("edit_file", args{"path": "./f", "edits": []args{{"old_text": "two", "new_text": "x"}}})
}

// TestApprovalsOfAliases: a call under the name of a profile is one of the tool
// that it stands for.
func TestApprovalsOfAliases(t *testing.T) {
	h := newHost(t, map[string]string{"a": askWrite})
	u := h.connect("a", "--profile", "claude")
	run := args{"command": "echo x >ran"}
	h.must("approvals", "approve", u.waits("Bash", run))
	u.text("Bash", run)
	u.waits("Bash", run)
	assert.Equal(t, "x\n", readAll(t, h.scope("a", "ran")))
}

// TestApprovalsDown: what is approved is for the agent as it is: not for one that
// was taken down, nor with another network.
func TestApprovalsDown(t *testing.T) {
	h := newHost(t, map[string]string{"a": askWrite})
	run := args{"command": "echo ran >ran"}
	id := h.connect("a").waits("bash", run)
	h.must("approvals", "approve", id)
	h.must("down", "a")
	assert.Empty(t, h.must("approvals", "list"))
	h.must("up", "a")
	u := h.connect("a")
	second := u.waits("bash", run)
	assert.NotEqual(t, id, second)
	h.must("approvals", "approve", second)
	h.define("a", askWrite+"\nnetwork: host")
	h.must("reload")
	assert.NotEqual(t, second, u.waits("bash", run))
	assert.NoFileExists(t, h.scope("a", "ran"))
}

// TestApprovalsBounded: an agent cannot fill the operator's list.
func TestApprovalsBounded(t *testing.T) {
	h := newHost(t, map[string]string{"a": askWrite})
	u := h.connect("a")
	for i := range 64 {
		u.waits("bash", args{"command": itoa(i)})
	}
	assert.Equal(t, tools.RateLimited, u.fails("bash", args{"command": "one more"}).Code)
	assert.Equal(t, 65, strings.Count(h.must("approvals"), "\n"))
	assert.NotContains(t, h.must("approvals"), "\x1b")
}

// TestApprovalsShown: what an agent wrote does not steer the operator's terminal.
func TestApprovalsShown(t *testing.T) {
	h := newHost(t, map[string]string{"a": askWrite})
	u := h.connect("a")
	id := u.waits("bash", args{"command": "\x1b[2J\r\nevil"})
	u.waits("write_file", args{"path": "\x1b[31mred\n", "content": "\x9b"})
	for _, text := range []string{h.must("approvals"), h.must("approvals", "show", id), h.must("approvals", "--json"), h.must("audit")} {
		assert.NotContains(t, text, "\x1b")
		assert.NotContains(t, text, "\u009b")
		assert.NotContains(t, text, "\r")
	}
	assert.Equal(t, 3, strings.Count(h.must("approvals"), "\n"))
}

// Without a daemon nobody is there to approve.
func TestApprovalsHeadless(t *testing.T) {
	m := embed(t, 0, map[string]string{"a": askWrite})
	t.Setenv("TMPDIR", m.tmp)
	u := m.host.connect("a")
	e := u.fails("bash", args{"command": "touch ran"})
	assert.Equal(t, tools.Denied, e.Code)
	assert.Empty(t, e.ApprovalID)
	assert.NoFileExists(t, m.scope("a", "ran"))
	assert.Equal(t, audit.Deny, m.last("a", "bash").Verdict)
	u.call("stat", args{"path": "."})
}

// TestApprovalsOutOfReach: an agent finds no way to the operator's socket, with
// or without a network, nor to the sockets of other agents.
func TestApprovalsOutOfReach(t *testing.T) {
	h := newHost(t, map[string]string{"a": "", "net": "network: host"})
	hunt := `import os, socket, sys
names = set()
for line in open("/proc/net/unix"):
    words = line.split()
    if len(words) > 7: names.add(words[7])
for top, dirs, files in os.walk((sys.argv + ["/"])[2], followlinks=False):
    if top.startswith(("/proc", "/sys", "/usr", "/lib")): dirs[:] = []; continue
    for f in files + dirs:
        p = os.path.join(top, f)
        try:
            if (os.lstat(p).st_mode & 0o170000) == 0o140000: names.add(p)
        except OSError: pass
for pid in range(1, 400):
    for rest in ["run/control.sock", "run/mcp/a.sock"]: names.add("/proc/%d/root" % pid + sys.argv[1] + "/" + rest)
for rest in ["run/control.sock", "run/mcp/a.sock", "run/mcp/net.sock"]:
    names.add(sys.argv[1] + "/" + rest); names.add("/workspace/../../" + rest); names.add("../../" + rest)
for n in sorted(names):
    s = socket.socket(socket.AF_UNIX); s.settimeout(2)
    try: s.connect("\0" + n[1:] if n.startswith("@") else n)
    except OSError: continue
    try:
        s.sendall(b"GET /v1/approvals HTTP/1.1\r\nHost: x\r\n\r\n"); got = s.recv(100)
    except OSError: continue
    if b"HTTP/1.1" in got or b"jsonrpc" in got: print("reached", n, got)
print("looked at", len(names))
`
	for _, id := range []string{"a", "net"} {
		plant(t, h.scope(id), "hunt.py="+hunt)
		text := h.connect(id).bash("python3 hunt.py " + h.base)
		assert.NotContains(t, text, "reached", id)
		assert.Contains(t, text, "looked at", id)
	}
	// The operator is there at once.
	out, err := exec.Command("python3", h.scope("a", "hunt.py"), h.base, h.base+"/run").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "reached "+h.base+"/run/control.sock")
}

// What an agent asks for, however large, keeps the operator from nothing.
func TestApprovalsOfLongArgumentsAreListed(t *testing.T) {
	h := newHost(t, map[string]string{"a": askWrite, "b": askWrite})
	u := h.connect("a")
	long := strings.Repeat("x", 4_000_000)
	id := u.waits("write_file", args{"path": "1", "content": long})
	u.waits("write_file", args{"path": "2", "content": long})
	other := h.connect("b").waits("bash", args{"command": "true"})
	assert.Contains(t, h.must("approvals", "list"), other)
	assert.Contains(t, h.must("approvals", "show", id), long)
	assert.Contains(t, h.must("approvals", "approve", id), "approved until")
}
