package cli

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/command"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// TestCommitGitLends: the run in which git writes the commits of a directory has it as it was lent: with the question that opens it, without
// changes, and no other directory.
func TestCommitGitLends(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for _, name := range []string{"lib", "lib:ro", "lib:ask"} {
		require.NoError(t, os.Mkdir(filepath.Join(top, name), 0o755))
		for _, want := range []client.Root{{}, {Read: true}, {Ask: true}, {Read: true, Ask: true}} {
			want.Dir = filepath.Join(top, name)
			r := agents.Root{Dir: want.Dir, Lent: true}
			switch {
			case want.Ask:
				r.SetAccess(scope.Ask, want.Read)
			case want.Read:
				r.Access = scope.Read
			}
			def := agents.RootOfAgent(&agents.Definition{Name: "a"}, r)
			g := gitBranch{kept: kept{id: def.Name, def: &agents.Agent{Definition: def}}, dir: want.Dir}
			words := g.inside()
			i := slices.Index(words, "--with")
			require.GreaterOrEqual(t, i, 0)
			roots, err := (&command.Run{With: words[i+1 : i+2]}).Roots()
			require.NoError(t, err)
			assert.Equal(t, []client.Root{want}, roots, words)
		}
	}
}
