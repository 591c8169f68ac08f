package daemon

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/servertest"
)

// webHost is a host whose daemons serve MCP by HTTP at one address, or on the socket of the agent a alone.
type webHost struct {
	*harness.Host
	address string // "": the socket
}

func serveWeb(h *harness.Host) *webHost {
	w := &webHost{h, servertest.FreeAddress(h.T)}
	w.start()
	return w
}

func (w *webHost) start() {
	if w.address == "" {
		w.Start()
	} else {
		w.Start("--http", w.address)
	}
}

func (w *webHost) url() string { return "http://" + cmp.Or(w.address, "localhost") + "/mcp" }

func (w *webHost) http() *http.Client {
	if w.address == "" {
		return harness.BySocket(w.Door("a"))
	}
	return http.DefaultClient
}

// kept returns the files of sessions over HTTP.
func (w *webHost) kept() []string {
	all, err := filepath.Glob(filepath.Join(w.Base, "run", "web", "*", "*", "*"))
	require.NoError(w.T, err)
	return all
}

// webClient speaks streamable HTTP, a request after the other.
type webClient struct {
	*webHost
	token, session string
}

func (w *webHost) client(agent string) *webClient {
	if w.address == "" {
		return &webClient{w, "", ""}
	}
	return &webClient{w, w.Token(agent), ""}
}

