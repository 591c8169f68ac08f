package quota

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope/beneath"
)

// unserved are the files of a view without nodes. It has one file open.
type unserved struct {
	Files
	open *Object
}

func (unserved) Known(uint64, beneath.FileID) Object { return Object{} }

func (u unserved) Opened(i int) (o Object, more bool) {
	if i > 0 || u.open == nil {
		return o, false
	}
	return *u.open, true
}

// TestWalkFollows: a client moves a directory and a file from where the walk will be to where it has been, and has another file
// open without a name. All of them count once.
func TestWalkFollows(t *testing.T) {
	dir := t.TempDir()
	for _, rel := range []string{"early", "late/dir"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, rel), 0o700))
	}
	for _, rel := range []string{"late/dir/f", "late/g"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, rel), make([]byte, 64<<10), 0o600))
	}
	root, err := beneath.OpenDir(dir)
	require.NoError(t, err)
	defer root.Close()
	page := NewPage(make([]byte, PageSize))
	c := NewCounter(page, 0, nil, root)
	c.Start()
	files := unserved{open: &Object{Usage: &Usage{}}}
	files.open.Stat.Ino, files.open.Stat.Blocks = 1<<60, 128
	on := func() bool { return true }

	require.True(t, c.walkTree(root, "early", files, on))
	for from, to := range map[string]string{"late/dir": "early/dir", "late/g": "early/g"} {
		done := c.moves()
		assert.False(t, c.finish(files), "a move is under way")
		require.NoError(t, os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)))
		st, err := root.Stat(to)
		require.NoError(t, err)
		done(Object{Stat: st, Usage: &Usage{}, Rel: to})
	}
	require.True(t, c.walkTree(root, "late", files, on))
	assert.False(t, c.finish(files), "a directory is to follow")
	require.True(t, c.walkMoved(files, on))
	require.True(t, c.finish(files))
	use := page.Use()
	assert.EqualValues(t, 6, use.Files)
	assert.GreaterOrEqual(t, use.Bytes, int64(3*64<<10))
	assert.False(t, use.Counting)
}

// TestPending: what one view of an agent writes has no room in another one.
func TestPending(t *testing.T) {
	page := NewPage(make([]byte, PageSize))
	page.SetLimits(1<<20, 0)
	a, b := NewCounter(page, 0, nil), NewCounter(page, 2, nil)
	all := func() int64 { return 1 << 20 }
	done, err := a.reserve(all(), all)
	require.NoError(t, err)
	_, err = b.reserve(all(), all)
	require.Error(t, err)
	done()
	_, err = b.reserve(all(), all)
	require.NoError(t, err)
}
