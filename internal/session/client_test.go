package session

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/account"
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
	c := &client{agent: &Agent{Daemon: nothing{}, Shared: &Shared{Host: &account.Host{}, Settings: config.Settings{Host: agents.Host{Memory: true}, Approve: config.Approve{Wait: 1}}}}}
	all, err := c.tools(file.New(worker.New(worker.In(c, c.dirs))), bash.NewShell(c), "")
	require.NoError(t, err)
	known := Tools()
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
		catalog.ListedKept: {"changes"}, catalog.ListedUndo: {"checkpoint", "undo"}, catalog.ListedHeld: {"diff"}, catalog.ListedCommit: {"commit"},
		catalog.ListedTask: {"discard"},
	}, listed)
	assert.True(t, known.Match("builtin:shell", "bash") && known.Match("builtin:run_shell_command", "bash"))
}

// TestToolsSay: the description of each tool says what it does, its bounds, and what to use instead, and is short. A model has
// nothing else to choose by.
func TestToolsSay(t *testing.T) {
	c := &client{agent: &Agent{Daemon: nothing{}, Shared: &Shared{Host: &account.Host{}, Settings: config.Settings{Host: agents.Host{Memory: true}, Approve: config.Approve{Wait: 1}}}}}
	all, err := c.tools(file.New(worker.New(worker.In(c, c.dirs))), bash.NewShell(c), "")
	require.NoError(t, err)
	for _, tool := range all {
		say, known := says[tool.Name]
		require.True(t, known, "%s: a row of says is missing", tool.Name)
		assert.Regexp(t, "^"+say.does+" ", tool.About, tool.Name)
		assert.Contains(t, tool.About, say.bound, "%s: its bound", tool.Name)
		for _, other := range say.instead {
			assert.Contains(t, tool.About, other, "%s: what to use instead", tool.Name)
		}
		assert.LessOrEqual(t, len(tool.About), 260, "%s: each request to the model has it", tool.Name)
	}
}

// says is what the description of each tool must say. A tool has no instead if no other does what it does.
var says = map[string]struct {
	does, bound string
	instead     []string
}{
	"ask_user":          {"Ask", "at most 4096 characters", []string{"decide yourself"}},
	"bash":              {"Run", "middle of long output is left out", []string{"process_read"}},
	"changes":           {"List", "at most 200", []string{"undo"}},
	"checkpoint":        {"Name", "no space", []string{"changes", "undo"}},
	"commit":            {"Take", "All are taken, or none", nil},
	"context_set":       {"Fill", "of this session", nil},
	"copy":              {"Copy", "one file", []string{"move"}},
	"delegate":          {"Give", "its own tools", nil},
	"delete":            {"Delete", "one directory", []string{"delete_file"}},
	"delete_file":       {"Delete", "one file", []string{"delete"}},
	"diff":              {"List", "what a member has changed", []string{"commit"}},
	"discard":           {"Drop", "cannot be taken back", nil},
	"edit_file":         {"Change", "at most 8 MiB", []string{"write_file"}},
	"forget":            {"Delete", "one note", []string{"memory"}},
	"glob":              {"Find", "at most 5000", []string{"grep"}},
	"grep":              {"Search", "at most 5000", []string{"glob"}},
	"list_dir":          {"List", "up to 1000 entries a page", []string{"glob"}},
	"make_dir":          {"Make", "one directory", []string{"write_file"}},
	"memory":            {"List", "at most 1000", []string{"recall"}},
	"move":              {"Move", "one file", []string{"copy"}},
	"permission_prompt": {"Ask", "not for the model", []string{"ask_user"}},
	"process_read":      {"Read", "by the process_id", []string{"bash"}},
	"process_stop":      {"Stop", "two seconds", nil},
	"read_file":         {"Read", "at most 2000 lines and 256 KiB", []string{"grep"}},
	"recall":            {"Find", "at most 20", nil},
	"remember":          {"Save", "at most 64 KiB", nil},
	"scope_info":        {"Tell", "what restricts you", nil},
	"skill":             {"Read", "instructions for a kind of task", nil},
	"stat":              {"Tell", "one file", []string{"list_dir"}},
	"undo":              {"Take", "of this session", []string{"changes"}},
	"write_file":        {"Create", "at most 4 MiB", []string{"edit_file"}},
}