// send sends a request by a connection of its own, and returns the response. The caller closes its body. headers are names and
// values.
func (c *webClient) send(ctx context.Context, method, body string, headers ...string) *http.Response {
	r, err := http.NewRequestWithContext(ctx, method, c.url(), strings.NewReader(body))
	require.NoError(c.T, err)
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Mcp-Protocol-Version", "2025-06-18")
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.session != "" {
		r.Header.Set("Mcp-Session-Id", c.session)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	r.Close = true
	resp, err := c.http().Do(r)
	require.NoError(c.T, err)
	return resp
}

// post sends a message, and returns the status and what it got.
func (c *webClient) post(body string) (int, string) {
	resp := c.send(c.Soon(), http.MethodPost, body)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(c.T, err)
	return resp.StatusCode, string(text)
}

// status sends a request without a body, and returns the status.
func (c *webClient) status(method string) int {
	resp := c.send(c.Soon(), method, "")
	resp.Body.Close()
	return resp.StatusCode
}

// lists returns the status of tools/list.
func (c *webClient) lists() int {
	status, _ := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	return status
}

// greet begins a session.
func (c *webClient) greet() *webClient {
	hello, initialized, _ := strings.Cut(strings.TrimSpace(harness.Hello), "\n")
	resp := c.send(c.Soon(), http.MethodPost, hello)
	_, err := io.Copy(io.Discard, resp.Body)
	require.NoError(c.T, err)
	resp.Body.Close()
	require.Equal(c.T, http.StatusOK, resp.StatusCode)
	c.session = resp.Header.Get("Mcp-Session-Id")
	require.NotEmpty(c.T, c.session)
	status, _ := c.post(initialized)
	require.Equal(c.T, http.StatusAccepted, status)
	return c
}

// bash has a call run a command, which succeeds, and returns its standard output.
func (c *webClient) bash(command string) string {
	c.T.Helper()
	arguments, err := json.Marshal(map[string]string{"command": command})
	require.NoError(c.T, err)
	status, text := c.post(strings.TrimSpace(harness.Request(7, "bash", string(arguments))))
	require.Equal(c.T, http.StatusOK, status, text)
	_, data, found := strings.Cut(text, "data: ")
	require.True(c.T, found, text)
	var m struct {
		ID     int
		Result struct {
			IsError           bool
			StructuredContent ran
		}
	}
	require.NoError(c.T, json.Unmarshal([]byte(data), &m), text)
	require.Equal(c.T, 7, m.ID)
	require.False(c.T, m.Result.IsError, text)
	require.Zero(c.T, *m.Result.StructuredContent.ExitCode, text)
	return m.Result.StructuredContent.Stdout
}

// listen opens the stream of what the server sends by itself, and returns its lines.
func (c *webClient) listen() <-chan string {
	ctx, cancel := context.WithCancel(context.Background())
	c.T.Cleanup(cancel)
	resp := c.send(ctx, http.MethodGet, "")
	require.Equal(c.T, http.StatusOK, resp.StatusCode)
	lines := make(chan string, 100)
	go func() {
		defer resp.Body.Close()
		defer close(lines)
		for s := bufio.NewScanner(resp.Body); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return lines
}

// hears waits for a line with a text.
func hears(t *testing.T, lines <-chan string, text string) {
	t.Helper()
	late := time.After(30 * time.Second)
	for {
		select {
		case line, open := <-lines:
			require.True(t, open, "the stream has ended before %s", text)
			if strings.Contains(line, text) {
				return
			}
		case <-late:
			t.Fatalf("the stream has not %s", text)
		}
	}
}

// twice ends the daemon, and the next one as soon as that answers.
func twice(end func(*harness.Host)) func(*webHost) {
	return func(w *webHost) {
		end(w.Host)
		w.start()
		end(w.Host)
	}
}

// TestTakeOverHTTP: the session of a client over HTTP outlives the daemon, with its sandbox: /tmp and what runs in the
// background. A call whose request is too long to be kept fails. The client is the SDK's. Rounds by SCOPEFS_TEST_ROUNDS.
func TestTakeOverHTTP(t *testing.T) {
	need.Once(t)
	t.Parallel()
	for how, end := range map[string]func(*webHost){
		"SIGTERM": func(w *webHost) { w.Terminate() }, "SIGKILL": func(w *webHost) { w.Kill() }, "upgrade": func(w *webHost) { upgrade(w.Host) },
		"twice SIGTERM": twice(ends["SIGTERM"]), "twice SIGKILL": twice(ends["SIGKILL"]),
	} {
		t.Run(how, func(t *testing.T) {
			w := serveWeb(onMemory(t, map[string]string{"a": "limits: {memory: 400MiB, pids: 60}"}))
			u := w.ConnectHTTP(nil, w.url(), w.Token("a"))
			session := u.Session.ID()
			background := u.Call("bash", args{"background": true, "command": "echo first; until [ -e done ]; do sleep 0.01; done; echo last"})
			require.NotEmpty(t, background["process_id"])
			u.Bash(`echo kept >/tmp/kept; cat >/tmp/count.sh <<'E'
i=0; while ! [ -e done ]; do i=$((i+1)); echo $i >/tmp/new; mv /tmp/new /tmp/count; sleep 0.01; done; echo over >/tmp/over
E
setsid sh /tmp/count.sh </dev/null >/dev/null 2>&1 &`)
			pid := sandboxOf(w.Host, "a")
			var first int
			for i := range rounds(3) {
				before := u.Bash("until [ -e /tmp/count ]; do sleep 0.01; done; cat /tmp/count")
				lost := u.Begin(w.Soon(), "bash", args{"command": "touch begun; sleep 1000", "stdin": strings.Repeat("x", 64<<10)})
				w.Eventually("the call runs", func() bool { _, err := os.Stat(w.Scope("a", "begun")); return err == nil })
				end(w)
				assert.Error(t, <-lost)
				w.start()
				assert.Equal(t, "kept", u.Bash("cat /tmp/kept; ls /context; rm begun"))
				assert.NotEqual(t, before, u.Bash("while [ $(cat /tmp/count) = "+before+" ]; do sleep 0.01; done; cat /tmp/count"))
				assert.Contains(t, u.List(), "bash")
				assert.Equal(t, session, u.Session.ID())
				assert.Equal(t, pid, sandboxOf(w.Host, "a"))
				select {
				case <-u.Changed:
				case <-w.Soon().Done():
					t.Error("the client is not told that the tools may have changed")
				}
				if open := descriptors(t, w.Host.HolderPID()); i == 0 {
					first = open
				} else {
					assert.LessOrEqual(t, open, first+4, "descriptors of the holder in round %d", i)
				}
			}
			w.Put("agents/a/done", "")
			assert.Equal(t, "over", u.Bash("until [ -e /tmp/over ]; do sleep 0.01; done; cat /tmp/over"))
			w.Eventually("the background command has ended", func() bool {
				out := u.Call("process_read", args{"id": background["process_id"], "offset": 0})
				return out["output"] == "first\nlast\n"
			})
			require.NoError(t, u.Session.Close())
			w.Eventually("the session is removed", func() bool { return len(w.kept()) == 0 })
			assert.NotContains(t, outcomes(w.Host, "a"), "ended")
			w.Stop()
			assert.Empty(t, harness.ProcessesOf(w.Base))
			w.Unbroken()
		})
	}
}

// TestTakeOverHTTPSocket: a session on the agent's socket lives on as one with a token does, its call too, and through a daemon
// without the port a session goes on by the socket.
func TestTakeOverHTTPSocket(t *testing.T) {
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := &webHost{onMemory(t, map[string]string{"a": ""}), ""}
			w.start()
			c := w.client("a").greet()
			assert.Empty(t, c.bash("echo kept >/tmp/kept"))
			call := c.begins(5, `while [ ! -s go ]; do sleep 0.05; done; read x <go; echo "$x" $(cat /tmp/kept)`)
			event := call.event()
			lasts(w.Host, 1)
			end(w.Host)
			w.start()
			require.NoError(t, os.WriteFile(w.Scope("a", "go"), []byte("read\n"), 0o644))
			a := c.reads(c.returns(event)).answer()
			require.NotNil(t, a.Result)
			assert.Equal(t, "read kept\n", a.Result.StructuredContent.Stdout)
			assert.Equal(t, "kept\n", c.bash("cat /tmp/kept"))

			tcp := &webHost{w.Host, servertest.FreeAddress(t)}
			end(w.Host)
			tcp.start()
			by := &webClient{tcp, tcp.Token("a"), c.session}
			assert.Equal(t, "kept\n", by.bash("cat /tmp/kept"))
			end(w.Host)
			w.start()
			assert.Equal(t, "kept\n", c.bash("cat /tmp/kept"))
		})
	}
}

