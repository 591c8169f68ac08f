package tools

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools/approvals"
)

// watcher is scopefs approvals watch without a terminal.
type watcher struct {
	t     testing.TB
	in    io.WriteCloser
	lines *bufio.Scanner
}

func watch(h *harness.Host) *watcher {
	h.T.Helper()
	cmd := exec.Command(harness.Program, "--base", h.Base, "approvals", "watch")
	in, err := cmd.StdinPipe()
	require.NoError(h.T, err)
	out, err := cmd.StdoutPipe()
	require.NoError(h.T, err)
	cmd.Stderr = os.Stderr
	require.NoError(h.T, cmd.Start())
	h.T.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	return &watcher{h.T, in, lines}
}

// next returns the next change of this outcome.
func (w *watcher) next(outcome string) approvals.Approval {
	w.t.Helper()
	for w.lines.Scan() {
		var c approvals.Update
		require.NoError(w.t, json.Unmarshal(w.lines.Bytes(), &c))
		if c.Outcome == outcome {
			return c.Approval
		}
	}
	require.Fail(w.t, "the watch has ended", outcome)
	return approvals.Approval{}
}

// say sends a decision and returns its error.
func (w *watcher) say(line string) string {
	w.t.Helper()
	_, err := fmt.Fprintln(w.in, line)
	require.NoError(w.t, err)
	for w.lines.Scan() {
		var said struct {
			ID    *string
			Error string
		}
		require.NoError(w.t, json.Unmarshal(w.lines.Bytes(), &said))
		if said.ID != nil {
			return said.Error
		}
	}
	require.Fail(w.t, "the watch has ended", line)
	return ""
}

// TestApprovalsWatch: each watcher sees each call and what became of it, the first
// decision holds, and the operator's command is run for each call.
func TestApprovalsWatch(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": harness.AskWrite, "b": harness.AskWrite})
	told := h.Base + "/told"
	h.Put("notify.sh", "#!/bin/sh\necho \"$# $1\" >>"+told+"\ncat >>"+told+"\n")
	require.NoError(t, os.Chmod(h.Base+"/notify.sh", 0o755))
	h.Put("scopefs.yaml", "approvals: {wait: 5m, notify: ["+h.Base+"/notify.sh, 'x; y']}\n")
	h.Start()
	harness.Plant(t, h.Scope("a"), "f=one\n")
	one, two := watch(h), watch(h)
	u := h.Connect("a")

	call := u.Begin(h.Soon(), "write_file", args{"path": "f", "content": "two\x1b[2J\n"})
	id := one.next("waits").ID
	assert.Equal(t, id, two.next("waits").ID)
	var p approvals.Approval
	require.NoError(t, json.Unmarshal([]byte(h.Must("approvals", "show", id)), &p))
	require.NotNil(t, p.Changes)
	assert.Equal(t, "--- a/f\n+++ b/f\n@@ -1,1 +1,1 @@\n-one\n+two\x1b[2J\n", p.Changes.Diff)
	assert.Empty(t, one.say("y "+id))
	assert.NoError(t, <-call)
	assert.Equal(t, id, two.next("approved").ID)
	assert.Equal(t, id, two.next("used").ID)
	assert.Contains(t, two.say("n "+id), "already by user")
	h.Eventually("the operator's command has run", func() bool {
		text, _ := os.ReadFile(told)
		return strings.HasPrefix(string(text), "1 x; y\n{") && strings.Contains(string(text), `"id":"`+id+`"`)
	})

	edit := u.Begin(h.Soon(), "edit_file", args{"path": "f", "edits": []args{{"old_text": "nowhere", "new_text": "x"}}})
	id = one.next("waits").ID
	assert.Contains(t, h.Must("approvals", "show", id), `"note": "the call would fail: conflict: edit 1: old_text was not found`)
	assert.Empty(t, one.say("n "+id))
	assert.Error(t, <-edit)

	for _, line := range []string{"", "x", "y", "z " + id, "p " + id, "p " + id + " 1h", "p " + id + " 1x echo *", "y " + id + " x"} {
		assert.NotEmpty(t, one.say(line), line)
	}
	run := u.Begin(h.Soon(), "bash", args{"command": "echo 1"})
	assert.Empty(t, one.say("p "+one.next("waits").ID+" 1h echo *"))
	assert.NoError(t, <-run)
	u.Bash("echo 2")

	// An agent that asks without end keeps no other from being seen.
	for i := range 80 {
		u.Begin(h.Soon(), "bash", args{"command": fmt.Sprintf("true %d; true", i)})
	}
	other := h.Connect("b").Begin(h.Soon(), "bash", args{"command": "true; echo b"})
	require.NoError(t, one.in.Close())
	for {
		if p := one.next("waits"); p.Agent == "b" { // it watches without input
			break
		}
	}
	for {
		if p := two.next("waits"); p.Agent == "b" {
			assert.Empty(t, two.say("y "+p.ID))
			break
		}
	}
	assert.NoError(t, <-other)
}

