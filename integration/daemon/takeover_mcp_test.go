package daemon

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

const inSameSandbox = "in the same sandbox"

// greetedBridge starts scopefs mcp, whose client has initialized its session.
func greetedBridge(h *harness.Host, agent string) *wireClient {
	c := startBridge(h, agent)
	c.says(harness.Hello)
	require.Nil(h.T, c.answer("hello").Error)
	return c
}

// bash has a client's call run a command, which succeeds, and returns its standard output.
func (c *wireClient) bash(id int, command string) string {
	c.t.Helper()
	arguments, err := json.Marshal(map[string]string{"command": command})
	require.NoError(c.t, err)
	c.says(harness.Request(id, "bash", string(arguments)))
	m := c.answer(id)
	require.NotNil(c.t, m.Result, "%+v", m.Error)
	require.False(c.t, m.Result.IsError, "%s", m.Result.Content[0].(*mcp.TextContent).Text)
	var out struct {
		Stdout   string
		ExitCode int `json:"exit_code"`
	}
	text, err := json.Marshal(m.Result.StructuredContent)
	require.NoError(c.t, err)
	require.NoError(c.t, json.Unmarshal(text, &out), string(text))
	require.Zero(c.t, out.ExitCode, string(text))
	return out.Stdout
}

// back waits until the client is connected to the next daemon, and returns what it says of its sandbox.
func (c *wireClient) back() string {
	c.t.Helper()
	c.log("warning")
	said := c.log("notice").Params.Data
	c.changed()
	return said
}

// TestTakeOverMCP: the sandbox of a client of scopefs mcp outlives the daemon, with its /tmp and what runs in its background.
// Rounds by SCOPEFS_TEST_ROUNDS.
func TestTakeOverMCP(t *testing.T) {
	need.Once(t)
	for how, end := range map[string]func(*harness.Host){"SIGTERM": ends["SIGTERM"], "SIGKILL": ends["SIGKILL"], "upgrade": upgrade} {
		t.Run(how, func(t *testing.T) {
			h := onMemory(t, map[string]string{"a": "limits: {memory: 400MiB, pids: 60}"})
			h.Start()
			c := greetedBridge(h, "a")
			c.bash(1, `echo kept >/tmp/kept; cat >/tmp/count.sh <<'E'
i=0; while ! [ -e done ]; do i=$((i+1)); echo $i >/tmp/new; mv /tmp/new /tmp/count; sleep 0.01; done; echo over >/tmp/over
E
setsid sh /tmp/count.sh </dev/null >/dev/null 2>&1 &`)
			pid := sandboxOf(h, "a")
			n := rounds(3)
			var first int
			for i := range n {
				id := 10 * (i + 1)
				before := c.bash(id, "until [ -e /tmp/count ]; do sleep 0.01; done; cat /tmp/count")
				end(h)
				h.Start()
				assert.Contains(t, c.back(), inSameSandbox)
				assert.Equal(t, "kept\n", c.bash(id+1, "cat /tmp/kept; ls /context"))
				assert.NotEqual(t, before, c.bash(id+2, "while [ $(cat /tmp/count) = "+strings.TrimSpace(before)+" ]; do sleep 0.01; done; cat /tmp/count"))
				assert.Equal(t, pid, sandboxOf(h, "a"))
				if open := descriptors(t, h.HolderPID()); i == 0 {
					first = open
				} else {
					assert.LessOrEqual(t, open, first+4, "descriptors of the holder in round %d", i)
				}
			}
			h.Put("agents/a/done", "")
			assert.Equal(t, "over\n", c.bash(1000, "until [ -e /tmp/over ]; do sleep 0.01; done; cat /tmp/over"))
			c.in.Close()
			h.Eventually("the end is recorded", func() bool { return slices.Contains(outcomes(h, "a"), "ended") })
			assert.Equal(t, slices.Concat([]string{"started"}, slices.Repeat([]string{"taken over"}, n), []string{"ended"}), outcomes(h, "a"))
			h.Stop()
			assert.Empty(t, harness.ProcessesOf(h.Base))
			h.Unbroken()
		})
	}
}