// TestTakeOverHTTPSession: raw requests go on with the session: a stream opens again, and says that the tools may have changed;
// the session can be ended, and one that was ended before does not come back.
func TestTakeOverHTTPSession(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := serveWeb(harness.LayOut(t, map[string]string{"a": "tools: [bash]"}))
			c, over, level := w.client("a").greet(), w.client("a").greet(), w.client("a").greet()
			heard := c.listen()
			c.bash("touch /tmp/kept")
			status, _ := level.post(`{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"critical"}}`)
			assert.Equal(t, http.StatusOK, status)
			assert.Equal(t, http.StatusNoContent, over.status(http.MethodDelete))
			for range 2 {
				end(w.Host)
				for range heard { // it ends
				}
				w.Define("a", "tools: [bash, stat]")
				w.start()
				heard = c.listen() // the first request
				hears(t, heard, "notifications/tools/list_changed")
				c.bash("ls /tmp/kept")
				_, text := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
				assert.Contains(t, text, `"stat"`)
				assert.Equal(t, http.StatusOK, level.lists())
				found := false
				for _, name := range w.kept() {
					if filepath.Base(name) == level.session {
						kept, err := os.ReadFile(name)
						require.NoError(t, err)
						found = strings.Contains(string(kept), `"level":"critical"`)
					}
				}
				assert.True(t, found, "the log level is kept")
				assert.Equal(t, http.StatusNotFound, over.lists())
				assert.Equal(t, http.StatusNotFound, over.status(http.MethodGet))
				// New rules reach the stream.
				w.Define("a", "tools: [bash]")
				w.Must("reload")
				hears(t, heard, "notifications/tools/list_changed")
			}
			end(w.Host)
			w.start()
			assert.Equal(t, http.StatusNoContent, c.status(http.MethodDelete), "the first request")
			assert.Equal(t, http.StatusNotFound, c.lists())
			end(w.Host)
			w.start()
			assert.Equal(t, http.StatusNotFound, c.lists())
			assert.Equal(t, http.StatusOK, level.lists())
			assert.Len(t, w.kept(), 1)
		})
	}
}

