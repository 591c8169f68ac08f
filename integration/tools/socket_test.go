package tools

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestSocketWhose: an agent's socket is its user's and the daemon's, nobody
// else's, whatever its modes have become.
func TestSocketWhose(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "user: 4321"})
	require.NoError(t, exec.Command("chown", "-R", "4321:4321", h.Scope("a")).Run())
	h.Start()
	var st syscall.Stat_t
	require.NoError(t, syscall.Stat(h.Door("a"), &st))
	assert.EqualValues(t, []uint32{4321, 0o600}, []uint32{st.Uid, st.Mode & 0o777})
	call := func(uid int) (string, error) {
		id := strconv.Itoa(uid)
		out, err := exec.Command("setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--",
			harness.Program, "--base", h.Base, "call", "--agent", "a", "bash", "command=id -u").CombinedOutput()
		return string(out), err
	}
	for _, uid := range []int{4321, 0} {
		out, err := call(uid)
		assert.NoError(t, err, "%d: %s", uid, out)
		assert.Contains(t, out, "4321", "as the agent's user, whoever asks")
	}
	out, err := call(4322)
	assert.Error(t, err)
	assert.Contains(t, out, "permission denied")
	assert.NotContains(t, out, "scopefs up", "it is told what is wrong")
	require.NoError(t, os.Chmod(h.Door("a"), 0o666))
	out, err = call(4322)
	assert.Error(t, err, "the other end looks who it is: %s", out)
	assert.Len(t, h.Calls("a", "bash"), 4)
}

// TestSocketSeveral: clients of one agent know nothing of each other, and there
// are only so many.
func TestSocketSeveral(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	first, second := h.Connect("a"), h.Connect("a", "--profile", "claude")
	first.Bash("echo 1 >/tmp/mine; echo 1 >shared")
	assert.Equal(t, "1", strings.TrimSpace(second.Text("Bash", args{"command": "cat shared; [ ! -e /tmp/mine ]"})))
	assert.Contains(t, second.List(), "Bash")
	assert.NotContains(t, first.List(), "Bash")
	process := first.Call("bash", args{"command": "sleep 100", "background": true})["process_id"]
	third := h.Connect("a")
	assert.NotEmpty(t, third.Fails("process_read", args{"id": process}).Code)

	var more []*harness.Raw
	for range 61 {
		more = append(more, h.Dial("a"))
	}
	h.Eventually("there are 64", func() bool { return dialed(h) })
	assert.Equal(t, tooMany, h.Dial("a").Rest(), "one more is turned away")
	assert.Contains(t, first.List(), "bash", "the others stay")
	for _, r := range more {
		r.Close()
	}
	h.Eventually("there is room again", func() bool {
		_, _, code := h.Try("call", "--agent", "a", "stat", "path=.")
		return code == 0
	})
}

// dialed reports whether a client of a is turned away.
func dialed(h *harness.Host) bool {
	conn, err := net.Dial("unix", h.Door("a"))
	require.NoError(h.T, err)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
	_, err = conn.Read(make([]byte, 1))
	return err == nil
}

const tooMany = "scopefs: the agent has 64 clients already: end one of them\n"

