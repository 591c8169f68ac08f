package tree

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools/file/message"
)

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
	return &tree{dirs: message.Dirs{Own: root}}
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
	b, err := os.ReadFile(filepath.Join(t.dirs.Own, name))
	require.NoError(tt, err)
	return string(b)
}

// asTold is the error of an operation, which it must be.
func asTold(t testing.TB, err error) *message.Error {
	t.Helper()
	var e *message.Error
	require.ErrorAs(t, err, &e)
	return e
}

// hashForm matches the hash of a content or a directory.
const hashForm = `^(sha256|tree):[0-9a-f]{64}$`

func ctx() context.Context { return context.Background() }