// TestTakeOverHTTPAttack: nobody but the agent's clients goes on with a session: not without the token, not with another
// agent's, not with an id that was never given or has ended, and not as a client of the socket. Many requests get one sandbox.
func TestTakeOverHTTPAttack(t *testing.T) {
	need.Once(t)
	t.Parallel()
	w := serveWeb(harness.LayOut(t, map[string]string{"a": "", "b": ""}))
	c := w.client("a").greet()
	c.bash("touch /tmp/kept")
	pid := sandboxOf(w.Host, "a")
	w.Kill()
	w.start()
	stolen := &webClient{w, "", c.session}
	assert.Equal(t, http.StatusUnauthorized, stolen.lists())
	stolen.token = "a." + strings.Repeat("0", 64)
	assert.Equal(t, http.StatusUnauthorized, stolen.lists())
	stolen.token = w.Token("b")
	assert.Equal(t, http.StatusNotFound, stolen.lists())
	assert.Equal(t, http.StatusNotFound, stolen.status(http.MethodGet))
	assert.Equal(t, http.StatusNotFound, stolen.status(http.MethodDelete))
	for _, id := range []string{c.session + "A", c.session[1:], strings.ToLower(c.session), "../a/" + c.session, "../../../../agents/a",
		".", "..", ".next", "%2e%2e", strings.Repeat("A", 26), strings.Repeat("A", 30_000)} {
		assert.Equal(t, http.StatusNotFound, (&webClient{w, c.token, id}).lists(), "%.100q", id)
	}
	name := ""
	for _, e := range w.Events("a") {
		if e.Event == audit.KindSandbox && e.Outcome == "taken over" {
			name = e.Parent
		}
	}
	require.NotEmpty(t, name)
	for _, token := range []string{"x", c.token, c.session} {
		r := dialReturning(w.Host, "a", name, token)
		assert.False(t, r.Params.Same)
		r.Close()
	}

	before := w.kept()
	ids := make(chan string)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for id := range ids {
				r, err := http.NewRequest(http.MethodPost, w.url(), strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
				if !assert.NoError(t, err) {
					continue
				}
				for name, value := range map[string]string{"Accept": "application/json, text/event-stream",
					"Content-Type": "application/json", "Authorization": "Bearer " + c.token, "Mcp-Session-Id": id} {
					r.Header.Set(name, value)
				}
				resp, err := client.Do(r)
				if assert.NoError(t, err) {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					assert.Equal(t, http.StatusNotFound, resp.StatusCode)
				}
			}
		})
	}
	digit := func(r rune) rune { return 'A' + r - '0' }
	for i := range need.Rounds("SCOPEFS_TEST_GUESSES", 1000, 10_000) {
		ids <- strings.Map(digit, fmt.Sprintf("%026d", i))
	}
	close(ids)
	all.Wait()
	assert.Equal(t, before, w.kept())

	for i := range 8 {
		all.Go(func() {
			status, text := c.post(strings.TrimSpace(harness.Request(i, "bash", `{"command":"ls /tmp/kept"}`)))
			assert.Equal(t, http.StatusOK, status)
			assert.Contains(t, text, `/tmp/kept`)
			assert.NotContains(t, text, `"isError":true`)
		})
	}
	all.Wait()
	assert.Contains(t, w.Agent("a").Sandboxes, pid)
	taken := slices.DeleteFunc(outcomes(w.Host, "a"), func(outcome string) bool { return outcome != "taken over" })
	assert.Len(t, taken, 1)
	assert.Len(t, w.kept(), 1)
}

