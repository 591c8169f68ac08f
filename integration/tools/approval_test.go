package tools

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
)

// TestApprovals: what the operator grants is one call, once.
func TestApprovals(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": harness.AskWrite, "b": harness.AskWrite})
	harness.Plant(t, h.Scope("a"), "f")
	u := h.Connect("a")
	assert.Contains(t, u.List(), "bash", "what must be approved is listed")
	run := args{"command": "echo x >>ran"}
	id := u.Waits("bash", run)
	assert.Equal(t, id, u.Waits("bash", run), "to ask again is to ask once")
	assert.NoFileExists(t, h.Scope("a", "ran"))

	assert.Contains(t, h.Must("approvals"), id)
	assert.Regexp(t, `waits +a +bash +"echo x >>ran" `, h.Must("approvals", "list"))
	var shown approvals.Approval
	require.NoError(t, json.Unmarshal([]byte(h.Must("approvals", "show", id)), &shown))
	assert.Equal(t, approvals.Approval{ID: id, State: "waits", Agent: "a", Tool: "bash", Arguments: shown.Arguments, Rule: shown.Rule},
		approvals.Approval{ID: shown.ID, State: shown.State, Agent: shown.Agent, Tool: shown.Tool, Arguments: shown.Arguments, Rule: shown.Rule})
	assert.JSONEq(t, `{"command": "echo x >>ran"}`, string(shown.Arguments))
	assert.Contains(t, shown.Rule, "ask")

	assert.Contains(t, h.Must("approvals", "approve", id), "approved until")
	// It is of this agent and these arguments.
	other := u.Waits("bash", args{"command": "echo y >>ran"})
	assert.NotEqual(t, id, other)
	assert.NotEqual(t, id, u.Waits("bash", args{"command": "echo x >>ran", "cwd": "/tmp"}))
	assert.NotEqual(t, id, h.Connect("b").Waits("bash", run))
	assert.NoFileExists(t, h.Scope("b", "ran"))
	// Of this agent it may be used by another client, and then it is used up.
	h.Connect("a").Call("bash", run)
	assert.Equal(t, "x\n", harness.ReadAll(t, h.Scope("a", "ran")))
	again := u.Waits("bash", run)
	assert.NotEqual(t, id, again)
	_, errs, code := h.Try("approvals", "approve", id)
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "approval "+id+": approved, and used already by user 0, at ")

	h.Must("approvals", "deny", other)
	assert.Equal(t, tools.Denied, u.Fails("bash", args{"command": "echo y >>ran"}).Code)
	_, _, code = h.Try("approvals", "approve", other)
	assert.Equal(t, 1, code, "denied is denied")
	for _, outcome := range []string{"asked", "approved", "used", "denied"} {
		assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindApproval, Op: "bash", Outcome: outcome}), outcome)
	}

	// With other rules it is asked anew, also when it was granted before.
	h.Must("approvals", "approve", again)
	h.Define("a", harness.AskWrite+"\nrate_limits: {stat: 1/second}")
	h.Must("reload")
	assert.NotEqual(t, again, u.Waits("bash", run))
	assert.Equal(t, "x\n", harness.ReadAll(t, h.Scope("a", "ran")))
}

