package file

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/agenttest"
	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/workertest"
	"github.com/scopefs/scopefs/tools"
	filetree "github.com/scopefs/scopefs/tools/file/tree"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

// TestMain also is the programs inside a sandbox.
func TestMain(m *testing.M) {
	child.Play(map[string]func() int{child.Init: pid1.Main, child.Files: filetree.Main})
	os.Exit(m.Run())
}

// tree is a directory that stands for a view.
type tree struct{ root string }

// newTree lays out files in a directory that stands for a view: "d/" is a
// directory, "a => b" a link, all else a file, with its content.
func newTree(t testing.TB, files map[string]string) *tree {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for name, content := range files {
		name, to, isLink := strings.Cut(name, " => ")
		full := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(full), 0o755))
		switch {
		case isLink:
			require.NoError(t, os.Symlink(to, full))
		case strings.HasSuffix(name, "/"):
			require.NoError(t, os.MkdirAll(full, 0o755))
		default:
			require.NoError(t, os.WriteFile(full, []byte(content), 0o644))
		}
	}
	t.Cleanup(func() { assert.Empty(t, temporaries(t, root), "left behind") })
	return &tree{root: root}
}

func temporaries(t testing.TB, root string) (found []string) {
	filepath.WalkDir(root, func(p string, _ os.DirEntry, _ error) error {
		if strings.HasPrefix(filepath.Base(p), ".scopefs-") {
			found = append(found, p)
		}
		return nil
	})
	return found
}

func (t *tree) content(tt testing.TB, name string) string {
	tt.Helper()
	b, err := os.ReadFile(filepath.Join(t.root, name))
	require.NoError(tt, err)
	return string(b)
}

// asTold is the error of a tool, which it must be.
func asTold(t testing.TB, err error) *tools.Error {
	t.Helper()
	var e *tools.Error
	require.ErrorAs(t, err, &e)
	return e
}

// newLink returns a Files whose worker is a goroutine of the test, without a sandbox.
func newLink(t testing.TB, tr *tree) *Files {
	t.Helper()
	w := New(workertest.Start(t, filetree.Below(tr.root)))
	require.NoError(t, w.Start(ctx()))
	t.Cleanup(func() { assert.NoError(t, w.Close()) })
	return w
}

func ctx() context.Context { return context.Background() }

// newSet returns the set of an agent without restrictions.
func newSet(t *testing.T, w *Files) *tools.Set {
	t.Helper()
	all, err := w.Tools()
	require.NoError(t, err)
	return agenttest.New(t, tools.Gate{Agent: "a", Object: w.Object}, "", all).Set
}