// TestTakeOverHTTPRace: requests with one old id that come at once, before the daemon has taken over its sandbox, get one sandbox.
func TestTakeOverHTTPRace(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	need.Once(t)
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			w := serveWeb(harness.LayOut(t, map[string]string{"a": ""}))
			c := w.client("a").greet()
			c.bash("touch /tmp/kept")
			pid := sandboxOf(w.Host, "a")
			for range rounds(3) {
				end(w.Host)
				var all sync.WaitGroup
				stop := make(chan struct{})
				for i := range 4 {
					all.Go(func() {
						for {
							select {
							case <-stop:
								return
							default:
							}
							r, err := http.NewRequestWithContext(w.Soon(), http.MethodPost, w.url(),
								strings.NewReader(strings.TrimSpace(harness.Request(i, "bash", `{"command":"ls /tmp/kept"}`))))
							if !assert.NoError(t, err) {
								return
							}
							for name, value := range map[string]string{"Accept": "application/json, text/event-stream",
								"Content-Type": "application/json", "Authorization": "Bearer " + c.token, "Mcp-Session-Id": c.session} {
								r.Header.Set(name, value)
							}
							resp, err := http.DefaultClient.Do(r)
							if err != nil {
								continue // no daemon listens yet
							}
							text, err := io.ReadAll(resp.Body)
							resp.Body.Close()
							if resp.StatusCode == http.StatusServiceUnavailable {
								continue // it starts
							}
							assert.NoError(t, err)
							assert.Equal(t, http.StatusOK, resp.StatusCode, "%s", text)
							assert.Contains(t, string(text), "/tmp/kept")
							assert.NotContains(t, string(text), `"isError":true`)
							return
						}
					})
				}
				w.start()
				all.Wait()
				close(stop)
				assert.Equal(t, []int{pid}, w.Agent("a").Sandboxes)
			}
		})
	}
}

// TestTakeOverHTTPEnds: nothing survives by accident: without a daemon after grace, when it is stopped, without a holder, when
// tokens get another key, and with a daemon that serves no HTTP.
func TestTakeOverHTTPEnds(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	tests := map[string]struct {
		grace string
		end   func(*webHost)
	}{
		"grace after SIGTERM": {"2s", func(w *webHost) { w.Terminate() }},
		"grace after SIGKILL": {"2s", func(w *webHost) { w.Kill() }},
		"no grace":            {"0s", func(w *webHost) { w.Kill() }},
		"no grace any more": {"60s", func(w *webHost) {
			w.Kill()
			w.Put("scopefs.yaml", "grace: 0s\n")
			w.start()
			w.Kill()
		}},
		"SIGINT": {"60s", func(w *webHost) { _ = w.Cmd.Process.Signal(syscall.SIGINT); <-w.Ended }},
		"--stop": {"60s", func(w *webHost) { w.Must("daemon", "--stop"); <-w.Ended }},
		"no holder": {"60s", func(w *webHost) {
			pid := w.Host.HolderPID()
			w.Kill()
			require.NoError(w.T, syscall.Kill(pid, syscall.SIGKILL))
		}},
		"another key": {"60s", func(w *webHost) {
			w.Terminate()
			require.NoError(w.T, os.Remove(filepath.Join(w.Base, "state", "http.key")))
			w.start()
		}},
		"down": {"60s", func(w *webHost) { w.Kill(); w.start(); w.Must("down", "a"); w.Must("up", "a") }},
		"killed": {"60s", func(w *webHost) {
			w.Kill()
			w.start()
			for _, name := range sessionsOf(w.Host, "a") {
				w.Must("kill", name)
			}
		}},
	}
	for i, name := range slices.Sorted(maps.Keys(tests)) {
		test := tests[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := harness.LayOut(t, map[string]string{"a": ""})
			h.Put("scopefs.yaml", "grace: "+test.grace+"\n")
			w := serveWeb(h)
			c := w.client("a").greet()
			word := harness.Seconds(20 + i)
			c.bash("touch /tmp/kept; trap '' HUP INT TERM; setsid sleep " + word + " </dev/null >/dev/null 2>&1 & setsid sleep " + word + " </dev/null >/dev/null 2>&1 &")
			w.Eventually("it runs", func() bool { return len(harness.Running("sleep", word)) == 2 })
			token := c.token
			test.end(w)
			w.Eventually("no process is left", func() bool { return len(harness.Running("sleep", word)) == 0 })
			select {
			case <-w.Ended:
				w.start()
			default:
			}
			if c.token = w.Token("a"); name == "another key" {
				assert.Equal(t, http.StatusUnauthorized, (&webClient{w, token, c.session}).lists())
			}
			assert.Equal(t, http.StatusNotFound, c.lists())
			assert.Empty(t, w.kept())
			assert.Empty(t, (&webClient{w, c.token, ""}).greet().bash("ls /tmp/kept 2>/dev/null; true"))
		})
	}
}