// TestApprovalsOfContent: what is granted for a file is granted for what was in
// it, whoever has changed it since.
func TestApprovalsOfContent(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": harness.AskWrite})
	harness.Plant(t, h.Scope("a"), "f=one")
	u := h.Connect("a")
	write := args{"path": "f", "content": "two"}
	id := u.Waits("write_file", write)
	assert.Contains(t, h.Must("approvals", "show", id), `"content": "sha256:`)
	h.Must("approvals", "approve", id)
	harness.Plant(t, h.Scope("a"), "f=other")
	second := u.Waits("write_file", write)
	assert.NotEqual(t, id, second)
	assert.Equal(t, "other", harness.ReadAll(t, h.Scope("a", "f")))
	harness.Plant(t, h.Scope("a"), "f=one")
	u.Call("write_file", write)
	assert.Equal(t, "two", harness.ReadAll(t, h.Scope("a", "f")))

	// What a file is moved over counts as well.
	move := args{"from": "f", "to": "g", "overwrite": true}
	harness.Plant(t, h.Scope("a"), "g=old")
	id = u.Waits("move", move)
	assert.Contains(t, h.Must("approvals", "show", id), `"replaced": "sha256:`)
	assert.Regexp(t, `waits +a +move +"f -> g" `, h.Must("approvals"))
	h.Must("approvals", "approve", id)
	harness.Plant(t, h.Scope("a"), "g=newer")
	assert.NotEqual(t, id, u.Waits("move", move))
	assert.Equal(t, "newer", harness.ReadAll(t, h.Scope("a", "g")))
	harness.Plant(t, h.Scope("a"), "g=old")
	u.Call("move", move)
	assert.Equal(t, "two", harness.ReadAll(t, h.Scope("a", "g")))
	harness.Plant(t, h.Scope("a"), "f=two")

	// So does what is in a directory.
	harness.Plant(t, h.Scope("a"), "dir/sub/x=old")
	remove := args{"path": "dir", "recursive": true}
	id = u.Waits("delete", remove)
	assert.Equal(t, id, u.Waits("delete", remove))
	h.Must("approvals", "approve", id)
	harness.Plant(t, h.Scope("a"), "dir/sub/x=new")
	require.NoError(t, os.Chmod(h.Scope("a", "dir/sub"), 0o300))
	waiting := h.Must("approvals", "list")
	assert.NotEqual(t, tools.ApprovalRequired, u.Fails("delete", remove).Code, "what is in it cannot be seen")
	assert.Equal(t, waiting, h.Must("approvals", "list"))
	require.NoError(t, os.Chmod(h.Scope("a", "dir/sub"), 0o755))
	h.Eventually("the view shows the mode, and with it the time of change", func() bool {
		info, err := os.Stat(h.View("a", "dir/sub"))
		return err == nil && info.Mode().Perm() == 0o755
	})
	id = u.Waits("delete", remove)
	assert.FileExists(t, h.Scope("a", "dir/sub/x"))
	h.Must("approvals", "approve", id)
	u.Call("delete", remove)
	assert.NoDirExists(t, h.Scope("a", "dir"))

	// What does not exist yet has no content.
	write = args{"path": "new", "content": "x"}
	h.Must("approvals", "approve", u.Waits("write_file", write))
	u.Call("copy", args{"from": "f", "to": "new"})
	u.Waits("write_file", write)
	assert.Equal(t, "two", harness.ReadAll(t, h.Scope("a", "new")))

	// Another spelling of a path is another call.
	u.Waits("edit_file", args{"path": "./f", "edits": []args{{"old_text": "two", "new_text": "x"}}})
}

// TestApprovalsOfAliases: a call under the name of a profile is one of the tool
// that it stands for.
func TestApprovalsOfAliases(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": harness.AskWrite})
	u := h.Connect("a", "--profile", "claude")
	run := args{"command": "echo x >ran"}
	h.Must("approvals", "approve", u.Waits("Bash", run))
	u.Text("Bash", run)
	u.Waits("Bash", run)
	assert.Equal(t, "x\n", harness.ReadAll(t, h.Scope("a", "ran")))
}

// TestApprovalsDown: what is approved is for the agent as it is: not for one that
// was taken down, nor with another network.
func TestApprovalsDown(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": harness.AskWrite})
	run := args{"command": "echo ran >ran"}
	id := h.Connect("a").Waits("bash", run)
	h.Must("approvals", "approve", id)
	h.Must("down", "a")
	assert.Empty(t, h.Must("approvals", "list"))
	h.Must("up", "a")
	u := h.Connect("a")
	second := u.Waits("bash", run)
	assert.NotEqual(t, id, second)
	h.Must("approvals", "approve", second)
	h.Define("a", harness.AskWrite+"\nnetwork: host")
	h.Must("reload")
	assert.NotEqual(t, second, u.Waits("bash", run))
	assert.NoFileExists(t, h.Scope("a", "ran"))
}

// TestApprovalsBounded: an agent cannot fill the operator's list.
func TestApprovalsBounded(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": harness.AskWrite})
	u := h.Connect("a")
	for i := range 64 {
		u.Waits("bash", args{"command": strconv.Itoa(i)})
	}
	assert.Equal(t, tools.RateLimited, u.Fails("bash", args{"command": "one more"}).Code)
	assert.Equal(t, 65, strings.Count(h.Must("approvals"), "\n"))
	assert.NotContains(t, h.Must("approvals"), "\x1b")
}

// TestApprovalsShown: what an agent wrote does not steer the operator's terminal.
func TestApprovalsShown(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": harness.AskWrite})
	u := h.Connect("a")
	id := u.Waits("bash", args{"command": "\x1b[2J\r\nevil"})
	u.Waits("write_file", args{"path": "\x1b[31mred\n", "content": "\x9b"})
	for _, text := range []string{h.Must("approvals"), h.Must("approvals", "show", id), h.Must("approvals", "--json"), h.Must("audit")} {
		assert.NotContains(t, text, "\x1b")
		assert.NotContains(t, text, "\u009b")
		assert.NotContains(t, text, "\r")
	}
	assert.Equal(t, 3, strings.Count(h.Must("approvals"), "\n"))
}

// Without a daemon nobody is there to approve.
func TestApprovalsHeadless(t *testing.T) {
	m := harness.Embed(t, 0, map[string]string{"a": harness.AskWrite})
	t.Setenv("TMPDIR", m.Tmp)
	u := m.Host.Connect("a")
	e := u.Fails("bash", args{"command": "touch ran"})
	assert.Equal(t, tools.Denied, e.Code)
	assert.Empty(t, e.ApprovalID)
	assert.NoFileExists(t, m.Scope("a", "ran"))
	assert.Equal(t, audit.Deny, m.Last("a", "bash").Verdict)
	u.Call("stat", args{"path": "."})
}

