package amend

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// TestWidens: allow names what else a rule kept from the agent that it removes as a whole.
func TestWidens(t *testing.T) {
	t.Parallel()
	p := agentOf(t, "policy: {tools: {exclude: ['*_file']}}")
	d, err := Open(p, "a")
	require.NoError(t, err)
	assert.Empty(t, d.Widens())
	_, err = d.Allow(Change{Name: "read_file", Access: scope.Write, RemoveDeny: true})
	require.NoError(t, err)
	var lines []string
	for _, e := range d.Widens() {
		lines = append(lines, e.String())
	}
	for _, tool := range []string{"read_file", "write_file", "edit_file", "delete_file"} {
		assert.Contains(t, lines, "tools: "+tool+": allowed; before: denied (policy.tools.exclude: *_file)")
	}
	assert.Contains(t, lines, "tools: tools that come later: allowed, such as _file; before: denied (policy.tools.exclude: *_file)")
}