// TestTakeOverMCPContext: calls in a sandbox that was taken over have their context below /context, and no other.
func TestTakeOverMCPContext(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	h := harness.NewHost(t, map[string]string{"a": "scopes: {enum: [input], tools: {bash: {const: [input]}}}"})
	c := greetedBridge(h, "a")
	for id, end := range []func(*harness.Host){nil, (*harness.Host).Kill, (*harness.Host).Terminate} {
		if end != nil {
			end(h)
			h.Start()
			assert.Contains(t, c.back(), inSameSandbox)
		}
		c.says(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"bash","arguments":{"command":"cat /context/input.json"},`+
			`"_meta":{"scopefs/context":[{"type":"input","text":"number %[1]d"}]}}}`+"\n", id))
		m := c.answer(id)
		require.NotNil(t, m.Result, "%+v", m.Error)
		assert.Contains(t, m.Result.Content[0].(*mcp.TextContent).Text, fmt.Sprintf("number %d", id))
	}
}

// TestTakeOverMCPGap: what happens without a daemon holds with the next one: rules are tightened, a client is killed, processes
// end. A call in flight goes on, and its client cancels it.
func TestTakeOverMCPGap(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			h := harness.LayOut(t, map[string]string{"goes": "", "stays": ""})
			h.Put("agents/stays/secret", "x")
			h.Start()
			gone, c := greetedBridge(h, "goes"), greetedBridge(h, "stays")
			gone.bash(1, "true")
			c.bash(1, "setsid sh -c 'until [ -e done ]; do sleep 0.01; done; exec sleep 1000' </dev/null >/dev/null 2>&1 & echo $! >/tmp/pid; cat secret")
			word := harness.Seconds(5)
			c.says(harness.Request(2, "bash", `{"command":"echo >ran; sleep `+word+`"}`))
			lasts(h, 1)
			pids := map[string]int{"goes": sandboxOf(h, "goes"), "stays": sandboxOf(h, "stays")}
			end(h)
			require.NoError(t, gone.cmd.Process.Kill())
			h.Define("stays", "view: {paths: {secret: hide}}")
			h.Put("agents/stays/done", "")
			h.Start()
			assert.Contains(t, c.back(), inSameSandbox)
			assert.Equal(t, "hidden\n", c.bash(3, "cat secret 2>/dev/null || echo hidden; kill $(cat /tmp/pid)"))
			assert.NotEmpty(t, harness.Running("sleep", word))
			c.says(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}` + "\n")
			h.Eventually("the command of the call in flight has ended", func() bool { return len(harness.Running("sleep", word)) == 0 })
			assert.Equal(t, pids["stays"], sandboxOf(h, "stays"))
			h.Eventually("the sandbox without a client ends", func() bool { return harness.StateOf(pids["goes"]) == 0 })
			h.Eventually("its end is recorded", func() bool { return slices.Contains(outcomes(h, "goes"), "ended") })
			assert.Equal(t, []string{"started", "taken over", "ended"}, outcomes(h, "goes"))
		})
	}
}

// TestTakeOverMCPEnds: nothing survives by accident: without a daemon after grace, when it is stopped, and without a holder.
func TestTakeOverMCPEnds(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	words := 110
	for name, test := range map[string]struct {
		grace string
		end   func(*testing.T, *harness.Host)
	}{
		"grace after SIGTERM": {"2s", func(_ *testing.T, h *harness.Host) { h.Terminate() }},
		"grace after SIGKILL": {"2s", func(_ *testing.T, h *harness.Host) { h.Kill() }},
		"no grace":            {"0s", func(_ *testing.T, h *harness.Host) { h.Kill() }},
		"--stop":              {"60s", func(_ *testing.T, h *harness.Host) { h.Must("daemon", "--stop"); <-h.Ended }},
		"no holder": {"60s", func(t *testing.T, h *harness.Host) {
			pid := h.HolderPID()
			h.Kill()
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			words++
			word := harness.Seconds(words)
			t.Parallel()
			h := harness.LayOut(t, map[string]string{"a": ""})
			h.Put("scopefs.yaml", "grace: "+test.grace+"\n")
			h.Start()
			c := greetedBridge(h, "a")
			c.bash(1, "touch /tmp/kept; trap '' HUP INT TERM; setsid sleep "+word+" </dev/null >/dev/null 2>&1 & setsid sleep "+word+" </dev/null >/dev/null 2>&1 &")
			h.Eventually("it runs", func() bool { return len(harness.Running("sleep", word)) == 2 })
			test.end(t, h)
			h.Eventually("no process is left", func() bool { return len(harness.Running("sleep", word)) == 0 })
			h.Start()
			assert.Contains(t, c.back(), "in a new sandbox")
			assert.Empty(t, c.bash(2, "ls /tmp/kept 2>/dev/null; true"))
		})
	}
}

