package daemon

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// resumable is the protocol of clients that resume a call.
const resumable = "2025-11-25"

// webStream is what a client gets of a call: events.
type webStream struct {
	*webClient
	resp *http.Response
	in   *bufio.Scanner
}

// begins has a call run a command, and returns its stream when the call is kept.
func (c *webClient) begins(id int, command string) *webStream {
	arguments, err := json.Marshal(map[string]string{"command": command})
	require.NoError(c.T, err)
	resp := c.send(c.Soon(), http.MethodPost, strings.TrimSpace(harness.Request(id, "bash", string(arguments))), "Mcp-Protocol-Version", resumable)
	require.Equal(c.T, http.StatusOK, resp.StatusCode)
	return c.reads(resp)
}

// breaks has a call run a command, whose stream must break with no more than a header.
func (c *webClient) breaks(command, protocol string) (broken chan struct{}) {
	arguments, err := json.Marshal(map[string]string{"command": command})
	require.NoError(c.T, err)
	r, err := http.NewRequestWithContext(c.Soon(), http.MethodPost, c.url(), strings.NewReader(harness.Request(5, "bash", string(arguments))))
	require.NoError(c.T, err)
	for name, value := range map[string]string{"Accept": "application/json, text/event-stream", "Content-Type": "application/json",
		"Mcp-Protocol-Version": protocol, "Authorization": "Bearer " + c.token, "Mcp-Session-Id": c.session} {
		r.Header.Set(name, value)
	}
	broken = make(chan struct{})
	go func() {
		defer close(broken)
		resp, err := http.DefaultClient.Do(r)
		if err == nil {
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			assert.Empty(c.T, string(text))
		}
	}()
	return broken
}

// returns sends a GET after an event.
func (c *webClient) returns(event string) *http.Response {
	return c.send(c.Soon(), http.MethodGet, "", "Mcp-Protocol-Version", resumable, "Last-Event-ID", event)
}

// reads reads the stream of a response.
func (c *webClient) reads(resp *http.Response) *webStream {
	c.T.Cleanup(func() { resp.Body.Close() })
	in := bufio.NewScanner(resp.Body)
	in.Buffer(nil, 1<<20)
	return &webStream{c, resp, in}
}

// next returns the value of the next field with a name, and whether there is one before the end of the stream.
func (s *webStream) next(name string) (value string, ok bool) {
	for s.in.Scan() {
		if value, ok = strings.CutPrefix(s.in.Text(), name+": "); ok {
			return value, true
		}
	}
	return "", false
}

// event returns the id of the event by which the client can return.
func (s *webStream) event() string {
	s.T.Helper()
	id, ok := s.next("id")
	require.True(s.T, ok, "the stream has an id")
	return id
}

// webAnswer is a JSON-RPC response.
type webAnswer struct {
	ID     json.RawMessage
	Result *struct {
		IsError           bool
		StructuredContent ran
	}
	Error *struct {
		Code int
		Data struct{ Effect string }
	}
}

// answer returns the response to a call.
func (s *webStream) answer() (a webAnswer) {
	s.T.Helper()
	for {
		text, ok := s.next("data")
		require.True(s.T, ok, "the stream has a response: %v", s.in.Err())
		if text == "" {
			continue
		}
		require.NoError(s.T, json.Unmarshal([]byte(text), &a), text)
		if a.Result != nil || a.Error != nil {
			_, more := s.next("data")
			assert.False(s.T, more, "the response is the last event")
			return a
		}
	}
}

// lostAnswer asserts that a response says that the result is lost.
func (s *webStream) lostAnswer(id int) {
	s.T.Helper()
	a := s.answer()
	assert.Equal(s.T, strconv.Itoa(id), string(a.ID))
	require.NotNil(s.T, a.Error)
	assert.Equal(s.T, -32000, a.Error.Code)
	assert.Equal(s.T, "unknown", a.Error.Data.Effect)
}

// alone waits until nothing is kept but n sessions.
func (w *webHost) alone(n int) {
	w.T.Helper()
	lasts(w.Host, 0)
	w.Eventually("no call is kept", func() bool { return len(w.kept()) == n })
}

