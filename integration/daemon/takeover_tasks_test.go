package daemon

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// bossed returns agents of which boss may give tasks to worker.
func bossed() map[string]string {
	return map[string]string{"boss": "tools: ['*']\nmembers: [worker]", "worker": "tools: ['*']"}
}

// delegates returns a client of boss whose task, a script, lives on when the daemon ends.
func delegates(h *harness.Host, script string) *wireClient {
	c := greetedBridge(h, "boss")
	c.call(1, "delegate", map[string]any{"member": "worker", "task": script})
	lasts(h, 1)
	return c
}

// said returns the answer of a call of delegate.
func (c *wireClient) said(id int) (text string, failed bool) {
	c.t.Helper()
	m := c.answer(id)
	require.NotNil(c.t, m.Result, "%+v", m.Error)
	return m.Result.Content[0].(*mcp.TextContent).Text, m.Result.IsError
}

// sleeps waits until a process sleeps, and returns it.
func sleeps(h *harness.Host, word string) int {
	h.T.Helper()
	h.Eventually("it sleeps", func() bool { return len(harness.Running("sleep", word)) == 1 })
	return harness.Running("sleep", word)[0]
}

// assertTask asserts that the log has one beginning and one end of a task's sandbox, of its runner, and of the call that has given it.
func assertTask(h *harness.Host, runner, call string) {
	h.T.Helper()
	var boxes, runs []string
	h.Eventually("the end of the sandbox is in the log", func() bool {
		boxes, runs = nil, nil
		for _, e := range h.Events("worker") {
			switch {
			case e.Event != audit.KindSandbox || e.Chain == "" || e.Parent == "" || strings.HasPrefix(e.Op, "call"):
			case e.Op == "exec":
				runs = append(runs, e.Outcome)
			case e.Session != "" && e.Path == "" && e.Outcome != "taken over":
				boxes = append(boxes, e.Outcome)
			}
		}
		return len(boxes) > 1
	})
	assert.Equal(h.T, []string{"started", "ended"}, boxes)
	assert.Equal(h.T, []string{"begin", runner}, runs)
	calls := []string{}
	for _, e := range h.Calls("boss", "delegate") {
		calls = append(calls, e.Outcome)
	}
	assert.Equal(h.T, []string{audit.OutcomeBegin, call}, calls)
}

// TestTakeOverTask: a task runs on when the daemon ends, and the next daemon answers the call that has given it, also of a task that
// has ended in the gap. Rounds by SCOPEFS_TEST_ROUNDS.
func TestTakeOverTask(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	need.Once(t)
	for how, end := range map[string]func(*harness.Host){"SIGTERM": ends["SIGTERM"], "SIGKILL": ends["SIGKILL"], "upgrade": upgrade} {
		t.Run(how, func(t *testing.T) {
			h := onMemory(t, bossed())
			h.Scripted("")
			h.Start()
			word := harness.Seconds(61)
			c := delegates(h, `echo before; echo x >kept; until scopefs call read_file path=go >/dev/null 2>&1; do sleep 0.02; done
scopefs call bash command='echo by bash'; sleep `+word+`; cat kept; exit 0`)
			for range rounds(2) {
				end(h)
				h.Start()
				assert.Contains(t, c.back(), inSameSandbox)
			}
			h.Put("agents/worker/go", "")
			pid := sleeps(h, word)
			end(h)
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL)) // the task ends in the gap
			h.Start()
			assert.Contains(t, c.back(), inSameSandbox)
			text, failed := c.said(1)
			assert.False(t, failed)
			assert.Regexp(t, `^before\n(.*\n)*by bash\n(.*\n)*x\n$`, text)
			lasts(h, 0)
			assertTask(h, "exit 0", "ok")
			c.in.Close()
			h.Stop()
			h.Eventually("no process is left", func() bool { return len(harness.ProcessesOf(h.Base)) == 0 })
			h.Unbroken()
		})
	}
}

