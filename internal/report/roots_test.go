package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// TestRootsShown: agents show has each root of the agent with its access and its changes.
func TestRootsShown(t *testing.T) {
	p, known := defined(t, "dir: /p/own\nview:\n  changes: kept\n  roots:\n    - {dir: /p/lib, access: read}\n"+
		"    - {dir: /p/sub, access: write, changes: direct, paths: {x/**: hide}}\n    - {dir: /p/repo/.git, worktree: own}")
	shown, err := ShowAgent(p, known, "a")
	require.NoError(t, err)
	assert.Equal(t, []rootShown{
		{Dir: "/p/lib", Access: scope.Read},
		{Dir: "/p/sub", Access: scope.Write, Paths: []scope.PathRule{{Pattern: "x/**", Access: scope.Hide}}},
		{Dir: "/p/repo/.git", Access: scope.Read, Changes: agents.ChangesKept, Worktree: "own"},
	}, shown.Roots)
	var text strings.Builder
	require.NoError(t, shown.Print(&text))
	assert.Regexp(t, `(?m)^roots +/p/lib: read, changes: direct\n`+
		` +/p/sub: write, x/\*\*: hide, changes: direct\n`+
		` +/p/repo/\.git: read, and what git writes in the worktree own, changes: kept$`, text.String())
}