// TestTakeOverHTTPCall: a command of a call in flight runs on when the daemon ends. The SDK's client comes back, and the next
// daemon answers the call with the whole output. The log has one beginning and one end. Rounds by SCOPEFS_TEST_ROUNDS.
func TestTakeOverHTTPCall(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	need.Once(t)
	for how, end := range map[string]func(*harness.Host){"SIGTERM": ends["SIGTERM"], "SIGKILL": ends["SIGKILL"], "upgrade": upgrade} {
		t.Run(how, func(t *testing.T) {
			w := serveWeb(onMemory(t, map[string]string{"a": ""}))
			u := w.ConnectHTTP(nil, w.url(), w.Token("a"))
			kept, first := 0, 0
			for i := range rounds(3) {
				type returned struct {
					*mcp.CallToolResult
					err error
				}
				answered := make(chan returned, 1)
				go func() {
					r, err := u.Send(w.Soon(), "bash", args{"stdin": "given\n", "command": fmt.Sprintf(`cat; i=0
until [ -e done%[1]d ]; do echo $i; echo e$i >&2; i=$((i+1)); [ $i -lt 50000 ] || sleep 0.01; done; echo $i >count%[1]d; exit 7`, i)})
					answered <- returned{r, err}
				}()
				lasts(w.Host, kept+1)
				w.Eventually("the call is kept", func() bool { return len(w.kept()) == 2 })
				end(w.Host)
				if i%2 == 1 { // it ends in the gap
					w.Put(fmt.Sprintf("agents/a/done%d", i), "")
				}
				w.start()
				w.Put(fmt.Sprintf("agents/a/done%d", i), "")
				r := <-answered
				require.NoError(t, r.err)
				require.False(t, r.IsError, harness.Said(r.CallToolResult))
				var out ran
				text, err := json.Marshal(r.StructuredContent)
				require.NoError(t, err)
				require.NoError(t, json.Unmarshal(text, &out))
				require.Equal(t, 7, *out.ExitCode)
				count, err := strconv.Atoi(strings.TrimSpace(harness.ReadAll(t, w.Scope("a", fmt.Sprintf("count%d", i)))))
				require.NoError(t, err)
				var want, wantErr strings.Builder
				want.WriteString("given\n")
				for i := range count {
					fmt.Fprintln(&want, i)
					fmt.Fprintf(&wantErr, "e%d\n", i)
				}
				for stream, text := range map[string][2]string{"stdout": {want.String(), out.Stdout}, "stderr": {wantErr.String(), out.Stderr}} {
					if out.ProcessID != "" {
						shown := ""
						for {
							page := u.Call("process_read", args{"id": out.ProcessID, "stream": stream, "offset": len(shown), "limit": 262144})["output"].(string)
							if shown += page; page == "" {
								break
							}
						}
						text[1] = shown
					}
					assert.Equal(t, text[0], text[1], stream)
				}
				if out.ProcessID != "" {
					kept++
				}
				lasts(w.Host, kept)
				w.Eventually("the request is removed", func() bool { return len(w.kept()) == 1 })
				if open := descriptors(t, w.Host.HolderPID()) - 4*kept; i == 0 {
					first = open
				} else {
					assert.LessOrEqual(t, open, first+4, "descriptors of the holder in round %d", i)
				}
			}
			for _, call := range w.Calls("a", "bash") {
				var all []string
				for _, e := range w.Events("a") {
					if e.Event == audit.KindCall && e.Call == call.Call {
						all = append(all, e.Outcome)
					}
				}
				assert.Equal(t, []string{audit.OutcomeBegin, "ok"}, all)
			}
			w.Unbroken()
		})
	}
}

// TestTakeOverHTTPCallAgain: a call outlives a daemon that has it from another one, whether the client came back to that or not.
func TestTakeOverHTTPCallAgain(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := serveWeb(harness.LayOut(t, map[string]string{"a": ""}))
			c := w.client("a").greet()
			first := c.begins(5, "until [ -e done ]; do sleep 0.01; done; echo all")
			event := first.event()
			lasts(w.Host, 1)
			for i := range 3 {
				end(w.Host)
				w.start()
				if i == 1 {
					again := c.reads(c.returns(event))
					require.Equal(t, event, again.event())
				}
			}
			w.Put("agents/a/done", "")
			a := c.reads(c.returns(event)).answer()
			assert.Equal(t, "5", string(a.ID))
			require.NotNil(t, a.Result)
			assert.Equal(t, "all\n", a.Result.StructuredContent.Stdout)
			_, ok := first.next("data: {")
			assert.False(t, ok)
			w.alone(1)
			assertOnce(w.Host, "a", "ok")
		})
	}
}