// TestApprovalsOutOfReach: an agent finds no way to the operator's socket, with
// or without a network, nor to the sockets of other agents.
func TestApprovalsOutOfReach(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "", "net": "network: host"})
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
for n in sorted(n for n in names if n.startswith("".join(sys.argv[2:]))): # the operator's: of this host alone, other tests run beside it
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
		harness.Plant(t, h.Scope(id), "hunt.py="+hunt)
		text := h.Connect(id).Bash("python3 hunt.py " + h.Base)
		assert.NotContains(t, text, "reached", id)
		assert.Contains(t, text, "looked at", id)
	}
	// The operator is there at once.
	out, err := exec.Command("python3", h.Scope("a", "hunt.py"), h.Base, h.Base+"/run").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "reached "+h.Base+"/run/control.sock")
}

// What an agent asks for, however large, keeps the operator from nothing.
func TestApprovalsOfLongArgumentsAreListed(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": harness.AskWrite, "b": harness.AskWrite})
	u := h.Connect("a")
	long := strings.Repeat("x", 4_000_000)
	id := u.Waits("write_file", args{"path": "1", "content": long})
	u.Waits("write_file", args{"path": "2", "content": long})
	other := h.Connect("b").Waits("bash", args{"command": "true"})
	assert.Contains(t, h.Must("approvals", "list"), other)
	assert.Contains(t, h.Must("approvals", "show", id), long)
	assert.Contains(t, h.Must("approvals", "approve", id), "approved until")
}

// TestApprovalsStanding: what the operator approves for calls to come holds for them
// alone, survives the daemon, is listed and recorded, and ends when it is revoked.
func TestApprovalsStanding(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": harness.AskWrite, "b": harness.AskWrite})
	u := h.Connect("a")
	id := u.Waits("bash", args{"command": "echo one"})
	for _, wrong := range [][]string{{"--pattern", "echo *"}, {"--pattern", "*", "--always"}, {"--pattern", "rm *", "--always"}, {"--for", "0s"}, {"--always", "--session"}, {"--always", "--scopes", "x"}} {
		_, errs, code := h.Try(append([]string{"approvals", "approve", id}, wrong...)...)
		assert.Equal(t, 1, code, "%q: %s", wrong, errs)
	}
	out := h.Must("approvals", "approve", id, "--pattern", "echo *", "--for", "1h")
	assert.Regexp(t, `^\w+ bash of a: stands, until `, out)
	standing := strings.Fields(out)[0]
	assert.Regexp(t, standing+` +stands +a +bash +"echo \*" `, h.Must("approvals", "list"))

	u.Bash("echo one")
	u.Bash("echo 'two; three'")
	for _, command := range []string{"echo two; touch ran", "echo $(touch ran)", "echo -e x", "echo two > ran", "echo two\ntouch ran", "touch ran"} {
		u.Waits("bash", args{"command": command})
	}
	u.Waits("bash", args{"command": "echo two", "stdin": "x"})
	h.Connect("b").Waits("bash", args{"command": "echo two"})
	assert.NoFileExists(t, h.Scope("a", "ran"))

	// For its session alone.
	session := u.Waits("write_file", args{"path": "f", "content": "x"})
	h.Must("approvals", "approve", session, "--session")
	u.Call("write_file", args{"path": "f", "content": "x"})
	u.Call("write_file", args{"path": "f", "content": "x"})
	h.Connect("a").Waits("write_file", args{"path": "f", "content": "x"})

	h.Stop()
	h.Start()
	u = h.Connect("a")
	u.Bash("echo three")
	u.Waits("write_file", args{"path": "f", "content": "x"})
	h.Must("approvals", "revoke", standing)
	u.Waits("bash", args{"command": "echo three"})
	for _, outcome := range []string{"stands", "used", "revoked", "ended"} {
		assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindApproval, Outcome: outcome}), outcome)
	}

	// Other rules end it, also while no daemon runs, and so do other settings for all agents.
	for _, change := range []func(){
		func() { h.Define("a", harness.AskWrite+"\nrate_limits: {stat: 1/second}"); h.Must("reload") },
		func() { h.Stop(); h.Define("a", harness.AskWrite); h.Start() },
		func() { h.Stop(); h.Put("scopefs.yaml", "durable: false\n"); h.Start() },
	} {
		u = h.Connect("a")
		h.Must("approvals", "approve", u.Waits("bash", args{"command": "echo four"}), "--always")
		u.Bash("echo four")
		u.Bash("echo four")
		change()
		assert.NotContains(t, h.Must("approvals", "list"), "stands")
		h.Connect("a").Waits("bash", args{"command": "echo four"})
	}
}
