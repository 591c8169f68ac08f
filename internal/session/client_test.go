package session

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/tools/bash"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/file/worker"
)

// TestTools: definitions may name the tools that clients have, and know which of
// them change files.
func TestTools(t *testing.T) {
	c := &client{agent: &Agent{Shared: &Shared{Settings: config.Settings{Host: agents.Host{Memory: true}, Approve: config.Approve{Wait: 1}}}}}
	all, err := c.tools(file.New(worker.New(worker.In(c))), bash.NewShell(c), "")
	require.NoError(t, err)
	known, err := Tools()
	require.NoError(t, err)
	require.Len(t, known, len(all))
	listed := map[catalog.Listed][]string{}
	for i, tool := range all {
		assert.Equal(t, catalog.Tool{Name: tool.Name, Aliases: tool.Aliases, Writes: tool.Hints.Writes, Listed: known[i].Listed}, known[i])
		listed[known[i].Listed] = append(listed[known[i].Listed], tool.Name)
	}
	delete(listed, catalog.ListedNever)
	assert.Equal(t, map[catalog.Listed][]string{
		catalog.ListedBase: {"bash", "ask_user"}, catalog.ListedMemory: {"remember", "recall", "memory", "forget"},
		catalog.ListedSkills: {"skill"}, catalog.ListedMembers: {"delegate"}, catalog.ListedScopes: {"context_set"},
		catalog.ListedKept: {"checkpoint", "changes", "undo"}, catalog.ListedHeld: {"diff"}, catalog.ListedCommit: {"commit"},
		catalog.ListedTask: {"discard"},
	}, listed)
	assert.True(t, known.Match("builtin:shell", "bash") && known.Match("builtin:run_shell_command", "bash"))
}

func BenchmarkTools(b *testing.B) {
	for b.Loop() {
		_, _ = Tools()
	}
}
