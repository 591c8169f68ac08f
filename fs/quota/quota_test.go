package quota

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// TestGrowth: a write over blocks that a file has needs no room.
func TestGrowth(t *testing.T) {
	for name, c := range map[string]struct {
		size, blocks, hole, off, n uint64
		want                       int64
	}{
		"new":             {0, 0, 0, 0, 100, 100},
		"over":            {8192, 16, 8192, 0, 8192, 0},
		"append":          {8192, 16, 8192, 8192, 100, 100},
		"half over":       {8192, 16, 8192, 4096, 8192, 4096},
		"in a hole":       {1 << 20, 0, 0, 4096, 100, 100},
		"far behind":      {8192, 16, 8192, 1 << 30, 100, 100},
		"blocks far away": {8192, 32, 0, 0, 8192, 8192},
	} {
		o := Object{Seek: func(off int64, whence int) (int64, error) {
			assert.Equal(t, unix.SEEK_HOLE, whence)
			if uint64(off) >= c.size {
				return 0, syscall.ENXIO
			}
			return max(off, int64(c.hole)), nil
		}}
		o.Stat.Size, o.Stat.Blocks = c.size, c.blocks
		assert.Equal(t, c.want, growth(&o, c.off, c.n), name)
	}
}

// none is a view that knows no object.
type none struct{ fuse.RawFileSystem }

func (none) Object(uint64, string) (f beneath.File, o Object, err error) {
	return f, o, beneath.ErrStale
}
func (none) Handle(uint64) (o Object, err error)     { return o, beneath.ErrStale }
func (none) Known(uint64, beneath.FileID) (o Object) { return o }
func (none) Opened(int) (o Object, more bool)        { return o, false }

// TestWalk: objects count once, what a client changes during the walk counts once as well, and a removed one not at all.
func TestWalk(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
	for _, name := range []string{"a", "d/b"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), make([]byte, 64<<10), 0o600))
	}
	require.NoError(t, os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "d", "again")))
	root, err := beneath.OpenDir(dir)
	require.NoError(t, err)
	defer root.Close()
	page := NewPage(make([]byte, PageSize))
	c := NewCounter(page, 0, nil, root)
	c.Start()
	assert.True(t, page.Use().Counting)
	early, err := root.Stat("a")
	require.NoError(t, err)
	early.Blocks -= 8 // it has grown before the walk sees it
	u := Usage{held: counted + int64(early.Blocks)*512}
	now, err := root.Stat("a")
	require.NoError(t, err)
	c.settle(Object{Usage: &u, Stat: now}, unknown)
	c.count(none{}, make(chan struct{}))
	want := Use{}
	for _, name := range []string{"", "d", "a", "d/b"} {
		st, err := root.Stat(name)
		require.NoError(t, err)
		want.Bytes += int64(st.Blocks) * 512
		want.Files++
	}
	assert.Equal(t, want, page.Use())
	c.Freed(&now)
	assert.Equal(t, want, page.Use(), "it has another name")
	now.Nlink = 1
	c.Freed(&now)
	assert.Equal(t, want.Bytes-int64(now.Blocks)*512, page.Use().Bytes)
	assert.Equal(t, want.Files-1, page.Use().Files)
}

// TestLimits: the views of an agent share its limits.
func TestLimits(t *testing.T) {
	page := NewPage(make([]byte, PageSize))
	page.SetLimits(100, 3)
	page.Set(0, Use{Bytes: 60, Files: 1})
	page.Set(1, Use{Bytes: 40, Files: 1})
	c := NewCounter(page, 0, nil)
	assert.NoError(t, c.May(scope.OpCreate), "an empty file")
	_, err := c.reserve(1, func() int64 { return 1 })
	assert.ErrorIs(t, err, syscall.EDQUOT)
	_, err = c.reserve(50, func() int64 { return 0 })
	assert.NoError(t, err, "it has the blocks")
	page.Set(1, Use{Bytes: 40, Files: 2})
	assert.ErrorIs(t, c.May(scope.OpMkdir), syscall.EDQUOT)
	assert.NoError(t, c.May(scope.OpUnlink))
	page.Set(0, Use{Bytes: -1 << 40})
	assert.EqualValues(t, 40, page.Use().Bytes, "no view takes room from what others have counted")
	var unlimited *Counter
	assert.NoError(t, unlimited.May(scope.OpCreate))
}
