package report

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/state"
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

// TestWhyRoot: why names the rule of the root that denied, not one of the agent's own view.
func TestWhyRoot(t *testing.T) {
	p, known := defined(t, "dir: /p/own\nview:\n  paths: {hidden/**: hide}\n  roots:\n    - {dir: /p/lib, access: read}\n"+
		"    - {dir: /p/sub, access: write, paths: {x/**: read}}\n    - {dir: /p/later, access: ask}\n    - {dir: /p/repo/.git, worktree: own}")
	of := known.All.Agents["a"].Definition
	lent := map[string]agents.Root{}
	for _, r := range []agents.Root{{Dir: "/q/ro", Access: scope.Read, Lent: true}, {Dir: "/q/ask", Access: scope.Ask, Lent: true}} {
		lent[r.Dir] = r
		require.NoError(t, state.Lend(p.State, "a", r))
	}
	known = definitions.Read(p, nil)
	file := filepath.Join(p.Base, "agents.d/a.md")
	for _, test := range []struct{ dir, op, path, want string }{
		{"/p/lib", "create", "f", "set access: write of /p/lib in view.roots of " + file},
		{"/p/sub", "create", "x/f", "set the access of the path to write in paths of /p/sub in view.roots of " + file},
		{"/p/sub", "lookup", "hidden/f", `set "hidden/**" to read in view.paths or remove it`},
		{"/p/later", "open", "f", "approve it (scopefs approvals), or set access: read of /p/later in view.roots of " + file},
		{"/p/repo/.git", "create", "index", "remove worktree from /p/repo/.git in view.roots of " + file +
			", and give it an access: git's rules for a linked worktree hold there"},
		{"/q/ro", "create", "f", "run with --with /q/ro, without :ro"},
		{"/q/ask", "open", "f", "approve it (scopefs approvals), or run with --with /q/ask, without :ask"},
	} {
		root, ok := lent[test.dir]
		for _, r := range of.View.Roots {
			if r.Dir == test.dir {
				root, ok = r, true
			}
		}
		require.True(t, ok)
		got, err := why(p, known, audit.Event{Event: audit.KindFile, Agent: string(agents.RootID("a", root)), Op: test.op, Path: test.path, Verdict: audit.Deny})
		require.NoError(t, err)
		assert.Equal(t, test.want, got.Remedy, "%s: %+v", test.dir, got)
	}
}
