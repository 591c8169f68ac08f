package durable_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/durable"
)

func names(t *testing.T, dir string) (list []string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// TestReplace: the file has the content and the exact mode, and nothing is left beside it.
func TestReplace(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	for name, c := range map[string]struct {
		opt  durable.Options
		mode fs.FileMode
	}{
		"zero":     {durable.Options{}, 0o600},
		"exact":    {durable.Options{Mode: 0o644}, 0o644},
		"readonly": {durable.Options{Mode: 0o444, Shared: true}, 0o444},
		"umask":    {durable.Options{Mode: 0o666, Unsynced: true}, 0o600},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.Symlink("elsewhere", dir+"/f")) // it is replaced, not followed
			for _, text := range []string{"one", "two"} {
				require.NoError(t, durable.ReplaceAt(dir+"/f", []byte(text), c.opt))
				info, err := os.Lstat(dir + "/f")
				require.NoError(t, err)
				assert.Equal(t, c.mode, info.Mode())
				got, err := os.ReadFile(dir + "/f")
				require.NoError(t, err)
				assert.Equal(t, text, string(got))
			}
			assert.Equal(t, []string{"f"}, names(t, dir))
		})
	}
}

// TestNew: a file that is there stays, whatever it is.
func TestNew(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, durable.ReplaceAt(dir+"/f", []byte("one"), durable.Options{New: true}))
	require.NoError(t, os.Symlink("elsewhere", dir+"/l"))
	require.NoError(t, os.Mkdir(dir+"/d", 0o700))
	for _, name := range []string{"f", "l", "d"} {
		assert.ErrorIs(t, durable.ReplaceAt(filepath.Join(dir, name), nil, durable.Options{New: true}), fs.ErrExist)
	}
	assert.Equal(t, []string{"d", "f", "l"}, names(t, dir))
	got, err := os.ReadFile(dir + "/f")
	require.NoError(t, err)
	assert.Equal(t, "one", string(got))
}

// TestLeft: what a killed process has left goes, but not a draft that another process may be writing.
func TestLeft(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("n", 255)
	for _, name := range []string{"f", long} {
		var drafts []*durable.Draft
		for range 2 {
			d, err := durable.BeginAt(filepath.Join(dir, name), durable.Options{Shared: true})
			require.NoError(t, err)
			defer d.Close()
			drafts = append(drafts, d)
		}
		old := time.Now().Add(-2 * time.Hour)
		require.NoError(t, os.Chtimes(filepath.Join(dir, drafts[0].Temp()), old, old))
		require.NoError(t, durable.ReplaceAt(filepath.Join(dir, name), nil, durable.Options{Shared: true}))
		assert.NoFileExists(t, filepath.Join(dir, drafts[0].Temp()))
		assert.FileExists(t, filepath.Join(dir, drafts[1].Temp()))
		require.NoError(t, drafts[1].Place())
		require.NoError(t, drafts[1].Close())
	}
	require.NoError(t, os.WriteFile(dir+"/.f", []byte("left"), 0o600))
	require.NoError(t, durable.ReplaceAt(dir+"/f", nil, durable.Options{}))
	assert.Equal(t, []string{"f", long}, names(t, dir))
}

// TestShared: writers at the same time leave the whole content of one of them, and readers see no other.
func TestShared(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 20 {
				assert.NoError(t, durable.Replace(root, "f", []byte(strings.Repeat(fmt.Sprint(i), 10_000)), durable.Options{Shared: true, Unsynced: true}))
				text, err := root.ReadFile("f")
				assert.NoError(t, err)
				assert.Equal(t, strings.Repeat(string(text[:1]), 10_000), string(text))
			}
		})
	}
	all.Wait()
	assert.Equal(t, []string{"f"}, names(t, dir))
}

// TestDraftDropped: a draft that is not placed changes nothing.
func TestDraftDropped(t *testing.T) {
	dir := t.TempDir()
	d, err := durable.BeginAt(dir+"/f", durable.Options{})
	require.NoError(t, err)
	_, err = d.Write([]byte("text"))
	require.NoError(t, err)
	refused := errors.New("refused")
	assert.ErrorIs(t, d.PlaceBy(func() error { return refused }), refused)
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	assert.Empty(t, names(t, dir))
	for _, name := range []string{".", "..", "a/b", ""} {
		root, err := os.OpenRoot(dir)
		require.NoError(t, err)
		_, err = durable.Begin(root, name, durable.Options{})
		assert.ErrorIs(t, err, unix.EINVAL, name)
		require.NoError(t, root.Close())
	}
}
