package tools

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/tools"
)

// TestContextShown has commands with and without a context.
func TestContextShown(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "tools: [bash]\nscopes: {enum: [state, input]}"})
	u := h.Connect("a")
	assert.Equal(t, "[]\nstate.json\n", u.Text("bash", args{"command": "cat /context/state.json; echo; ls /context", "_scopes": []string{"state"}}))
	assert.Equal(t, "(no output)", u.Text("bash", args{"command": "ls -A /context"}))
}

// TestContextProcess: a process of its own serves /context, and only that has /dev/fuse of it. When it is killed, the sandbox
// goes on without /context, and the log says so. It ends with the sandbox.
func TestContextProcess(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "tools: [bash]\nscopes: {enum: [state]}"})
	daemon := h.Cmd.Process.Pid
	served := func() []int { return harness.ChildrenOf(daemon, child.Context) }
	u, other := h.Connect("a"), h.Connect("a")
	look := args{"command": "cat /context/state.json", "_scopes": []string{"state"}}
	assert.Equal(t, "[]\n", u.Text("bash", look))
	assert.Equal(t, "[]\n", other.Text("bash", look))
	require.Len(t, served(), 2)
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", daemon))
	require.NoError(t, err)
	require.NotEmpty(t, fds)
	for _, fd := range fds {
		to, _ := os.Readlink(fd)
		assert.NotEqual(t, "/dev/fuse", to)
	}
	pid := served()[0]
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	h.Eventually("its death is recorded", func() bool {
		return h.Recorded("a", audit.Event{Event: audit.KindSandbox, Path: "/context", Outcome: "died"})
	})
	texts := []string{u.Text("bash", look), other.Text("bash", look)}
	slices.Sort(texts)
	assert.Contains(t, texts[0]+texts[1], "Transport endpoint is not connected")
	assert.Contains(t, texts, "[]\n", "that of the other client")
	for _, client := range []*harness.User{u, other} {
		assert.Equal(t, "on\n", client.Text("bash", args{"command": "echo on"}))
	}
	h.Must("down", "a")
	h.Eventually("no process is left", func() bool { return len(served()) == 0 })
}

// TestContextSet: context_set is for agents whose definition names scopes in scopes.set and
// that may write. It fills these scopes alone, and replaces nothing that the client gave.
func TestContextSet(t *testing.T) {
	h := harness.LayOut(t, map[string]string{
		"a":      "scopes: {enum: [state, notes], set: [\"*\"]}",
		"some":   "scopes: {enum: [state, notes], set: [notes]}",
		"none":   "scopes: {enum: [state, notes]}",
		"reader": "scopes: {enum: [state, notes], set: [notes]}\nview: {access: read}",
	})
	declare(h, "look", `"_scopes": {"type": "array", "items": {"enum": ["state", "notes"]}}`)
	h.Start()
	for _, id := range []string{"none", "reader"} {
		assertAbsent(h.Connect(id), id, "context_set", args{"messages": []args{{"type": "notes"}}})
	}
	u := h.Connect("some")
	assert.False(t, u.List()["context_set"].Annotations.ReadOnlyHint)
	u.Call("context_set", args{"messages": []args{{"type": "notes", "n": 1}}})
	for _, messages := range [][]args{{{"type": "state"}}, {{"type": "notes", "n": 2}, {"type": "state"}}} {
		assert.Equal(t, tools.Denied, u.Fails("context_set", args{"messages": messages}).Code)
	}
	assert.Contains(t, u.Text("bash", args{"command": "cat /context/notes.json", "_scopes": []string{"notes"}}), `"n":1`, "a call that is refused changes nothing")

	lines, code := batch(t, h, `[{"type": "state", "user": "Alice"}]`, `{"calls": [
		{"_tool": "context_set", "messages": [{"type": "state", "user": "Bob"}]},
		{"_tool": "context_set", "messages": [{"type": "notes", "n": 3}]},
		{"_tool": "look", "_scopes": ["state", "notes"]}]}`, "--parallel", "1")
	assert.Equal(t, 1, code)
	require.Len(t, lines, 3)
	assert.Equal(t, tools.Denied, lines[0].Error.Code)
	assert.JSONEq(t, `[{"type":"state","user":"Alice"}]`, string(lines[2].Result.Context["state"]))
	assert.JSONEq(t, `[{"type":"notes","n":3}]`, string(lines[2].Result.Context["notes"]))
}
