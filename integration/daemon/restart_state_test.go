package daemon

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools"
)

// rounds is how often make test-all repeats something that is killed at a time of its own; make test does so a third as often.
// SCOPEFS_TEST_ROUNDS says how often.
func rounds(all int) int { return need.Rounds("SCOPEFS_TEST_ROUNDS", (all+2)/3, all) }

// TestRestartApprovals: what waits, what is granted and what is denied is so for
// the next daemon, however the last one ended.
func TestRestartApprovals(t *testing.T) {
	need.Once(t)
	t.Parallel()
	for name, end := range map[string]func(*harness.Host){"stopped": (*harness.Host).Stop, "killed": (*harness.Host).Kill} {
		t.Run(name, func(t *testing.T) {
			h := harness.NewHost(t, map[string]string{"a": harness.AskWrite})
			harness.Plant(t, h.Scope("a"), "f=one")
			u := h.Connect("a")
			run, write := args{"command": "echo '<&>' >>ran"}, args{"path": "f", "content": "two"}
			waiting, granted, denied := u.Waits("bash", run), u.Waits("write_file", write), u.Waits("bash", args{"command": "no"})
			h.Must("approvals", "approve", granted)
			h.Must("approvals", "deny", denied)
			before := h.Must("approvals", "--json")
			end(h)
			h.Start()
			assert.Equal(t, before, h.Must("approvals", "--json"))
			u = h.Connect("a")
			assert.Equal(t, waiting, u.Waits("bash", run))
			assert.Equal(t, tools.Denied, u.Fails("bash", args{"command": "no"}).Code)
			harness.Plant(t, h.Scope("a"), "f=other")
			assert.NotEqual(t, granted, u.Waits("write_file", write), "it is for the content that it was for")
			harness.Plant(t, h.Scope("a"), "f=one")
			u.Call("write_file", write)
			assert.Equal(t, "two", harness.ReadAll(t, h.Scope("a", "f")))
			h.Must("approvals", "approve", waiting)
			end(h)
			h.Start()
			u = h.Connect("a")
			assert.Equal(t, "", u.Bash(run["command"].(string)))
			end(h)
			h.Start()
			assert.NotEqual(t, waiting, h.Connect("a").Waits("bash", run), "used is used")
			assert.Equal(t, "<&>\n", harness.ReadAll(t, h.Scope("a", "ran")))

			// Other rules, other settings of the host, down: void, also while no daemon runs.
			granted = h.Connect("a").Waits("bash", run)
			h.Must("approvals", "approve", granted)
			end(h)
			h.Define("a", harness.AskWrite+"\nrate_limits: {stat: 1/second}")
			h.Start()
			second := h.Connect("a").Waits("bash", run)
			assert.NotEqual(t, granted, second)
			h.Must("approvals", "approve", second)
			end(h)
			require.NoError(t, os.WriteFile(filepath.Join(h.Base, "scopefs.yaml"), []byte("sandbox: {env: {A: b}}\n"), 0o644))
			h.Start()
			assert.Equal(t, "[]\n", h.Must("approvals", "--json"))
			h.Must("approvals", "approve", h.Connect("a").Waits("bash", run))
			h.Must("down", "a")
			end(h)
			h.Start()
			assert.Equal(t, "[]\n", h.Must("approvals", "--json"))
		})
	}
}

// TestRestartApprovalUsedOnce: a daemon that is killed between the use of an
// approval and the answer does not make it two uses.
func TestRestartApprovalUsedOnce(t *testing.T) {
	need.Once(t)
	h := harness.LayOut(t, map[string]string{"a": harness.AskWrite})
	h.Timeout = 10 * time.Minute
	h.Start()
	id := h.Connect("a").Waits("bash", args{"command": "echo x >>ran0; sleep 100"})
	h.Must("approvals", "approve", id)
	// The command has begun and is not answered.
	r := h.Dial("a").Greet()
	io.WriteString(r, harness.Request(1, "bash", `{"command":"echo x >>ran0; sleep 100"}`))
	h.Eventually("it runs", func() bool { text, _ := os.ReadFile(h.Scope("a", "ran0")); return len(text) > 0 })
	h.Kill()
	h.Start()
	assert.NotEqual(t, id, h.Connect("a").Waits("bash", args{"command": "echo x >>ran0; sleep 100"}))
	assert.Equal(t, "x\n", harness.ReadAll(t, h.Scope("a", "ran0")))

	for i := 1; i <= rounds(5); i++ { // at any time
		name := "ran" + strconv.Itoa(i)
		command := "echo x >>" + name
		h.Must("approvals", "approve", h.Connect("a").Waits("bash", args{"command": command}))
		r := h.Dial("a").Greet()
		io.WriteString(r, harness.Request(1, "bash", `{"command":"`+command+`"}`))
		time.Sleep(time.Duration(i%10) * 2 * time.Millisecond)
		h.Kill()
		h.Start()
		u := h.Connect("a")
		if _, err := u.Send(h.Soon(), "bash", args{"command": command}); err != nil { // runs if the approval was not used yet
			t.Error(err)
		}
		text, _ := os.ReadFile(h.Scope("a", name))
		assert.LessOrEqual(t, strings.Count(string(text), "x"), 1, "round %d", i)
		used := 0
		for _, e := range h.Events("a") {
			if e.Event == "approval" && e.Outcome == "used" && e.Op == "bash" {
				used++
			}
		}
		assert.LessOrEqual(t, used, i+1)
	}
}

// TestRestartRates: a limit does not start anew with the daemon, nor with a
// daemon for each command.
func TestRestartRates(t *testing.T) {
	need.Once(t)
	const limit = "rate_limits: {stat: 3/hour}"
	h := harness.NewHost(t, map[string]string{"a": limit})
	stat := args{"path": "."}
	h.Connect("a").Call("stat", stat)
	h.Kill()
	h.Start()
	h.Connect("a").Call("stat", stat)
	h.Stop()
	h.Start()
	u := h.Connect("a")
	u.Call("stat", stat)
	assert.Equal(t, tools.RateLimited, u.Fails("stat", stat).Code)
	h.Kill()
	h.Start()
	assert.Equal(t, tools.RateLimited, h.Connect("a").Fails("stat", stat).Code)
	h.Stop()
	_, errs, code := h.Try("call", "--agent", "a", "stat", "path=.")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, string(tools.RateLimited), "without a daemon")
}

// TestRestartStateIsTheOperators: no agent can read what is kept.
func TestRestartStateIsTheOperators(t *testing.T) {
	need.Once(t)
	h := harness.NewHost(t, map[string]string{"a": harness.AskWrite + "\nrate_limits: {stat: 3/hour}\nuser: 4321"})
	require.NoError(t, os.Chown(h.Scope("a"), 4321, 4321))
	u := h.Connect("a")
	u.Call("stat", args{"path": "."})
	u.Waits("bash", args{"command": "true"})
	seen := 0
	require.NoError(t, filepath.Walk(filepath.Join(h.Base, "state"), func(name string, info os.FileInfo, err error) error {
		if dir := filepath.Base(filepath.Dir(name)); dir == "approvals" || dir == "rates" {
			seen++
			assert.Zero(t, info.Mode().Perm()&0o077, name)
		}
		return err
	}))
	assert.Equal(t, 2, seen)
}
