package daemon

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/need"
)

// ran is the result of the tool bash, or of another one of its package.
type ran struct {
	Stdout, Stderr, Output, Signal string
	ExitCode                       *int   `json:"exit_code"`
	ProcessID                      string `json:"process_id"`
	Running                        bool
	TimedOut                       bool  `json:"timed_out"`
	NextOffset                     int64 `json:"next_offset"`
}

// call sends a call of a tool with arguments.
func (c *wireClient) call(id int, tool string, arguments map[string]any) {
	c.t.Helper()
	text, err := json.Marshal(arguments)
	require.NoError(c.t, err)
	c.says(harness.Request(id, tool, string(text)))
}

// ran returns the result of a call.
func (c *wireClient) ran(id int) (out ran) {
	c.t.Helper()
	m := c.answer(id)
	require.NotNil(c.t, m.Result, "%+v", m.Error)
	require.False(c.t, m.Result.IsError, "%s", m.Result.Content[0].(*mcp.TextContent).Text)
	text, err := json.Marshal(m.Result.StructuredContent)
	require.NoError(c.t, err)
	require.NoError(c.t, json.Unmarshal(text, &out), string(text))
	return out
}

// whole returns a stream of the command of a call; shown is what the result has of it.
func (c *wireClient) whole(id int, of ran, stream, shown string) string {
	if of.ProcessID == "" {
		return shown
	}
	all := ""
	for {
		c.call(id, "process_read", map[string]any{"id": of.ProcessID, "stream": stream, "offset": len(all), "limit": 262144})
		page := c.ran(id)
		if all += page.Output; page.Output == "" {
			return all
		}
	}
}

// lasting returns how many commands the holder keeps.
func lasting(h *harness.Host) (n int) {
	all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", h.HolderPID()))
	for _, name := range all {
		if to, _ := os.Readlink(name); strings.HasPrefix(to, "/memfd:scopefs-output") {
			n++
		}
	}
	return n / 3 // standard output, standard error, and their order
}

// lasts waits until commands live on when the daemon ends.
func lasts(h *harness.Host, commands int) {
	h.T.Helper()
	h.Eventually("commands live on", func() bool { return lasting(h) == commands })
}

// assertOnce asserts that each call of an agent has one beginning and one end in the log, with an outcome.
func assertOnce(h *harness.Host, agent, outcome string) {
	h.T.Helper()
	all := map[string][]string{}
	for _, e := range h.Events(agent) {
		if e.Event == audit.KindCall {
			all[e.Call] = append(all[e.Call], e.Outcome)
		}
	}
	for call, outcomes := range all {
		assert.Equal(h.T, []string{audit.OutcomeBegin, outcome}, outcomes, call)
	}
}

// TestTakeOverCall: a command of a call in flight runs on when the daemon ends, and the next daemon answers the call with its
// whole output. The log has one beginning and one end. Rounds by SCOPEFS_TEST_ROUNDS.
func TestTakeOverCall(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	need.Once(t)
	for how, end := range map[string]func(*harness.Host){"SIGTERM": ends["SIGTERM"], "SIGKILL": ends["SIGKILL"], "upgrade": upgrade} {
		t.Run(how, func(t *testing.T) {
			h := onMemory(t, map[string]string{"a": ""})
			h.Start()
			c := greetedBridge(h, "a")
			t.Cleanup(func() {
				if t.Failed() {
					for _, e := range h.Events("a") {
						t.Logf("%s %s %s %s %s", e.Event, e.Session, e.Call, e.Outcome, e.Detail)
					}
				}
			})
			n, kept := rounds(3), 0
			for i := range n {
				id := 10 * (i + 1)
				c.call(id, "bash", map[string]any{"stdin": "given\n", "command": fmt.Sprintf(`cat; i=0
until [ -e done%[1]d ]; do echo $i; echo e$i >&2; i=$((i+1)); [ $i -lt 50000 ] || sleep 0.01; done; echo $i >count%[1]d; exit 7`, i)})
				lasts(h, kept+1)
				end(h)
				if i%2 == 0 {
					h.Start()
					assert.Contains(t, c.back(), inSameSandbox)
					h.Put(fmt.Sprintf("agents/a/done%d", i), "")
				} else { // it ends in the gap
					h.Put(fmt.Sprintf("agents/a/done%d", i), "")
					h.Start()
					assert.Contains(t, c.back(), inSameSandbox)
				}
				out := c.ran(id)
				require.Equal(t, 7, *out.ExitCode)
				count, err := strconv.Atoi(strings.TrimSpace(harness.ReadAll(t, h.Scope("a", fmt.Sprintf("count%d", i)))))
				require.NoError(t, err)
				var want, wantErr strings.Builder
				want.WriteString("given\n")
				for i := range count {
					fmt.Fprintln(&want, i)
					fmt.Fprintf(&wantErr, "e%d\n", i)
				}
				assert.Equal(t, want.String(), c.whole(id+1, out, "stdout", out.Stdout))
				assert.Equal(t, wantErr.String(), c.whole(id+2, out, "stderr", out.Stderr))
				if out.ProcessID != "" {
					kept++
				}
				lasts(h, kept)
			}
			assertOnce(h, "a", "ok")
		})
	}
}

