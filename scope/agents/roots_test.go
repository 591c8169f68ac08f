package agents

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// TestRoots: a root is an agent of the snapshot without tools and network, with the protections and secrets of its agent.
func TestRoots(t *testing.T) {
	base := t.TempDir()
	writeFile(t, base, "agents.d/a.md", "---\nname: a\ndir: /srv/a\nprotect: ['*']\nview:\n  changes: kept\n  secrets: hide\n  paths: {'src/**': read}\n"+
		"  roots: [{dir: /srv/lib, access: read, paths: {docs: write}}, {dir: /srv/other, changes: direct}]\n---\n")
	lent := Root{Dir: "/srv/lent", Access: scope.Read, Changes: ChangesInherited, Lent: true}
	all, errs := Load(base, Host{Tools: ours(), Lent: map[scope.ID][]Root{"a": {lent}}})
	require.Empty(t, errs)
	require.Len(t, all.Agents, 4)
	a := all.Agents["a"]
	lib := all.Agents[RootID("a", a.View.Roots[0])]
	require.NotNil(t, lib)
	assert.Regexp(t, "^a-lib-.....$", lib.Name)
	assert.Equal(t, scope.ID("a"), lib.RootOf)
	assert.Equal(t, "/srv/lib", lib.Dir)
	p, err := scope.Compile(lib.View.PolicySpec())
	require.NoError(t, err)
	for rel, want := range map[string]bool{"f": false, "docs/f": true, "src/f": false, ".env": false, ".git/hooks/x": false, "docs/.env": false} {
		assert.Equal(t, want, p.File(scope.OpCreate, rel).Allow, rel)
	}
	assert.True(t, p.File(scope.OpLookup, ".env").Hidden)
	assert.Equal(t, ChangesKept, lib.View.Changes)
	assert.Empty(t, lib.Grants.Tools())
	assert.Empty(t, lib.Grants.Members())
	other := all.Agents[RootID("a", a.View.Roots[1])]
	assert.Equal(t, ChangesDirect, other.View.Changes)
	assert.True(t, all.Agents[RootID("a", lent)].Lent)
	assert.NotEqual(t, RootID("a", lent), RootID("a", Root{Dir: "/srv/lent", Lent: true}), "the view that changes it is another one")

	next, errs := all.Reload(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.Same(t, lib, next.Agents[lib.Name])
	assert.Len(t, next.Agents, 3)
	assert.Equal(t, next.Current(base, "a"), next.Current(base, lib.Name))
}

// TestRootWorktree: the repository of a linked worktree has git's rules. What is the main worktree's, or another one's, is read.
func TestRootWorktree(t *testing.T) {
	base := t.TempDir()
	writeFile(t, base, "agents.d/a.md", "---\nname: a\ndir: /srv/a\nprotect: ['*']\nview: {changes: auto, secrets: seal, roots: [{dir: /srv/r/.git, worktree: '[w]'}]}\n---\n")
	writeFile(t, base, "agents.d/b.md", "---\nname: b\ndir: /srv/b\nview: {roots: [{dir: /srv/r/.git, worktree: b}]}\n---\n")
	all, errs := Load(base, Host{Tools: ours()})
	require.Empty(t, errs)
	root := func(id scope.ID) (*Agent, *scope.Policy) {
		a := all.Agents[RootID(id, all.Agents[id].View.Roots[0])]
		p, err := scope.Compile(a.View.PolicySpec())
		require.NoError(t, err)
		return a, p
	}
	a, p := root("a")
	assert.Equal(t, CacheNone, a.View.Cache)
	assert.Equal(t, ChangesAuto, a.View.Changes)
	for rel, want := range map[string]bool{
		"objects/aa/b": true, "refs/heads/x": true, "refs/stash": true, "logs/refs/heads/x": true, "packed-refs.lock": true, "packed-refs": true, "gc.pid": true,
		"worktrees/[w]/index.lock": true, "worktrees/[w]/HEAD": true, "worktrees/[w]/logs/HEAD": true, "config.lock": true, "shallow.lock": true,
		"worktrees/w/index.lock": false, "worktrees/o/HEAD": false, "worktrees/o": false, "HEAD": false, "HEAD.lock": false, "index": false, "index.lock": false, "logs/HEAD": false,
		"hooks/post-commit": false, "hooks/x.sample": false, "info/attributes": false, "info/exclude": false, "ORIG_HEAD": false, "modules/x": false, "x": false,
		"worktrees/[w]/hooks/x": false, "worktrees/[w]/.git": false, "objects/info/commondir": false,
	} {
		assert.Equal(t, want, p.File(scope.OpCreate, rel).Allow, rel)
	}
	assert.Equal(t, scope.GitConfig, p.File(scope.OpRename, "config").Judge)
	assert.Equal(t, scope.GitIndex, p.File(scope.OpRename, "worktrees/[w]/index").Judge)
	_, p = root("b")
	assert.False(t, p.File(scope.OpRename, "config").Allow, "nothing judges it without protect")
	assert.True(t, p.File(scope.OpCreate, "refs/heads/x").Allow)
}

func TestRootErrors(t *testing.T) {
	for text, want := range map[string]string{
		"view: {roots: /srv/lib}":                                     "want a list",
		"view: {roots: [{access: read}]}":                             "dir is missing",
		"view: {roots: [{dir: lib}]}":                                 "is no absolute path",
		"view: {roots: [{dir: /x, access: hide}]}":                    "would leave no view",
		"view: {roots: [{dir: /x}, {dir: /x/, access: read}]}":        "here twice",
		"view: {roots: [{dir: /x, expose: 1}]}":                       "unknown key",
		"view: {roots: [{dir: /x, paths: {'a/**/../b': read}}]}":      "view",
		"view: {roots: [{dir: /x, worktree: ../y}]}":                  "is no name",
		"view: {roots: [{dir: /x, worktree: y, access: read}]}":       "remove access and paths",
		"view: {roots: [{dir: /x}]}\nplacement: one":                  "remove placement",
		"identity: caller\nview: {roots: [{dir: /x, changes: kept}]}": "identity: agent",
		"branch: m\nview: {roots: [{dir: /x}]}":                       "branch",
	} {
		base := t.TempDir()
		writeFile(t, base, "agents.d/m.md", "---\nname: m\n---\n")
		writeFile(t, base, "agents.d/a.md", "---\nname: a\n"+text+"\n---\n")
		all, errs := Load(base, Host{Tools: ours()})
		if assert.NotEmpty(t, errs, text) {
			assert.ErrorContains(t, errs[0], want, text)
		}
		assert.Len(t, all.Agents, 1, text)
	}
}

// TestRootReadAsk: a root with both words is closed until the operator opens it, and then read alone. Other pairs are errors that say which
// there are.
func TestRootReadAsk(t *testing.T) {
	for access, wrong := range map[string]string{"[read, ask]": "", "[ask, read]": "", "[read, write]": "only [read, ask] go together", "rw": "a root may have ask or [read, ask]"} {
		base := t.TempDir()
		writeFile(t, base, "agents.d/a.md", "---\nname: a\ndir: /srv/a\nview: {roots: [{dir: /srv/lib, access: "+access+"}]}\n---\n")
		all, errs := Load(base, Host{Tools: ours()})
		if wrong != "" {
			require.NotEmpty(t, errs, access)
			assert.Contains(t, errs[0].Error(), wrong)
			continue
		}
		require.Empty(t, errs, access)
		root := all.Agents[RootID("a", all.Agents["a"].View.Roots[0])]
		assert.True(t, root.View.Closed, access)
		spec := root.View.PolicySpec()
		spec.Closed = false
		p, err := scope.Compile(spec)
		require.NoError(t, err)
		assert.False(t, p.File(scope.OpCreate, "f").Allow)
		assert.True(t, p.File(scope.OpOpen, "f").Allow)
	}
	ask, read := Root{Dir: "/x", Lent: true}, Root{Dir: "/x", Lent: true}
	ask.SetAccess(scope.Ask, false)
	read.SetAccess(scope.Ask, true)
	assert.NotEqual(t, RootID("a", ask), RootID("a", read), "another view: a run with one does not get the other's")
}