// TestApprovalsWatchReconnects: a watch goes on with the next daemon, and decides there about a call that waited before.
func TestApprovalsWatchReconnects(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": harness.AskWrite})
	h.Put("scopefs.yaml", "approvals: {wait: 5m}\n")
	h.Start()
	one := watch(h)
	call := h.Connect("a").Begin(h.Soon(), "bash", args{"command": "true; echo 1"})
	id := one.next("waits").ID
	h.Kill()
	<-call
	h.Start()
	assert.Equal(t, id, one.next("waits").ID)
	assert.Empty(t, one.say("y "+id))
	h.Terminate()
	h.Start()
	again := h.Connect("a").Begin(h.Soon(), "bash", args{"command": "true; echo 2"})
	for p := one.next("waits"); !strings.Contains(string(p.Arguments), "echo 2"); p = one.next("waits") {
	}
	require.NoError(t, one.in.Close())
	h.Must("down", "a")
	<-again
}

// TestApprovalsWatchTerminal: single keys decide, and none that was typed for something
// else.
func TestApprovalsWatchTerminal(t *testing.T) {
	h := newWaiting(t, map[string]string{"a": harness.AskWrite})
	cmd := exec.Command(harness.Program, "--base", h.Base, "approvals", "watch")
	_, k := harness.OnTerminal(t, cmd, 30, 90)
	press := func(keys string) {
		_, err := k.R.WriteString(keys)
		require.NoError(t, err)
	}
	k.Expect("q quits.")
	press("yyyy")
	u := h.Connect("a")
	call := u.Begin(h.Soon(), "bash", args{"command": "touch ran; printf '\x1b[2J'"})
	k.Expect(`  $ touch ran; printf '\u001b[2J'`)
	k.Expect("[q]uit: ")
	waiting(h, 1)
	pressed := func(key, want string) {
		time.Sleep(time.Second) // until keys count; a key that comes too late is as good
		press(key)
		k.Expect(want)
	}
	pressed("n", "denied until")
	assert.Error(t, <-call)
	assert.NoFileExists(t, h.Scope("a", "ran"))

	call = u.Begin(h.Soon(), "bash", args{"command": "echo 1"})
	k.Expect("[q]uit: ")
	pressed("p", "pattern: ")
	press("rm *\r")
	k.Expect("for how long")
	press("1h\r")
	k.Expect("does not cover this call")
	k.Expect("[q]uit: ")
	pressed("p", "pattern: ")
	press("echo *\r")
	k.Expect("for how long")
	press("1h\r")
	k.Expect("stands, until")
	assert.NoError(t, <-call)
	u.Bash("echo 2")

	call = u.Begin(h.Soon(), "bash", args{"command": "touch x"})
	k.Expect("[q]uit: ")
	h.Must("approvals", "deny", waiting(h, 1)[0])
	k.Expect("denied meanwhile, not here")
	assert.Error(t, <-call)
	k.Drain()
	press("q")
	assert.NoError(t, cmd.Wait())
}