// TestTakeOverTaskFull: a task whose runner works does not wait until one that the next daemon has begun before frees its slot.
func TestTakeOverTaskFull(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	h := harness.Delegating(t, "grace: 60s\ndelegation: {parallel: 1}", bossed())
	const until = `; until scopefs call read_file path=%s >/dev/null 2>&1; do sleep 0.02; done; echo %[1]s`
	c := delegates(h, "true"+fmt.Sprintf(until, "first"))
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGSTOP))
	h.Kill()
	h.Start()
	other := greetedBridge(h, "boss")
	other.call(1, "delegate", map[string]any{"member": "worker", "task": "scopefs call write_file path=begun content=x" + fmt.Sprintf(until, "second")})
	h.Eventually("it has the slot", func() bool { _, err := os.Stat(h.Scope("worker", "begun")); return err == nil })
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGCONT))
	assert.Contains(t, c.back(), inSameSandbox)
	h.Put("agents/worker/first", "")
	text, failed := c.said(1)
	assert.Equal(t, "first\n", text)
	assert.False(t, failed)
	h.Put("agents/worker/second", "")
	text, failed = other.said(1)
	assert.Contains(t, text, "second\n")
	assert.False(t, failed)
	lasts(h, 0)
}

// TestTakeOverTaskTools: a client of scopefs mcp in a task continues with the next daemon, and what it asks for in the gap waits for
// the rules of that daemon.
func TestTakeOverTaskTools(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	need.Once(t)
	words := 62
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			word, last := harness.Seconds(words), harness.Seconds(words+1)
			words += 2
			t.Parallel()
			h := harness.Delegating(t, "", bossed())
			ask := func(id int, name string) string {
				return harness.Request(id, "write_file", fmt.Sprintf(`{"path":%q,"content":"x"}`, name))
			}
			c := delegates(h, "cat >first <<'EOT'\n"+harness.Hello+ask(1, "one")+"EOT\ncat >second <<'EOT'\n"+ask(2, "two")+"EOT\n"+
				`{ cat first; sleep `+word+`; cat second; sleep `+last+`; } | scopefs mcp 2>/dev/null`)
			h.Eventually("the first call is done", func() bool { return len(h.Calls("worker", "write_file")) == 2 })
			pid := sleeps(h, word)
			end(h)
			h.Define("boss", "tools: ['*']\nmembers: [worker]\npolicy: {tools: {exclude: [write_file]}}")
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			pid = sleeps(h, last) // the second call is sent
			h.Start()
			h.Eventually("it is denied", func() bool { return len(h.Calls("worker", "write_file")) == 3 })
			denied := h.Calls("worker", "write_file")[2]
			assert.Equal(t, audit.Deny, denied.Verdict)
			assert.Equal(t, "boss>worker", denied.Chain)
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			text, failed := c.said(1)
			assert.False(t, failed)
			assert.Contains(t, text, "there is no tool")
			assert.FileExists(t, h.Scope("worker", "one"))
			assert.NoFileExists(t, h.Scope("worker", "two"))
		})
	}
}

// TestTakeOverTaskChanged: a task ends, with each end in the log once, if its agents, or what its sandbox is made by, would not have
// it any more.
func TestTakeOverTaskChanged(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	need.Once(t)
	words := 70
	for what, test := range map[string]struct {
		change func(*harness.Host)
		say    string // to the caller; "": that the effect is unknown
		call   string // its outcome
	}{
		"no tool":     {func(h *harness.Host) { h.Define("boss", "tools: [bash]\nmembers: [worker]") }, "the rules have changed", "conflict"},
		"no member":   {func(h *harness.Host) { h.Define("boss", "tools: ['*']") }, "no member", "not_found"},
		"held":        {func(h *harness.Host) { h.Define("boss", "tools: ['*']\nmembers: [worker]\ndelegate: {changes: held}") }, "are to be held", "conflict"},
		"limits":      {func(h *harness.Host) { h.Define("worker", "tools: ['*']\nlimits: {pids: 77}") }, "", "unavailable"},
		"environment": {func(h *harness.Host) { h.Scripted("delegation: {env: {A: b}}") }, "", "unavailable"},
		"network":     {func(h *harness.Host) { h.Scripted("delegation: {network: host}") }, "", "unavailable"},
		"view":        {func(h *harness.Host) { h.Define("worker", "tools: ['*']\nview: {record: all}") }, "", "unavailable"},
	} {
		t.Run(what, func(t *testing.T) {
			words++
			word := harness.Seconds(words)
			t.Parallel()
			h := harness.Delegating(t, "", bossed())
			c := delegates(h, "sleep "+word+"; true")
			sleeps(h, word)
			h.Kill()
			sleeps(h, word)
			test.change(h)
			h.Start()
			assert.Contains(t, c.back(), inSameSandbox)
			m := c.answer(1)
			if test.say == "" {
				require.NotNil(t, m.Error)
				assert.Equal(t, "unknown", m.Error.Data.Effect)
			} else {
				require.NotNil(t, m.Result, "%+v", m.Error)
				assert.True(t, m.Result.IsError)
				assert.Contains(t, m.Result.Content[0].(*mcp.TextContent).Text, test.say)
			}
			h.Eventually("no process is left", func() bool { return len(harness.Running("sleep", word)) == 0 })
			lasts(h, 0)
			assertTask(h, "sandbox ended", test.call)
		})
	}
}

