package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// wireClient speaks with scopefs mcp line by line.
type wireClient struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	early []wireMessage // that were not waited for yet
}

// wireMessage is what a client gets.
type wireMessage struct {
	ID     any
	Method string
	Params struct{ Level, Data string }
	Result *mcp.CallToolResult
	Error  *struct {
		Code    int
		Message string
		Data    struct{ Code, Effect string }
	}
}

// startBridge starts scopefs mcp.
func startBridge(h *harness.Host, agent string) *wireClient {
	h.T.Helper()
	cmd := exec.Command(harness.Program, "--base", h.Base, "mcp", "--agent", agent)
	in, err := cmd.StdinPipe()
	require.NoError(h.T, err)
	out, err := cmd.StdoutPipe()
	require.NoError(h.T, err)
	cmd.Stderr = os.Stderr
	require.NoError(h.T, cmd.Start())
	c := &wireClient{t: h.T, cmd: cmd, in: in, lines: make(chan string, 1000)}
	go func() {
		for r := bufio.NewReader(out); ; {
			line, err := r.ReadString('\n')
			if err != nil {
				close(c.lines)
				return
			}
			c.lines <- line
		}
	}()
	h.T.Cleanup(func() {
		in.Close()
		kill := time.AfterFunc(15*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
	})
	return c
}

func (c *wireClient) says(text string) {
	c.t.Helper()
	_, err := io.WriteString(c.in, text)
	require.NoError(c.t, err)
}

// until returns the first message that is the wanted one; others are kept.
func (c *wireClient) until(what string, wanted func(wireMessage) bool) wireMessage {
	c.t.Helper()
	for i, m := range c.early {
		if wanted(m) {
			c.early = append(c.early[:i:i], c.early[i+1:]...)
			return m
		}
	}
	for {
		select {
		case line, ok := <-c.lines:
			require.True(c.t, ok, "scopefs mcp has ended before: %s", what)
			var m wireMessage
			require.NoError(c.t, json.Unmarshal([]byte(line), &m), line)
			if wanted(m) {
				return m
			}
			c.early = append(c.early, m)
		case <-time.After(30 * time.Second):
			c.t.Fatalf("the client does not get %s, but %+v", what, c.early)
		}
	}
}

func (c *wireClient) answer(id any) wireMessage {
	c.t.Helper()
	if n, ok := id.(int); ok {
		id = float64(n)
	}
	return c.until(fmt.Sprintf("the answer to %v", id), func(m wireMessage) bool { return m.Method == "" && m.ID == id })
}

func (c *wireClient) log(level string) wireMessage {
	c.t.Helper()
	return c.until("a log message", func(m wireMessage) bool { return m.Method == "notifications/message" && m.Params.Level == level })
}

func (c *wireClient) changed() {
	c.t.Helper()
	c.until("list_changed", func(m wireMessage) bool { return m.Method == "notifications/tools/list_changed" })
}

// TestRestartBridge: a client of scopefs mcp keeps its session when the daemon is
// killed, stopped or restarted, and hears what became of its calls.
func TestRestartBridge(t *testing.T) {
	need.Once(t)
	for name, end := range map[string]func(*harness.Host){"SIGTERM": (*harness.Host).Terminate, "SIGKILL": (*harness.Host).Kill} {
		t.Run(name, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"a": ""})
			h.Put("scopefs.yaml", "grace: 0s\n") // no call lives on
			h.Start()
			c := startBridge(h, "a")
			c.says(harness.Hello)
			require.Nil(t, c.answer("hello").Error)
			for i := 0; i < 10*rounds(3); i += 10 {
				name := "ran" + strconv.Itoa(i)
				c.says(harness.Request(i, "bash", `{"command":"echo x >>`+name+`; sleep 100"}`))
				h.Eventually("the call runs", func() bool { text, _ := os.ReadFile(h.Scope("a", name)); return len(text) > 0 })
				end(h)
				m := c.answer(i)
				if m.Result != nil { // a daemon that ends may answer still
					assert.True(t, m.Result.IsError)
				} else {
					require.NotNil(t, m.Error)
					assert.Equal(t, "unknown", m.Error.Data.Effect)
					assert.Contains(t, m.Error.Message, "whether it had an effect is unknown")
				}
				assert.Contains(t, c.log("warning").Params.Data, "reconnecting")
				c.says(harness.Request(i+1, "stat", `{"path":"`+name+`"}`)) // while there is none
				h.Start()
				m = c.answer(i + 1)
				require.NotNil(t, m.Result, "%+v", m.Error)
				assert.False(t, m.Result.IsError)
				c.log("notice")
				c.changed()
				assert.Equal(t, "x\n", harness.ReadAll(t, h.Scope("a", name)), "a call is never sent twice")
			}
		})
	}
}

