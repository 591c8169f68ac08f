package bash

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
)

func names(list []tools.Tool) (names []string) {
	for _, t := range list {
		names = append(names, t.Name)
	}
	return names
}

func TestTools(t *testing.T) {
	list, err := NewShell(nil).Tools()
	require.NoError(t, err)
	assert.Equal(t, []string{"bash", "process_read", "process_stop"}, names(list))
	for _, tool := range list {
		assert.False(t, tool.Hints.Writes, "%s stays in a read-only view", tool.Name)
		schema, err := json.Marshal(tool.Output)
		require.NoError(t, err)
		assert.Contains(t, string(schema), `"exit_code"`)
	}
	assert.Equal(t, []string{"command"}, list[0].Input.Required)
	assert.Equal(t, []string{"stdout", "stderr", "duration_ms"}, list[0].Output.Required)
	path, target := runArgs{Command: "make", Cwd: "/workspace/src/"}.Subject()
	assert.Equal(t, "src", path)
	assert.Equal(t, "make", target)
}

func TestProfile(t *testing.T) {
	for name, want := range map[string][]string{
		"claude": {"Bash", "BashOutput", "KillShell"}, "anthropic-editor": {"bash"}, "mcp-fs": nil,
	} {
		list, err := Profile(name)
		require.NoError(t, err)
		assert.Equal(t, want, names(list))
	}
	_, err := Profile("none")
	assert.EqualError(t, err, `unknown profile "none"`)
}

func TestProfileCalls(t *testing.T) {
	inner := func(all []tools.Inner, err error) string {
		if err != nil {
			return err.Error()
		}
		text, err := json.Marshal(all)
		require.NoError(t, err)
		return string(text)
	}
	assert.JSONEq(t, `[{"Tool":"bash","Args":{"command":"x"}}]`, inner(anthropicBash{Command: "x"}.calls()))
	assert.JSONEq(t, `[{"Tool":"bash","Args":{"command":":"}}]`, inner(anthropicBash{Restart: true}.calls()))
	assert.Contains(t, inner(anthropicBash{}.calls()), "invalid: ")
	assert.JSONEq(t, `[{"Tool":"process_read","Args":{"id":"p1"}}]`, inner(claudeOutput{ID: "p1"}.calls()))
	assert.Contains(t, inner(claudeOutput{Filter: "("}.calls()), "invalid: filter")

	structured, err := json.Marshal(readResult{ID: "p1", Output: "a 1\nb 2\na 3", status: status{Running: true}})
	require.NoError(t, err)
	all := []tools.Result{{Structured: structured, Content: textContent("whole")}}
	assert.Equal(t, "a 1\na 3\n[p1 is running]\n", claudeOutput{Filter: "^a"}.render(all).Content[0].Text)
	assert.Equal(t, "whole", claudeOutput{}.render(all).Content[0].Text)
	assert.Equal(t, "tool has been restarted", anthropicBash{Restart: true}.render(all).Content[0].Text)
	assert.Equal(t, "whole", anthropicBash{Command: "x"}.render(all).Content[0].Text)
}