// TestTakeOverTaskEnds: no task survives by accident: without a daemon after grace, when it is stopped, without its caller's client,
// and when the client cancels the call.
func TestTakeOverTaskEnds(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	need.Once(t)
	words := 80
	for how, test := range map[string]struct {
		grace string
		end   func(*testing.T, *harness.Host, *wireClient)
	}{
		"grace after SIGTERM": {"2s", func(_ *testing.T, h *harness.Host, _ *wireClient) { h.Terminate() }},
		"grace after SIGKILL": {"2s", func(_ *testing.T, h *harness.Host, _ *wireClient) { h.Kill() }},
		"no grace":            {"0s", func(_ *testing.T, h *harness.Host, _ *wireClient) { h.Kill() }},
		"--stop":              {"60s", func(_ *testing.T, h *harness.Host, _ *wireClient) { h.Must("daemon", "--stop"); <-h.Ended }},
		"--stop in the gap":   {"60s", func(_ *testing.T, h *harness.Host, _ *wireClient) { h.Kill(); h.Must("daemon", "--stop") }},
		"no client": {"60s", func(t *testing.T, h *harness.Host, c *wireClient) {
			h.Kill()
			require.NoError(t, c.cmd.Process.Kill())
			h.Start()
		}},
		"cancelled": {"60s", func(t *testing.T, h *harness.Host, c *wireClient) {
			h.Kill()
			h.Start()
			assert.Contains(t, c.back(), inSameSandbox)
			c.says(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}` + "\n")
		}},
	} {
		t.Run(how, func(t *testing.T) {
			words++
			word := harness.Seconds(words)
			t.Parallel()
			h := harness.Delegating(t, "grace: "+test.grace, bossed())
			c := greetedBridge(h, "boss")
			c.call(1, "delegate", map[string]any{"member": "worker", "task": "trap '' HUP INT TERM; setsid sleep " + word + " & sleep " + word})
			h.Eventually("it runs", func() bool { return len(harness.Running("sleep", word)) == 2 })
			if test.grace != "0s" {
				lasts(h, 1)
			}
			test.end(t, h, c)
			h.Eventually("no process is left", func() bool { return len(harness.Running("sleep", word)) == 0 })
			if how == "no client" || how == "cancelled" {
				h.Eventually("the call has ended", func() bool { return len(h.Calls("boss", "delegate")) == 2 })
				lasts(h, 0)
			}
		})
	}
}

// TestTakeOverTaskNested: a task that a task has given ends with the daemon, and the task that has given it goes on.
func TestTakeOverTaskNested(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	words := 66
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			words++
			word := harness.Seconds(words)
			t.Parallel()
			h := harness.Delegating(t, "", map[string]string{"boss": "tools: ['*']\nmembers: [worker]", "worker": "tools: ['*']\nmembers: [deeper]", "deeper": ""})
			c := delegates(h, "scopefs call delegate member=deeper task='sleep "+word+"' >/dev/null 2>&1 || echo lost; scopefs call write_file path=made content=x")
			sleeps(h, word)
			end(h)
			h.Eventually("it has ended", func() bool { return len(harness.Running("sleep", word)) == 0 })
			h.Start()
			text, failed := c.said(1)
			assert.False(t, failed)
			assert.Contains(t, text, "lost\n")
			assert.FileExists(t, h.Scope("worker", "made"))
			assertTask(h, "exit 0", "ok")
		})
	}
}

// knocks connects to the socket of a task, sends a text on each of several connections at once, and prints the answers to the
// request 9.
const knocks = `import socket, sys
all = []
for head in sys.argv[2:]:
    s = socket.socket(socket.AF_UNIX)
    s.connect("/run/scopefs/mcp.sock")
    s.sendall((head + "\n" if head else "").encode() + open(sys.argv[1], "rb").read())
    all.append(s)
for s in all:
    for line in s.makefile():
        if '"id":9' in line: print(line); break
    else: print("refused")
`

// TestTakeOverTaskAttack: what a process of a task sends in the gap, with the names and tokens of others, is a request of the task, by
// the rules of now. Nobody reaches the sandbox of the task, or its caller's, by names without their tokens.
func TestTakeOverTaskAttack(t *testing.T) {
	h := harness.Delegating(t, "", bossed())
	h.Put("agents/boss/secret", "of boss")
	h.Put("agents/worker/secret", "of worker")
	word := harness.Seconds(98)
	c := greetedBridge(h, "boss")
	c.call(2, "list_files", map[string]any{})
	c.answer(2)
	session := h.Calls("boss", "list_files")[0].Session
	c.call(1, "delegate", map[string]any{"member": "worker", "task": "cat >knocks.py <<'EOT'\n" + knocks + "EOT\ncat >all <<'EOT'\n" + harness.Hello +
		harness.Request(9, "bash", `{"command":"cat secret; ls /tmp"}`) + "EOT\nsleep " + word +
		"; python3 knocks.py all '' returns 'returns " + session + " ' 'returns " + session + " A continues' 'returns " + session + " A'"})
	lasts(h, 1)
	task := ""
	for _, e := range h.Events("worker") {
		if e.Op == "exec" {
			task = e.Session
		}
	}
	require.NotEmpty(t, task)
	h.Kill()
	h.Define("boss", "tools: ['*']\nmembers: [worker]\nview: {access: read}")
	require.NoError(t, syscall.Kill(sleeps(h, word), syscall.SIGKILL))
	h.Start()
	assert.Contains(t, c.back(), inSameSandbox)
	text, failed := c.said(1)
	assert.False(t, failed)
	assert.Equal(t, 5, strings.Count(text, `"stdout":"of worker`), text)
	for _, e := range h.Calls("worker", "bash") {
		assert.Equal(t, "boss>worker", e.Chain)
	}
	for _, e := range h.Calls("boss", "bash") {
		assert.Fail(t, "a call of the caller's", "%+v", e)
	}
	for _, name := range []string{session, task} {
		for _, agent := range []string{"boss", "worker"} {
			for _, token := range []string{"", "A", name} {
				r := dialReturning(h, agent, name, token)
				assert.False(t, r.Params.Same, "%s %s %q", agent, name, token)
				r.Close()
			}
		}
	}
}

// TestTakeOverTaskHTTP: the task of a call over HTTP lives on, too, and ends if the client does not come back.
func TestTakeOverTaskHTTP(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	need.Once(t)
	words := 99
	for how, end := range map[string]func(*harness.Host){"SIGTERM": ends["SIGTERM"], "SIGKILL": ends["SIGKILL"], "no client": ends["SIGKILL"]} {
		t.Run(how, func(t *testing.T) {
			words++
			word := harness.Seconds(words)
			t.Parallel()
			h := harness.LayOut(t, bossed())
			h.Scripted("")
			w := serveWeb(h)
			c := w.client("boss").greet()
			arguments, err := json.Marshal(map[string]string{"member": "worker",
				"task": "sleep " + word + "; scopefs call write_file path=made content=x >/dev/null; echo done"})
			require.NoError(t, err)
			call := strings.TrimSpace(harness.Request(5, "delegate", string(arguments)))
			event := c.reads(c.send(c.Soon(), http.MethodPost, call, "Mcp-Protocol-Version", resumable)).event()
			lasts(h, 1)
			sleeps(h, word)
			end(h)
			w.start()
			if how == "no client" {
				h.Eventually("the task has ended", func() bool { return len(harness.Running("sleep", word)) == 0 })
				c.reads(c.returns(event)).lostAnswer(5)
				w.alone(1)
				assertTask(h, "sandbox ended", "unavailable")
				return
			}
			answers := c.reads(c.returns(event))
			require.NoError(t, syscall.Kill(sleeps(h, word), syscall.SIGKILL))
			a := answers.answer()
			require.NotNil(t, a.Result, "%+v", a.Error)
			assert.False(t, a.Result.IsError)
			assert.FileExists(t, h.Scope("worker", "made"))
			w.alone(1)
			assertTask(h, "exit 0", "ok")
		})
	}
}
