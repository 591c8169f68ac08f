package file

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
)

// TestTake: a view becomes what another directory is, where it is to.
func TestTake(t *testing.T) {
	other := newTree(t, map[string]string{
		"f": "2", "d/new": "n", "ro/": "", "kind/in": "k", "moved/a/b": "C", "s/1/x": "x", "up/c/d": "", "to/x": "", "s/2/y": "y", "l => f": "", "swap1": "two", "swap2": "one", "other": "kept out",
	})
	tr := newTree(t, map[string]string{
		"f": "1", "gone": "g", "kind": "file", "from/a/b": "B", "out/x": "x", "swap1": "one", "swap2": "two", "s/1/y": "y", "up/a/b/c/d": "", "rm/x/to/x": "", "s/2/x": "x", "l": "was a file", "own": "o",
	})
	files := newLink(t, tr)
	require.NoError(t, files.Take(ctx(), "call", other.root, Taking{
		Gone: []string{"gone", "kind", "out", "out/x", "swap1", "swap2", "up/a", "up/a/b", "rm", "rm/x"}, Moved: []Move{{"from", "moved"}, {"s/1", "s/2"}, {"s/2", "s/1"}, {"up/a/b/c", "up/c"}, {"rm/x/to", "to"}},
		There: []string{"f", "d", "d/new", "ro", "kind", "kind/in", "l", "moved/a/b", "swap1", "swap2"},
	}))
	assert.Equal(t, []string{"d/", "d/new: n", "f: 2", "kind/", "kind/in: k", "l => f", "moved/", "moved/a/", "moved/a/b: C", "own: o",
		"ro/", "s/", "s/1/", "s/1/x: x", "s/2/", "s/2/y: y", "swap1: two", "swap2: one", "to/", "to/x: ", "up/", "up/c/", "up/c/d: "}, tr.all(t))

	for path, code := range map[string]tools.Code{"../x": tools.OutsideScope, "no": tools.NotFound, "/etc/passwd": tools.OutsideScope} {
		assert.Equal(t, code, asTold(t, files.Take(ctx(), "call", other.root, Taking{There: []string{path}})).Code, path)
	}
	require.Error(t, files.Take(ctx(), "call", other.root, Taking{Gone: []string{"moved"}}))

	var many Taking
	for i := range 3 * takeBatch {
		name := fmt.Sprintf("many%03d", i)
		many.There = append(many.There, name)
		require.NoError(t, os.WriteFile(other.root+"/"+name, []byte("x"), 0o600))
	}
	require.NoError(t, files.Take(ctx(), "call", other.root, many))
	assert.Equal(t, "x", tr.content(t, "many191"))
}

// all lists the names of a tree, with contents and link targets.
func (t *tree) all(tt testing.TB) (found []string) {
	require.NoError(tt, filepath.WalkDir(t.root, func(full string, d os.DirEntry, err error) error {
		if err != nil || full == t.root {
			return err
		}
		below := strings.TrimPrefix(full, t.root+"/")
		switch d.Type() {
		case os.ModeSymlink:
			to, _ := os.Readlink(full)
			below += " => " + to
		case os.ModeDir:
			below += "/"
		case 0:
			b, _ := os.ReadFile(full)
			below += ": " + string(b)
		}
		found = append(found, below)
		return nil
	}))
	return found
}