// TestRestartBridgeStopped: who waits for a daemon that is stopped has an error
// soon, and the next daemon, or the same, when it goes on.
func TestRestartBridgeStopped(t *testing.T) {
	need.Once(t)
	h := harness.LayOut(t, map[string]string{"a": ""})
	h.Put("scopefs.yaml", "grace: 0s\n") // no call lives on
	h.Start()
	c := startBridge(h, "a")
	c.says(harness.Hello)
	require.Nil(t, c.answer("hello").Error)
	c.says(harness.Request(1, "bash", `{"command":"echo x >>ran; sleep 100"}`))
	h.Eventually("the call runs", func() bool { text, _ := os.ReadFile(h.Scope("a", "ran")); return len(text) > 0 })
	require.NoError(t, h.Cmd.Process.Signal(syscall.SIGSTOP))
	defer h.Cmd.Process.Signal(syscall.SIGCONT)
	began := time.Now()
	m := c.answer(1)
	assert.Less(t, time.Since(began), 6*time.Second) // 2 s are promised
	require.NotNil(t, m.Error)
	assert.Contains(t, m.Error.Message, "is stopped")
	assert.Equal(t, "unknown", m.Error.Data.Effect)
	c.says(harness.Request(2, "stat", `{"path":"ran"}`))
	require.NoError(t, h.Cmd.Process.Signal(syscall.SIGCONT))
	m = c.answer(2)
	require.NotNil(t, m.Result, "%+v", m.Error)
	assert.Equal(t, "x\n", harness.ReadAll(t, h.Scope("a", "ran")))
}

// TestRestartBridgeSDK: the Go SDK's client, in both kinds of the protocol, does
// not notice restarts but by errors of the calls that were under way. Of those
// that were answered each has happened once, of the others none twice.
func TestRestartBridgeSDK(t *testing.T) {
	need.Once(t)
	for _, version := range []string{"2025-06-18", "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"a": ""})
			h.Start()
			logged := make(chan string, 1000)
			changed := make(chan struct{}, 1000)
			client := mcp.NewClient(&mcp.Implementation{Name: "integration", Version: "v1"}, &mcp.ClientOptions{
				LoggingMessageHandler:  func(_ context.Context, r *mcp.LoggingMessageRequest) { logged <- fmt.Sprint(r.Params.Data) },
				ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
			})
			cmd := exec.Command(harness.Program, "--base", h.Base, "mcp", "--agent", "a")
			session, err := client.Connect(h.Soon(), &mcp.CommandTransport{Command: cmd, TerminateDuration: 15 * time.Second},
				&mcp.ClientSessionOptions{ProtocolVersion: version})
			require.NoError(t, err)
			defer session.Close()

			ctx, stop := context.WithCancel(context.Background())
			var clients sync.WaitGroup
			var mu sync.Mutex
			outcomes := map[string]string{}
			for c := range 3 {
				clients.Go(func() {
					for i := 0; ctx.Err() == nil; i++ {
						n := fmt.Sprintf("%d-%d", c, i)
						outcome := writeOnce(h, session, n)
						mu.Lock()
						outcomes[n] = outcome
						mu.Unlock()
					}
				})
			}
			count := func() int { mu.Lock(); defer mu.Unlock(); return len(outcomes) }
			for i := range rounds(4) {
				before := count()
				h.Eventually("calls are answered", func() bool { return count() >= before+10 })
				if i%2 == 0 {
					h.Kill()
				} else {
					h.Stop()
				}
				h.Start()
			}
			before := count()
			h.Eventually("calls are answered again", func() bool { return count() >= before+10 })
			stop()
			clients.Wait()
			lines := map[string]int{}
			for line := range strings.Lines(harness.ReadAll(t, h.Scope("a", "done"))) {
				lines[strings.TrimSpace(line)]++
			}
			kinds := map[string]int{}
			for n, outcome := range outcomes {
				kinds[outcome]++
				switch outcome {
				case "ok":
					assert.Equal(t, 1, lines[n], n)
				case "none":
					assert.Zero(t, lines[n], n)
				default:
					assert.LessOrEqual(t, lines[n], 1, n)
				}
			}
			t.Logf("%v", kinds)
			<-changed
			if version == "2025-06-18" {
				assert.Contains(t, <-logged, "reconnecting")
			}
		})
	}
}

// writeOnce has a call write a line, and says what the client knows of it: ok,
// failed, or an error's effect.
func writeOnce(h *harness.Host, session *mcp.ClientSession, n string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "bash", Arguments: args{"command": "echo " + n + " >>done"}})
	switch {
	case err == nil && r.IsError:
		return "failed"
	case err == nil:
		return "ok"
	}
	wire, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok {
		h.T.Errorf("%s: %v", n, err)
		return "lost"
	}
	var data struct{ Effect string }
	_ = json.Unmarshal(wire.Data, &data)
	return data.Effect
}

// TestRestartBridgeDown: a client waits for an agent that is taken down as for a
// daemon.
func TestRestartBridgeDown(t *testing.T) {
	need.Once(t)
	h := harness.NewHost(t, map[string]string{"a": ""})
	c := startBridge(h, "a")
	c.says(harness.Hello)
	m := c.answer("hello")
	require.Nil(t, m.Error)
	h.Must("down", "a")
	c.log("warning")
	c.says(harness.Request(1, "stat", `{"path":"."}`))
	h.Must("up", "a")
	m = c.answer(1)
	require.NotNil(t, m.Result, "%+v", m.Error)
	c.log("notice")
	// A client that goes while there is none is not waited for.
	h.Must("down", "a")
	c.log("warning")
	require.NoError(t, c.in.Close())
	for range c.lines {
	}
}
