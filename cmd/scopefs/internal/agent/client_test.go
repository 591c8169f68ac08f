package agent

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools/bash"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/file/worker"
)

// TestToolsAreThoseOfRules: what definitions may name and what there is are the
// same, and both know which change files.
func TestToolsAreThoseOfRules(t *testing.T) {
	c := &client{agent: &Agent{Shared: &Shared{Settings: agents.HostFile{Host: agents.Host{Memory: true}}}}}
	all, err := c.tools(file.New(worker.New(worker.In(c))), bash.NewShell(c), "")
	require.NoError(t, err)
	names := []string{"mcp"} // stands for those of servers
	for _, tool := range all {
		names = append(names, tool.Name)
		assert.Equal(t, agents.Writes(tool.Name), tool.Hints.Writes, tool.Name)
	}
	slices.Sort(names)
	assert.Equal(t, slices.Sorted(slices.Values(agents.Builtins())), names)
}
