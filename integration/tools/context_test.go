package tools

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
)

// TestContextShown has commands with and without a context.
func TestContextShown(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "tools: [bash]\nscopes: {enum: [state, input]}"})
	u := h.Connect("a")
	assert.Equal(t, "[]\nstate.json\n", u.Text("bash", args{"command": "cat /context/state.json; echo; ls /context", "_scopes": []string{"state"}}))
	assert.Equal(t, "(no output)", u.Text("bash", args{"command": "ls -A /context"}))
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