// TestTakeOverMCPChanged: a sandbox that would be another one now ends, and its client gets one of now.
func TestTakeOverMCPChanged(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	changes := map[string]string{"limits": "limits: {pids: 77}", "env": "env: {A: b}", "network": "network: host", "view": "view: {record: all}"}
	agents := map[string]string{}
	for id := range changes {
		agents[id] = ""
	}
	h := harness.NewHost(t, agents)
	clients, pids := map[string]*wireClient{}, map[string]int{}
	for id := range changes {
		clients[id] = greetedBridge(h, id)
		clients[id].bash(1, "touch /tmp/kept")
		pids[id] = sandboxOf(h, id)
	}
	h.Kill()
	for id, text := range changes {
		h.Define(id, text)
	}
	h.Start()
	for id, c := range clients {
		assert.Contains(t, c.back(), "in a new sandbox", id)
		assert.Empty(t, c.bash(2, "ls /tmp/kept 2>/dev/null; true"), id)
		assert.NotEqual(t, pids[id], sandboxOf(h, id), id)
		h.Eventually(id+" has ended", func() bool { s := harness.StateOf(pids[id]); return s == 0 || s == 'Z' })
	}
}

// returning is a client that says how it returns, and what it is told.
type returning struct {
	*harness.Raw
	Params struct {
		Session, Token string
		Same           bool
	}
}

func dialReturning(h *harness.Host, agent, session, token string) (r returning) {
	r.Raw = h.Dial(agent)
	line := "returns\n"
	if session != "" {
		line = "returns " + session + " " + token + "\n"
	}
	_, err := io.WriteString(r, line+harness.Hello)
	require.NoError(h.T, err)
	text := r.Line()
	require.NoError(h.T, json.Unmarshal([]byte(text), &r), text)
	return r
}

// asThread calls f on a thread whose user is another one, as those see who accept its connections: unix(7).
func asThread(t *testing.T, uid int, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); assert.Zero(t, errno) {
			f()
		}
	}()
	<-done
}

// TestTakeOverMCPAttack: nobody but its client returns to a sandbox: not by its name, not with another token, not to another
// agent, not another user, not twice, and not by the way of scopefs run.
func TestTakeOverMCPAttack(t *testing.T) {
	const owner = 1234
	h := harness.LayOut(t, map[string]string{"a": "", "b": ""})
	for _, agent := range []string{"a", "b"} {
		require.NoError(t, os.Chown(h.Scope(agent, ""), owner, owner))
	}
	h.Start()
	c := dialReturning(h, "a", "", "")
	require.False(t, c.Params.Same)
	session, token := c.Params.Session, c.Params.Token
	_, err := io.WriteString(c, harness.Request(1, "bash", `{"command":"true"}`)) // process 1 knows by then that it lives on
	require.NoError(t, err)
	for !strings.Contains(c.Line(), `"id":1`) {
	}
	pid := sandboxOf(h, "a")
	returns := func(agent, session, token string) bool {
		r := dialReturning(h, agent, session, token)
		defer r.Close()
		return r.Params.Same
	}
	assert.False(t, returns("a", session, token), "while its client is there")
	h.Kill()
	h.Start()
	h.Eventually("it is taken over", func() bool { return slices.Contains(outcomes(h, "a"), "taken over") })
	for _, text := range []string{"x", strings.Repeat("A", len(token)), strings.Repeat("x", 50_000), session} {
		assert.False(t, returns("a", session, text))
	}
	assert.False(t, returns("a", "x", token))
	assert.False(t, returns("b", session, token))
	asThread(t, owner, func() { assert.False(t, returns("a", session, token)) })
	conn, err := net.Dial("unix", filepath.Join(h.Base, "run", "control.sock"))
	require.NoError(t, err)
	defer conn.Close()
	body := fmt.Sprintf(`{"argv":["id"],"resume":{"session":%q,"token":%q}}`, session, token)
	_, err = fmt.Fprintf(conn, "POST /v1/agents/a/run HTTP/1.1\r\nHost: scopefs\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	require.NoError(t, err)
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Contains(t, string(answer), "the sandbox has ended")

	var back atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			r := dialReturning(h, "a", session, token)
			if r.Params.Same {
				back.Add(1)
				return
			}
			assert.NotEqual(t, token, r.Params.Token)
			r.Close()
		})
	}
	all.Wait()
	assert.EqualValues(t, 1, back.Load())
	assert.Contains(t, h.Agent("a").Sandboxes, pid)
}
