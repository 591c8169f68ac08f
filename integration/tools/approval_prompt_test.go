package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
)

// TestClientsPermissionPrompt: Claude Code asks for the use of its own tools in the queue
// of approvals, and does what the operator decides.
func TestClientsPermissionPrompt(t *testing.T) {
	need.Once(t)
	needClients(t)
	onLoopback(t)
	h := newWaiting(t, map[string]string{"a": harness.AskWrite})
	work := t.TempDir()
	file := func(name string) string { return filepath.Join(work, name) }
	bash := func(name string) func(string) turn {
		return func(string) turn {
			return turn{tool: "Bash", input: args{"command": "touch " + file(name), "description": "make " + name}}
		}
	}
	model := serveClaude(t, bash("one"), bash("two"), bash("three"), bash("four"),
		func(string) turn { return turn{answer: "done"} })
	settings, err := json.Marshal(map[string]any{"mcpServers": args{"scopefs": args{"command": harness.Program, "args": []string{"--base", h.Base, "mcp", "--agent", "a"}}}})
	require.NoError(t, err)
	installed, err := filepath.Abs("../../bin/clients/node_modules")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(installed, agentPrograms[runtime.GOARCH]["claude"]), "--print", "--bare", "--strict-mcp-config", "--mcp-config", string(settings),
		"--permission-prompt-tool", "mcp__scopefs__permission_prompt", "--no-session-persistence", "make files")
	cmd.Dir = work
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH"), "ANTHROPIC_API_KEY=key", "ANTHROPIC_BASE_URL=" + model.url,
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start()) // by this thread, in its network
	end := make(chan error, 1)
	go func() { end <- cmd.Wait() }()

	w := watch(h)
	next := func(command string) approvals.Approval {
		p := w.next("waits")
		assert.Equal(t, "permission_prompt:Bash", p.Tool)
		assert.Equal(t, command, p.Subject)
		return p
	}
	assert.Empty(t, w.say("y "+next("touch "+file("one")).ID))
	assert.Empty(t, w.say("n "+next("touch "+file("two")).ID))
	assert.Empty(t, w.say("p "+next("touch "+file("three")).ID+" 1h touch *")) // and four
	require.NoError(t, <-end, "%s", &out)
	assert.Equal(t, "done\n", out.String())
	for name, there := range map[string]bool{"one": true, "two": false, "three": true, "four": true} {
		_, err := os.Stat(file(name))
		assert.Equal(t, there, err == nil, name)
	}
	assert.Contains(t, model.results[1], "the operator has denied it")
	for _, outcome := range []string{"asked", "approved", "denied", "stands", "used"} {
		assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindApproval, Outcome: outcome}), outcome)
	}
}

// TestPermissionPrompt: what is asked for is no call of a tool here: no approval of the
// one is one of the other, and what is wrong or not decided is refused.
func TestPermissionPrompt(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": harness.AskWrite, "none": "tools: [read_file]"})
	h.Put("scopefs.yaml", "approvals: {wait: 200ms}\n")
	h.Start()
	u := h.Connect("a")
	ask := func(tool, input string) map[string]any {
		r := u.Text("permission_prompt", args{"tool_name": tool, "tool_use_id": fmt.Sprint(time.Now().UnixNano()), "input": json.RawMessage(input)})
		var said map[string]any
		require.NoError(t, json.Unmarshal([]byte(r), &said))
		return said
	}
	said := ask("bash", `{"command": "touch ran"}`)
	assert.Equal(t, "deny", said["behavior"])
	id := waiting(h, 1)[0]
	assert.Contains(t, said["message"], id)
	h.Must("approvals", "approve", id, "--always")
	assert.Equal(t, "allow", ask("bash", `{"command": "touch ran"}`)["behavior"])
	assert.Equal(t, "allow", ask("bash", `{"command": "touch ran"}`)["behavior"])
	u.Waits("bash", args{"command": "touch ran"})
	assert.NoFileExists(t, h.Scope("a", "ran"))

	said = ask("Bash", `{"command": "true 1", "n": 12345678901234567890}`)
	assert.Equal(t, "deny", said["behavior"])
	for _, id := range waiting(h, 2) {
		h.Must("approvals", "approve", id)
	}
	r := u.Text("permission_prompt", args{"tool_name": "Bash", "input": json.RawMessage(`{"command": "true 1", "n": 12345678901234567890}`)})
	assert.JSONEq(t, `{"behavior": "allow", "updatedInput": {"command": "true 1", "n": 12345678901234567890}}`, r)
	assert.Contains(t, r, "12345678901234567890")
	assert.Equal(t, "deny", ask("Bash", `{"command": "true 1", "n": 12345678901234567890}`)["behavior"], "once")

	for _, wrong := range []args{{}, {"tool_name": "x"}, {"tool_name": "a b", "input": args{}}, {"tool_name": "x", "input": "y"}, {"tool_name": "x\x1b", "input": args{}}} {
		assert.Equal(t, tools.Invalid, u.Fails("permission_prompt", wrong).Code, "%v", wrong)
	}
	assert.NotContains(t, h.Connect("none").List(), "permission_prompt")
}
