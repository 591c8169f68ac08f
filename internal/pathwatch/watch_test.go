package pathwatch

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
)

// TestWatch: what changes where a path leads is reported, and nothing else.
func TestWatch(t *testing.T) {
	var set Set
	for name, test := range map[string]struct {
		path    string // below a directory with a/b/c and link -> a
		change  func(dir string) error
		reports bool
	}{
		"moved":                 {"a/b/c", func(dir string) error { return os.Rename(dir+"/a/b/c", dir+"/a/b/d") }, true},
		"removed":               {"a/b/c", func(dir string) error { return os.Remove(dir + "/a/b/c") }, true},
		"replaced":              {"a/b/c", func(dir string) error { return unix.Rename(dir+"/e", dir+"/a/b/c") }, true},
		"exchanged":             {"a/b/c", exchange("a/b/c", "e"), true},
		"an ancestor moved":     {"a/b/c", func(dir string) error { return os.Rename(dir+"/a", dir+"/z") }, true},
		"an ancestor exchanged": {"a/b/c", exchange("a/b", "e"), true},
		"the base itself":       {"a/b/c", func(dir string) error { return os.Rename(dir, dir+"-moved") }, true},
		"a link replaced": {"link/b/c", func(dir string) error {
			return os.Rename(dir+"/other", dir+"/link")
		}, true},
		"behind a link": {"link/b/c", func(dir string) error { return os.Rename(dir+"/a/b", dir+"/a/z") }, true},
		"made":          {"a/b/new/deep", func(dir string) error { return os.Mkdir(dir+"/a/b/new", 0o755) }, true},
		"a neighbour": {"a/b/c", func(dir string) error {
			if err := os.Rename(dir+"/e", dir+"/a/b/e"); err != nil {
				return err
			}
			return os.Remove(dir + "/a/b/e")
		}, false},
		"what is below": {"a/b/c", func(dir string) error { return os.MkdirAll(dir+"/a/b/c/d", 0o755) }, false},
		"its mode":      {"a/b/c", func(dir string) error { return os.Chmod(dir+"/a/b/c", 0o700) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "base")
			require.NoError(t, os.MkdirAll(dir+"/a/b/c", 0o755))
			require.NoError(t, os.Mkdir(dir+"/e", 0o755))
			require.NoError(t, os.Symlink("a", dir+"/link"))
			require.NoError(t, os.Symlink("e", dir+"/other"))
			w, err := set.Watch(filepath.Join(dir, test.path))
			require.NoError(t, err)
			defer w.Close()
			drain(w)
			require.NoError(t, test.change(dir))
			if test.reports {
				reported(t, w)
				return
			}
			last, err := set.Watch(filepath.Join(dir, "last"))
			require.NoError(t, err)
			defer last.Close()
			require.NoError(t, os.Mkdir(dir+"/last", 0o755))
			reported(t, last) // and what was before
			assert.Empty(t, w.Changed)
		})
	}
	assert.Empty(t, set.watches)
	assert.Empty(t, set.above)
	assert.Empty(t, set.all)
}

func exchange(a, b string) func(dir string) error {
	return func(dir string) error {
		return unix.Renameat2(unix.AT_FDCWD, dir+"/"+a, unix.AT_FDCWD, dir+"/"+b, unix.RENAME_EXCHANGE)
	}
}

// drain takes what the start of a Set has reported: the mounts are new to it.
func drain(w *Watch) {
	for {
		select {
		case <-w.Changed:
		case <-time.After(2 * pause):
			return
		}
	}
}

func reported(t *testing.T, w *Watch) {
	t.Helper()
	select {
	case <-w.Changed:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was reported")
	}
}

// TestWatchMounts: a mount above a path is reported, and its end, and one beside it is not.
func TestWatchMounts(t *testing.T) {
	need.Root(t, "it mounts")
	dir := t.TempDir()
	above, beside := filepath.Join(dir, "a b"), filepath.Join(dir, "beside")
	require.NoError(t, os.MkdirAll(above+"/c", 0o755))
	require.NoError(t, os.Mkdir(beside, 0o755))
	var set Set
	watch := func() *Watch {
		w, err := set.Watch(above + "/c")
		require.NoError(t, err)
		t.Cleanup(w.Close)
		return w
	}
	w := watch()
	reported(t, w) // the first look
	require.NoError(t, unix.Mount("none", above, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { _ = unix.Unmount(above, unix.MNT_DETACH) })
	reported(t, w)
	w = watch()
	require.NoError(t, unix.Mount("none", beside, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { _ = unix.Unmount(beside, unix.MNT_DETACH) })
	require.NoError(t, unix.Unmount(above, 0))
	reported(t, w)
	w = watch()
	time.Sleep(mountPause)
	drain(w)
	require.NoError(t, unix.Unmount(beside, 0))
	time.Sleep(2 * mountPause)
	assert.Empty(t, w.Changed)
}