// TestTakeOverHTTPCallAttack: nobody but its session resumes a call, and that session not twice. Ids of events that were never
// given resume nothing.
func TestTakeOverHTTPCallAttack(t *testing.T) {
	need.Once(t)
	w := serveWeb(harness.LayOut(t, map[string]string{"a": "", "b": ""}))
	c, other, b := w.client("a").greet(), w.client("a").greet(), w.client("b").greet()
	event := c.begins(5, "until [ -e done ]; do sleep 0.01; done; echo secret").event()
	conflict := c.returns(event)
	assert.Equal(t, http.StatusConflict, conflict.StatusCode, "the stream of the call is open")
	conflict.Body.Close()
	lasts(w.Host, 1)
	w.Kill()
	w.start()
	call, id, _ := strings.Cut(event, ".")
	status := func(c *webClient, event string, want int) {
		t.Helper()
		resp := c.returns(event)
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		require.NoError(t, err)
		assert.Equal(t, want, resp.StatusCode, "%.100q: %s", event, text)
		assert.NotContains(t, string(text), "secret")
	}
	status(&webClient{w, "", c.session}, event, http.StatusUnauthorized)
	status(&webClient{w, b.token, c.session}, event, http.StatusNotFound)
	status(&webClient{w, c.token, strings.Repeat("A", 26)}, event, http.StatusNotFound)
	other.reads(other.returns(event)).lostAnswer(5)
	b.reads(b.returns(event)).lostAnswer(5)
	for _, id := range []string{"nothing", "_0", call, call + ".", "." + id, call + "._", call + ".bnVsbA", call + ".e30", call + ".MSwibWV0aG9kIjoieCI",
		call + "." + strings.Repeat("M", 100), strings.Repeat("x", 20_000), "../" + c.session + "." + id} {
		status(c, id, http.StatusBadRequest)
	}
	for _, id := range []string{"x." + id, strings.ToUpper(call) + "." + id, strings.Repeat("a", 13) + "." + id} {
		c.reads(c.returns(id)).lostAnswer(5)
	}

	// Many at once: one of them gets the result.
	var all sync.WaitGroup
	answers, refused := make(chan webAnswer, 8), make(chan int, 8)
	for range 8 {
		all.Go(func() {
			resp := c.returns(event)
			if resp.StatusCode != http.StatusOK {
				resp.Body.Close()
				refused <- resp.StatusCode
				return
			}
			answers <- c.reads(resp).answer()
		})
	}
	for range 7 {
		assert.Equal(t, http.StatusConflict, <-refused)
	}
	w.Put("agents/a/done", "")
	all.Wait()
	a := <-answers
	require.NotNil(t, a.Result)
	assert.Equal(t, "secret\n", a.Result.StructuredContent.Stdout)
	c.reads(c.returns(event)).lostAnswer(5)
	w.alone(3)
	assertOnce(w.Host, "a", "ok")
}

// TestTakeOverHTTPCallUnclaimed: the command of a call whose client does not come back ends, and the log has its end. A client
// that comes back later learns that the result is lost.
func TestTakeOverHTTPCallUnclaimed(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	need.Once(t)
	w := serveWeb(harness.LayOut(t, map[string]string{"a": ""}))
	c, word := w.client("a").greet(), harness.Seconds(31)
	event := c.begins(5, "sleep "+word).event()
	lasts(w.Host, 1)
	w.Kill()
	w.start()
	w.Eventually("the command has ended", func() bool { return len(harness.Running("sleep", word)) == 0 })
	lasts(w.Host, 0)
	c.reads(c.returns(event)).lostAnswer(5)
	w.alone(1)
	w.Eventually("the end is in the log", func() bool {
		n := 0
		for _, e := range w.Calls("a", "bash") {
			if e.Outcome != audit.OutcomeBegin {
				n++
			}
		}
		return n == 1
	})
	c.bash("true")
}

