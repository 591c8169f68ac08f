package agents_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// TestFlags: flags hold in place of keys of a definition and change nothing else of it. A definition that cannot be by them does
// not load, and what held by flags does not go on when they end.
func TestFlags(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	write := func(id, keys string) {
		require.NoError(t, os.MkdirAll(filepath.Join(base, "agents.d"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", id+".md"), []byte("---\nname: "+id+"\n"+keys+"\n---\n"), 0o644))
	}
	write("a", "view: {secrets: seal, changes: auto, paths: {own: hide}}")
	write("b", "branch: a")
	write("other", "view: {secrets: seal, paths: {own: hide}}")
	by := func(last *agents.Snapshot, f agents.Flags) (*agents.Snapshot, []error) {
		return last.Reload(base, agents.Host{Flags: map[scope.ID]agents.Flags{"a": f}})
	}
	plain, errs := agents.Load(base, agents.Host{})
	require.Empty(t, errs)
	sealed := func(a *agents.Agent) bool {
		p, err := scope.Compile(a.View.PolicySpec())
		require.NoError(t, err)
		assert.False(t, p.File(scope.OpOpen, "own").Allow)
		return !p.File(scope.OpOpen, ".env").Allow
	}
	for _, f := range []agents.Flags{{Changes: "held"}, {Changes: "direct"}, {ShowSecrets: true}, {Changes: "kept", ShowSecrets: true}} {
		all, errs := by(plain, f)
		require.Empty(t, errs, f)
		for id, a := range all.Agents {
			shown := f.ShowSecrets && id != "other"
			assert.Equal(t, !shown, sealed(a), "%v %s", f, id)
			want := plain.Agents[id].View.Changes
			if id == "a" && f.Changes != "" {
				if want = f.Changes; f.Changes == "direct" {
					want = agents.ChangesDirect
				}
			}
			assert.Equal(t, want, a.View.Changes, "%v %s", f, id)
			differs := a.Differs(plain.Agents[id].Definition)
			assert.Subset(t, []string{"view.changes", "view.paths"}, differs, f)
		}
		again, errs := all.Reload(base, agents.Host{})
		require.Empty(t, errs)
		assert.True(t, sealed(again.Agents["a"]))
		assert.Empty(t, again.Agents["a"].Differs(plain.Agents["a"].Definition))

		write("a", "tools: [no-such-tool]\nview: {secrets: seal, changes: auto, paths: {own: hide}}")
		broken, errs := by(all, f)
		assert.NotEmpty(t, errs)
		assert.NotNil(t, broken.Agents["a"], "by the same flags the last good definition holds")
		broken, _ = all.Reload(base, agents.Host{})
		assert.Nil(t, broken.Agents["a"])
		write("a", "view: {secrets: seal, changes: auto, paths: {own: hide}}")
	}
	for keys, f := range map[string]agents.Flags{
		"identity: caller\nview: {changes: direct}": {Changes: "held"}, "view: {secrets: hide}": {ShowSecrets: true},
		"view: {paths: {'**/.env': hide}}": {ShowSecrets: true},
	} {
		write("a", keys)
		require.NoError(t, os.RemoveAll(filepath.Join(base, "agents.d/b.md")))
		_, errs := agents.Load(base, agents.Host{Flags: map[scope.ID]agents.Flags{"a": f}})
		require.Len(t, errs, 1, keys)
		assert.ErrorContains(t, errs[0], f.String()+": ")
	}
	assert.Error(t, agents.Flags{Changes: "other"}.Check())
}