// TestTakeOverCallBackground: the id of a command in the background stays valid with the next daemon, and with the one after it.
func TestTakeOverCallBackground(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			h := harness.NewHost(t, map[string]string{"a": ""})
			c := greetedBridge(h, "a")
			c.call(1, "bash", map[string]any{"command": "echo before; until [ -e done ]; do sleep 0.01; done; echo after; sleep 1000", "background": true})
			id := c.ran(1).ProcessID
			require.NotEmpty(t, id)
			lasts(h, 1)
			for range 2 {
				end(h)
				h.Start()
				assert.Contains(t, c.back(), inSameSandbox)
			}
			h.Put("agents/a/done", "")
			h.Eventually("all output is there", func() bool {
				c.call(2, "process_read", map[string]any{"id": id, "offset": 0})
				out := c.ran(2)
				return out.Running && out.Output == "before\nafter\n"
			})
			c.call(3, "process_stop", map[string]any{"id": id})
			assert.Equal(t, "SIGTERM", c.ran(3).Signal)
		})
	}
}

// TestTakeOverCallDenied: rules that do not allow the call any more end its command.
func TestTakeOverCallDenied(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	h := harness.NewHost(t, map[string]string{"a": ""})
	c := greetedBridge(h, "a")
	word := harness.Seconds(9)
	c.call(1, "bash", map[string]any{"command": "sleep " + word})
	lasts(h, 1)
	h.Kill()
	h.Define("a", "tools: [read_file]")
	h.Start()
	assert.Contains(t, c.back(), inSameSandbox)
	m := c.answer(1)
	require.NotNil(t, m.Result, "%+v", m.Error)
	assert.True(t, m.Result.IsError)
	assert.Empty(t, harness.Running("sleep", word))
	assert.Zero(t, lasting(h))
}

// TestTakeOverCallAttack: nobody but its client resumes a call, and that client not with other arguments, and not twice.
func TestTakeOverCallAttack(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	c := greetedBridge(h, "a")
	c.call(1, "bash", map[string]any{"command": "until [ -e done ]; do sleep 0.01; done; echo secret"})
	lasts(h, 1)
	call := h.Calls("a", "bash")[0].Call
	h.Kill()
	h.Start()
	assert.Contains(t, c.back(), inSameSandbox)
	h.Eventually("its client has resumed it", func() bool {
		var top api.Top
		require.NoError(t, json.Unmarshal([]byte(h.Must("top", "--once", "--json")), &top))
		return len(top.Calls) == 1 && top.Calls[0].ID == call
	})
	resumes := func(of *wireClient, id int) {
		of.says(strings.Replace(harness.Request(id, "bash", `{"command":"id"}`), "tools/call", "scopefs/resume/"+call, 1))
		m := of.answer(id)
		require.Nil(t, m.Result)
		assert.Equal(t, "unknown", m.Error.Data.Effect)
	}
	resumes(c, 2) // which is under way
	resumes(greetedBridge(h, "a"), 1)
	h.Put("agents/a/done", "")
	assert.Equal(t, "secret\n", c.ran(1).Stdout)
	assertOnce(h, "a", "ok")
}