// TestTakeOverHTTPCallDenied: rules that do not allow the call any more end its command.
func TestTakeOverHTTPCallDenied(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	w := serveWeb(harness.LayOut(t, map[string]string{"a": ""}))
	c, word := w.client("a").greet(), harness.Seconds(32)
	event := c.begins(5, "sleep "+word).event()
	lasts(w.Host, 1)
	w.Terminate()
	w.Define("a", "tools: [read_file]")
	w.start()
	a := c.reads(c.returns(event)).answer()
	require.NotNil(t, a.Result)
	assert.True(t, a.Result.IsError)
	assert.Empty(t, harness.Running("sleep", word))
	w.alone(1)
}

// TestTakeOverHTTPCallEnds: no call is kept by accident: with an older protocol, of a session that ends, with a long request, and
// when the daemon is stopped.
func TestTakeOverHTTPCallEnds(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	tests := map[string]func(w *webHost, c *webClient, word string){
		"older protocol": func(w *webHost, c *webClient, word string) {
			broken := c.breaks("sleep "+word, "2025-06-18")
			w.Eventually("it runs", func() bool { return len(harness.Running("sleep", word)) == 1 })
			w.Kill()
			<-broken
			w.start()
		},
		"long request": func(w *webHost, c *webClient, word string) {
			broken := c.breaks("sleep "+word+" # "+strings.Repeat("x", 64<<10), resumable)
			w.Eventually("it runs", func() bool { return len(harness.Running("sleep", word)) == 1 })
			w.Terminate()
			<-broken
			w.start()
		},
		"session ends": func(w *webHost, c *webClient, word string) {
			event := c.begins(5, "until [ -e done ]; do sleep 0.01; done").event()
			var all sync.WaitGroup
			all.Go(func() { assert.Equal(w.T, http.StatusNoContent, c.status(http.MethodDelete)) }) // it waits for calls
			w.Put("agents/a/done", "")
			all.Wait()
			w.Eventually("the session is removed", func() bool { return len(w.kept()) == 0 })
			resp := c.returns(event)
			resp.Body.Close()
			assert.Equal(w.T, http.StatusNotFound, resp.StatusCode)
			c.session = ""
			c.greet()
		},
		"cancelled": func(w *webHost, c *webClient, word string) {
			c.begins(5, "sleep "+word).event()
			status, _ := c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`)
			assert.Equal(w.T, http.StatusAccepted, status)
		},
		"--stop": func(w *webHost, c *webClient, word string) {
			c.begins(5, "sleep "+word).event()
			w.Must("daemon", "--stop")
			<-w.Ended
			assert.Empty(w.T, harness.Running("sleep", word))
			w.start()
			c.session = ""
			c.greet()
		},
	}
	i := 0
	for name, test := range tests {
		word := harness.Seconds(33 + i)
		i++
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serveWeb(harness.LayOut(t, map[string]string{"a": ""}))
			c := w.client("a").greet()
			test(w, c, word)
			w.Eventually("the command has ended", func() bool { return len(harness.Running("sleep", word)) == 0 })
			w.alone(1)
			c.bash("true")
		})
	}
}

// TestHTTPCallLost: a client that has lost its connection, but not the daemon, learns that the result is lost. Nothing is kept of
// such calls when they have ended.
func TestHTTPCallLost(t *testing.T) {
	w := serveWeb(harness.LayOut(t, map[string]string{"a": ""}))
	c := w.client("a").greet()
	for i := range 40 { // more than an agent's calls at once
		s := c.begins(i, fmt.Sprintf("until [ -e done%d ]; do sleep 0.01; done", i))
		event := s.event()
		s.resp.Body.Close()
		w.Eventually("the stream has ended", func() bool {
			resp := c.returns(event)
			if resp.StatusCode == http.StatusConflict {
				resp.Body.Close()
				return false
			}
			c.reads(resp).lostAnswer(i)
			return true
		})
		require.NoError(t, os.WriteFile(w.Scope("a", fmt.Sprintf("done%d", i)), nil, 0o644))
	}
	w.alone(1)
	assertOnce(w.Host, "a", "ok")
}