// TestSocketConnectFlood: connecting in a loop while there are 64 clients writes two
// lines, not one a connection, and delays no client that is there, nor another agent's.
func TestSocketConnectFlood(t *testing.T) {
	need.Once(t)
	h := harness.NewHost(t, map[string]string{"a": "", "b": ""})
	u := h.Connect("a")
	for range 63 {
		h.Dial("a")
	}
	h.Eventually("there are 64", func() bool { return dialed(h) })
	stop := make(chan struct{})
	var flood sync.WaitGroup
	for range 4 {
		flood.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				// EAGAIN, when the backlog is full: nothing else limits us.
				if conn, err := net.Dial("unix", h.Door("a")); err == nil {
					conn.Close()
				}
			}
		})
	}
	for range 20 {
		assert.Equal(t, "here", u.Bash("echo here"))
		assert.Equal(t, "here", h.Connect("b").Bash("echo here"))
	}
	close(stop)
	flood.Wait()
	// Clients that are garbage are not a line each, either.
	for range 100 {
		r := h.Dial("b")
		io.WriteString(r, "prefix x\n")
		r.Rest()
	}
	h.Stop()
	lines := func(of string) int { return strings.Count(h.Log.String(), of) }
	assert.LessOrEqual(t, lines(`msg="too many clients" agent=a`), 4)
	assert.Contains(t, h.Log.String(), `agent=a more=`, "the rest is counted")
	assert.LessOrEqual(t, lines(`msg=client agent=b`), 4)
	assert.Contains(t, h.Log.String(), `agent=b more=`)
}

// TestSocketAllTasks: an agent's clients are bounded over its own socket and those of
// all tasks that it does as a member.
func TestSocketAllTasks(t *testing.T) {
	h := harness.Delegating(t, "", map[string]string{"a": "tools: ['*']\nmembers: [b]", "b": "tools: ['*']"})
	a := h.Connect("a")
	task := args{"member": "b", "task": "scopefs call list_dir path=. 2>&1; true"}
	assert.NotContains(t, a.Text("delegate", task), "64 clients")
	var all []*harness.Raw
	for range 64 {
		all = append(all, h.Dial("b"))
	}
	assert.Equal(t, tooMany, h.Dial("b").Rest())
	assert.Contains(t, a.Text("delegate", task), "64 clients")
	for _, r := range all {
		r.Close()
	}
	h.Eventually("there are places again", func() bool { return !strings.Contains(a.Text("delegate", task), "64 clients") })
}

// TestSocketProfile: the line before the first message.
func TestSocketProfile(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	r := h.Dial("a")
	io.WriteString(r, "profile claude\n")
	r.Greet()
	io.WriteString(r, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`+"\n")
	assert.Contains(t, r.Line(), `"Read"`)
	for _, line := range []string{"profile nonsense\n", "profile\n", "prefix claude\n", "p\n", "profile " + strings.Repeat("x", 1<<17) + "\n", "profile ../claude\n", "profile \x00\n"} {
		r := h.Dial("a")
		io.WriteString(r, line+harness.Hello)
		assert.NotContains(t, r.Rest(), "serverInfo", "%.20q", line)
	}
	h.Connect("a").Bash("true")
}

// TestSocketNotLoaded: an agent is not told what is wrong with its definition,
// which names what it cannot see.
func TestSocketNotLoaded(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "", "secret": ""})
	require.NoError(t, os.Remove(filepath.Join(h.Base, "agents.d", "a.md")))
	h.Must("reload")
	said := func() string {
		r := h.Dial("a")
		io.WriteString(r, harness.Hello)
		return r.Rest()
	}
	assert.Equal(t, "scopefs: unknown agent\n", said())
	h.Define("a", "members: [nobody]\nskills: [none]")
	h.Try("reload")
	assert.Equal(t, "scopefs: the definition does not load; the operator's log says why\n", said())
	_, errs, _ := h.Try("reload")
	assert.Contains(t, errs, "secret", "the operator is")
	h.Stop()
	assert.Contains(t, h.Log.String(), "nobody")
}

// TestSocketGarbage: what is no message, or too much of one, ends that
// connection and nothing else, and takes no memory.
func TestSocketGarbage(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	u := h.Connect("a")
	before := resident(h)
	deep := func(n int) string { return strings.Repeat(`{"x":`, n) + "1" + strings.Repeat("}", n) }
	for name, text := range map[string]string{
		"no JSON":          "hello\n",
		"HTTP":             "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"zeros":            strings.Repeat("\x00", 100000) + "\n",
		"half":             `{"jsonrpc":"2.0","id":1,"meth`,
		"a batch":          `[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]` + "\n",
		"no object":        "17\n",
		"17 MiB":           `{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x", 17<<20) + `"}` + "\n",
		"17 MiB, no line":  strings.Repeat("x", 17<<20),
		"depth":            `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + deep(1000000) + "}\n",
		"an unknown one":   `{"jsonrpc":"2.0","id":1,"method":"no/such"}` + "\n",
		"no initialize":    harness.Request(1, "bash", `{"command":"touch ran"}`),
		"a stray response": `{"jsonrpc":"2.0","id":1,"result":{}}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			for _, greeting := range []bool{false, true} {
				r := h.Dial("a")
				if greeting {
					r.Greet()
				}
				io.WriteString(r, text) // may be refused half way
				_ = r.CloseWrite()
				r.Rest()
				assert.Equal(t, "here", u.Bash("echo here"))
			}
		})
	}
	// The one with a greeting is a call; before it, it is nothing.
	events := h.Calls("a", "bash")
	ran := 0
	for _, e := range events {
		if strings.Contains(e.Target, "touch ran") {
			ran++
		}
	}
	assert.LessOrEqual(t, ran, 2, "begin and end of the one")
	assert.Less(t, resident(h)-before, 300)
	h.Must("ps")
}