// TestTakeOverHTTPChanged: a session whose sandbox would be another one now goes on in a new sandbox. That of an agent that was
// removed ends.
func TestTakeOverHTTPChanged(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	changes := map[string]string{"limits": "limits: {pids: 77}", "env": "env: {A: b}", "network": "network: host", "removed": ""}
	agents := map[string]string{}
	for id := range changes {
		agents[id] = ""
	}
	w := serveWeb(harness.LayOut(t, agents))
	clients, pids := map[string]*webClient{}, map[string]int{}
	for id := range changes {
		clients[id] = w.client(id).greet()
		clients[id].bash("touch /tmp/kept")
		pids[id] = sandboxOf(w.Host, id)
	}
	w.Kill()
	for id, text := range changes {
		w.Define(id, text)
	}
	require.NoError(t, os.Remove(filepath.Join(w.Base, "agents.d", "removed.md")))
	w.start()
	for id, c := range clients {
		w.Eventually(id+" has ended", func() bool { s := harness.StateOf(pids[id]); return s == 0 || s == 'Z' })
		if id == "removed" {
			assert.Equal(t, http.StatusServiceUnavailable, c.lists())
			w.Define(id, "")
			w.Must("reload")
			w.Must("up", id)
			assert.Equal(t, http.StatusNotFound, c.lists())
			continue
		}
		assert.Empty(t, c.bash("ls /tmp/kept 2>/dev/null; true"), id)
		assert.NotEqual(t, pids[id], sandboxOf(w.Host, id), id)
	}
}

// TestTakeOverHTTPMany: an agent has 256 sessions at most, whatever the daemons before have left. What a client says of itself
// is bounded.
func TestTakeOverHTTPMany(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	need.Once(t)
	w := serveWeb(harness.LayOut(t, map[string]string{"a": ""}))
	c := w.client("a")
	for len(w.kept()) < 256 {
		(&webClient{w, c.token, ""}).greet()
	}
	hello, _, _ := strings.Cut(harness.Hello, "\n")
	for _, end := range ends {
		end(w.Host)
		w.start()
		status, _ := c.post(hello)
		assert.Equal(t, http.StatusServiceUnavailable, status)
		for _, name := range w.kept()[100:] {
			assert.Equal(t, http.StatusOK, (&webClient{w, c.token, filepath.Base(name)}).lists())
		}
		status, _ = c.post(hello)
		assert.Equal(t, http.StatusServiceUnavailable, status)
		assert.Len(t, w.kept(), 256)
	}
	last := &webClient{w, c.token, filepath.Base(w.kept()[0])}
	require.Equal(t, http.StatusNoContent, last.status(http.MethodDelete))
	status, _ := c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},`+
		`"clientInfo":{"name":%q,"version":"1"}}}`, strings.Repeat("x", 1<<20)))
	assert.Equal(t, http.StatusOK, status)
	assert.Len(t, w.kept(), 255)
}

// TestTakeOverHTTPAsks: what a client can do is known to the next daemon: it asks its user.
func TestTakeOverHTTPAsks(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := serveWeb(harness.LayOut(t, map[string]string{"a": ""}))
			asked := make(chan string, 10)
			u := w.ConnectHTTP(&mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				asked <- r.Params.Message
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"answer": "blue"}}, nil
			}}, w.url(), w.Token("a"))
			end(w.Host)
			w.start()
			assert.Contains(t, u.Text("ask_user", args{"question": "which colour?"}), "blue")
			assert.Contains(t, <-asked, "which colour?")
		})
	}
}
