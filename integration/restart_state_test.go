package integration

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

	"github.com/scopefs/scopefs/tools"
)

// rounds is how often a test repeats something that is killed at a time of its
// own; SCOPEFS_TEST_ROUNDS makes it more.
func rounds(few int) int {
	if n, err := strconv.Atoi(os.Getenv("SCOPEFS_TEST_ROUNDS")); err == nil {
		return n
	}
	return few
}

// TestRestartApprovals: what waits, what is granted and what is denied is so for
// the next daemon, however the last one ended.
func TestRestartApprovals(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*host){"stopped": (*host).stop, "killed": (*host).kill} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, map[string]string{"a": askWrite})
			plant(t, h.scope("a"), "f=one")
			u := h.connect("a")
			run, write := args{"command": "echo '<&>' >>ran"}, args{"path": "f", "content": "two"}
			waiting, granted, denied := u.waits("bash", run), u.waits("write_file", write), u.waits("bash", args{"command": "no"})
			h.must("approvals", "approve", granted)
			h.must("approvals", "deny", denied)
			before := h.must("approvals", "--json")
			end(h)
			h.start()
			assert.Equal(t, before, h.must("approvals", "--json"))
			u = h.connect("a")
			assert.Equal(t, waiting, u.waits("bash", run))
			assert.Equal(t, tools.Denied, u.fails("bash", args{"command": "no"}).Code)
			plant(t, h.scope("a"), "f=other")
			assert.NotEqual(t, granted, u.waits("write_file", write), "it is for the content that it was for")
			plant(t, h.scope("a"), "f=one")
			u.call("write_file", write)
			assert.Equal(t, "two", readAll(t, h.scope("a", "f")))
			h.must("approvals", "approve", waiting)
			end(h)
			h.start()
			u = h.connect("a")
			assert.Equal(t, "", u.bash(run["command"].(string)))
			end(h)
			h.start()
			assert.NotEqual(t, waiting, h.connect("a").waits("bash", run), "used is used")
			assert.Equal(t, "<&>\n", readAll(t, h.scope("a", "ran")))

			// Other rules, other settings of the host, down: void, also while no daemon runs.
			granted = h.connect("a").waits("bash", run)
			h.must("approvals", "approve", granted)
			end(h)
			h.define("a", askWrite+"\nrate_limits: {stat: 1/second}")
			h.start()
			second := h.connect("a").waits("bash", run)
			assert.NotEqual(t, granted, second)
			h.must("approvals", "approve", second)
			end(h)
			require.NoError(t, os.WriteFile(filepath.Join(h.base, "scopefs.yaml"), []byte("sandbox: {env: {A: b}}\n"), 0o644))
			h.start()
			assert.Equal(t, "[]\n", h.must("approvals", "--json"))
			h.must("approvals", "approve", h.connect("a").waits("bash", run))
			h.must("down", "a")
			end(h)
			h.start()
			assert.Equal(t, "[]\n", h.must("approvals", "--json"))
		})
	}
}

// TestRestartApprovalUsedOnce: a daemon that is killed between the use of an
// approval and the answer does not make it two uses.
func TestRestartApprovalUsedOnce(t *testing.T) {
	h := layOut(t, map[string]string{"a": askWrite})
	h.timeout = 10 * time.Minute
	h.start()
	id := h.connect("a").waits("bash", args{"command": "echo x >>ran0; sleep 100"})
	h.must("approvals", "approve", id)
	// The command has begun and is not answered.
	r := h.dial("a").greet()
	io.WriteString(r, request(1, "bash", `{"command":"echo x >>ran0; sleep 100"}`))
	h.eventually("it runs", func() bool { text, _ := os.ReadFile(h.scope("a", "ran0")); return len(text) > 0 })
	h.kill()
	h.start()
	assert.NotEqual(t, id, h.connect("a").waits("bash", args{"command": "echo x >>ran0; sleep 100"}))
	assert.Equal(t, "x\n", readAll(t, h.scope("a", "ran0")))

	for i := 1; i <= rounds(5); i++ { // at any time
		name := "ran" + strconv.Itoa(i)
		command := "echo x >>" + name
		h.must("approvals", "approve", h.connect("a").waits("bash", args{"command": command}))
		r := h.dial("a").greet()
		io.WriteString(r, request(1, "bash", `{"command":"`+command+`"}`))
		time.Sleep(time.Duration(i%10) * 2 * time.Millisecond)
		h.kill()
		h.start()
		u := h.connect("a")
		if _, err := u.send(h.soon(), "bash", args{"command": command}); err != nil { // runs if the approval was not used yet
			t.Error(err)
		}
		text, _ := os.ReadFile(h.scope("a", name))
		assert.LessOrEqual(t, strings.Count(string(text), "x"), 1, "round %d", i)
		used := 0
		for _, e := range h.events("a") {
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
	const limit = "rate_limits: {stat: 3/hour}"
	h := newHost(t, map[string]string{"a": limit})
	stat := args{"path": "."}
	h.connect("a").call("stat", stat)
	h.kill()
	h.start()
	h.connect("a").call("stat", stat)
	h.stop()
	h.start()
	u := h.connect("a")
	u.call("stat", stat)
	assert.Equal(t, tools.RateLimited, u.fails("stat", stat).Code)
	h.kill()
	h.start()
	assert.Equal(t, tools.RateLimited, h.connect("a").fails("stat", stat).Code)
	h.stop()
	_, errs, code := h.try("call", "--agent", "a", "stat", "path=.")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, string(tools.RateLimited), "without a daemon")
}

// TestRestartStateIsTheOperators: no agent can read what is kept.
func TestRestartStateIsTheOperators(t *testing.T) {
	h := newHost(t, map[string]string{"a": askWrite + "\nrate_limits: {stat: 3/hour}\nuser: 4321"})
	require.NoError(t, os.Chown(h.scope("a"), 4321, 4321))
	u := h.connect("a")
	u.call("stat", args{"path": "."})
	u.waits("bash", args{"command": "true"})
	seen := 0
	require.NoError(t, filepath.Walk(filepath.Join(h.base, "state"), func(name string, info os.FileInfo, err error) error {
		if dir := filepath.Base(filepath.Dir(name)); dir == "approvals" || dir == "rates" {
			seen++
			assert.Zero(t, info.Mode().Perm()&0o077, name)
		}
		return err
	}))
	assert.Equal(t, 2, seen)
}