// TestSocketCancelled: a request that its client has cancelled gets no response. A cancellation of initialize, or of what is not in
// flight, takes no response of any request.
func TestSocketCancelled(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	seconds := harness.Seconds(71)
	cancel := func(id string) string {
		return `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + "}}\n"
	}
	ping := func(id string) string { return `{"jsonrpc":"2.0","id":` + id + `,"method":"ping"}` + "\n" }
	r := h.Dial("a")
	hello := strings.SplitAfter(harness.Hello, "\n")
	io.WriteString(r, hello[0]+cancel(`"hello"`)+hello[1])
	assert.Contains(t, r.Line(), `"protocolVersion"`)
	for i, id := range []string{"7", `"seven"`, "7.5"} {
		io.WriteString(r, cancel(id)+ping(id))
		assert.Contains(t, r.Line(), `"id":`+id+`,"result"`)
		io.WriteString(r, cancel(id)+strings.Replace(harness.Request(7, "bash", `{"command":"sleep `+seconds+`"}`), "7", id, 1))
		h.Eventually("it runs", func() bool { return len(harness.Running("sleep", seconds)) == 1 })
		io.WriteString(r, cancel(id))
		h.Eventually("it has ended", func() bool { return len(h.Calls("a", "bash")) == 2*(i+1) })
		assert.Empty(t, harness.Running("sleep", seconds))
		io.WriteString(r, ping("8"))
		assert.Contains(t, r.Line(), `"id":8,"result"`, "after %s", id)
	}
	_ = r.CloseWrite()
	assert.Empty(t, r.Rest())
}

// TestSocketDepth: deep arguments are refused by name, not by a crash.
func TestSocketDepth(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	r := h.Dial("a").Greet()
	for i, a := range []string{`{"path":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}`, strings.Repeat(`{"a":`, 500) + "1" + strings.Repeat("}", 500)} {
		io.WriteString(r, harness.Request(i, "read_file", a))
		line := r.Line()
		assert.Contains(t, line, `"isError":true`)
		assert.Contains(t, line, "too_large")
	}
	io.WriteString(r, harness.Request(9, "read_file", `{"path":"`+strings.Repeat("x", 9<<20)+`"}`))
	assert.Contains(t, r.Line(), "too_large")
	assert.Equal(t, "too_large", h.Last("a", "read_file").Outcome)
}

// TestSocketFlood: ten thousand requests at once are each answered, few are run
// at a time, and memory has a bound.
func TestSocketFlood(t *testing.T) {
	need.Once(t)
	h := harness.NewHost(t, map[string]string{"a": ""})
	const n = 10000
	r := h.Dial("a").Greet()
	require.NoError(t, r.SetDeadline(time.Now().Add(50*time.Second)))
	before := resident(h)
	go func() {
		var b strings.Builder
		for i := range n {
			b.WriteString(harness.Request(i, "stat", `{"path":"."}`))
		}
		io.WriteString(r, b.String())
	}()
	answered := map[int]bool{}
	done, limited := 0, 0
	for range n {
		var m struct {
			ID     int
			Result *mcp.CallToolResult
		}
		line := r.Line()
		require.NoError(t, json.Unmarshal([]byte(line), &m), line)
		answered[m.ID] = true
		switch {
		case !m.Result.IsError:
			done++
		case strings.Contains(harness.Said(m.Result), "rate_limited"):
			limited++
		default:
			t.Errorf("%s", line)
		}
	}
	assert.Len(t, answered, n)
	assert.GreaterOrEqual(t, done, 32)
	t.Logf("%d done, %d refused, %d MiB more", done, limited, resident(h)-before)
	assert.Less(t, resident(h)-before, 300)
	h.Connect("a").Bash("true")
}

// TestSocketDeaf: a client that asks without end and hears no answer is soon not
// listened to any more. It takes little memory and holds up nobody else.
func TestSocketDeaf(t *testing.T) {
	need.Once(t)
	t.Parallel()
	h := harness.NewHost(t, map[string]string{"a": ""})
	harness.Plant(t, h.Scope("a"), "big="+strings.Repeat(strings.Repeat("x", 99)+"\n", 2000), "image=\x89PNG\r\n\x1a\n"+strings.Repeat("\x00\xff", 2<<20))
	for name, line := range map[string]string{
		"large answers": harness.Request(1, "read_file", `{"path":"big"}`),
		"images":        harness.Request(1, "read_file", `{"path":"image"}`),
		"refusals":      harness.Request(1, "no_such_tool", `{}`),
		"the list":      `{"jsonrpc":"2.0","id":1,"method":"tools/list"}` + "\n",
		"nonsense":      `{"jsonrpc":"2.0","id":1,"method":"no/such"}` + "\n",
	} {
		most := 100 // MiB
		if name == "images" {
			most = 800 // 64 wait to be read, and garbage is collected from 512 on
		}
		t.Run(name, func(t *testing.T) {
			r := h.Dial("a").Greet()
			before := resident(h)
			many := strings.Repeat(line, 1000)
			require.NoError(t, r.SetWriteDeadline(time.Now().Add(time.Second)))
			asked := 0
			for ; asked < 1000; asked++ {
				if _, err := io.WriteString(r, many); err != nil {
					break
				}
			}
			assert.Less(t, asked, 1000, "it is listened to for ever")
			assert.Less(t, resident(h)-before, most)
			assert.Equal(t, "here", h.Connect("a").Bash("echo here"))
		})
	}
	h.Must("reload")
	began := time.Now()
	h.Stop()
	assert.Less(t, time.Since(began), 15*time.Second)
}

// TestSocketPulse: a connection that says nothing, by which scopefs mcp sees that
// the daemon lives while it waits, starts no sandbox and leaves no record.
func TestSocketPulse(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": ""})
	h.Start()
	for range 20 {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: h.Door("a"), Net: "unix"})
		require.NoError(t, err)
		require.NoError(t, conn.CloseWrite())
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
		text, err := io.ReadAll(conn)
		require.NoError(t, err)
		assert.Empty(t, text)
		require.NoError(t, conn.Close())
	}
	h.Stop()
	for _, e := range h.Events("a") {
		assert.NotEqual(t, "sandbox", e.Event, "%s", e.Raw)
	}
}

// resident is how much memory the daemon uses, in MiB.
func resident(h *harness.Host) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.Cmd.Process.Pid))
	require.NoError(h.T, err)
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	kb, err := strconv.Atoi(strings.Fields(after)[0])
	require.NoError(h.T, err)
	return kb >> 10
}
