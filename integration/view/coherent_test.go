package view

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// seenWithin bounds how late a change by the host may be seen in a test: the
// kernel keeps for a minute what is not told. What it takes really is logged.
const seenWithin = 10 * time.Second

// seen waits until something is so, and returns how long it took.
func seen(t *testing.T, what string, so func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !so() {
		if time.Since(began) > seenWithin {
			break
		}
	}
	late := time.Since(began)
	require.Less(t, late, seenWithin, "%s is not seen", what)
	return late
}

func statOf(name string) (st unix.Stat_t, err error) {
	err = unix.Lstat(name, &st)
	return st, err
}

// TestCoherent: what the host changes underneath is seen in the view soon,
// though the kernel remembers names, absent names and attributes.
func TestCoherent(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"c": "view: {data: passthrough}"})
	require.NoError(t, os.MkdirAll(h.Scope("c", "a/b"), 0o755))
	all := map[string][]time.Duration{}
	for i := range 40 {
		on := func(name string) string { return h.Scope("c", "a/b", fmt.Sprint(name, i)) }
		in := func(name string) string { return h.View("c", "a/b", fmt.Sprint(name, i)) }
		absent := func(name string) func() bool {
			return func() bool { _, err := statOf(in(name)); return err == unix.ENOENT }
		}
		is := func(name string, ok func(unix.Stat_t) bool) func() bool {
			return func() bool { st, err := statOf(in(name)); return err == nil && ok(st) }
		}
		size := func(n int64) func(unix.Stat_t) bool { return func(st unix.Stat_t) bool { return st.Size == n } }
		require.True(t, absent("f")() && absent("g")(), "and the kernel remembers that")
		for _, step := range []struct {
			name string
			do   func() error
			so   func() bool
		}{
			{"create", func() error { return os.WriteFile(on("f"), nil, 0o644) }, is("f", size(0))},
			{"write", func() error { return os.WriteFile(on("f"), []byte("hello"), 0o644) }, is("f", size(5))},
			{"truncate", func() error { return os.Truncate(on("f"), 2) }, is("f", size(2))},
			{"chmod", func() error { return os.Chmod(on("f"), 0o600) }, is("f", func(st unix.Stat_t) bool { return st.Mode&0o777 == 0o600 })},
			{"rename, old name", func() error { return os.Rename(on("f"), on("g")) }, absent("f")},
			{"rename, new name", func() error { return nil }, is("g", size(2))},
			{"replace", func() error {
				return os.Rename(tempFile(t, h.Scope("c"), "other text"), on("g"))
			}, is("g", size(10))},
			{"mkdir", func() error { return os.Mkdir(on("d"), 0o755) }, is("d", func(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR })},
			{"link", func() error { return os.Symlink("x", on("l")) }, is("l", func(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFLNK })},
			{"remove", func() error { return os.Remove(on("g")) }, absent("g")},
			{"rmdir", func() error { return os.Remove(on("d")) }, absent("d")},
		} {
			require.NoError(t, step.do(), step.name)
			all[step.name] = append(all[step.name], seen(t, step.name, step.so))
		}
	}
	for name, late := range all {
		slices.Sort(late)
		t.Logf("%-17s p50 %v, p90 %v, longest %v", name, late[len(late)/2], late[len(late)*9/10], late[len(late)-1])
	}
}

func tempFile(t *testing.T, dir, text string) string {
	t.Helper()
	f, err := os.CreateTemp(dir, "temp")
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteString(text)
	require.NoError(t, err)
	return f.Name()
}

// TestCoherentOwn: a change through the view is seen at once, by every name.
func TestCoherentOwn(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"c": ""})
	v := func(name string) string { return h.View("c", name) }
	for i := range 50 {
		_, err := statOf(v("f"))
		require.Equal(t, unix.ENOENT, err)
		require.NoError(t, os.WriteFile(v("f"), []byte("text"), 0o644))
		st, err := statOf(v("f"))
		require.NoError(t, err)
		require.EqualValues(t, 4, st.Size)
		require.NoError(t, os.Link(v("f"), v("h")))
		require.NoError(t, os.Truncate(v("h"), int64(i)))
		st, err = statOf(v("f"))
		require.NoError(t, err)
		require.EqualValues(t, i, st.Size)
		require.EqualValues(t, 2, st.Nlink)
		require.NoError(t, os.Rename(v("f"), v("g")))
		_, err = statOf(v("f"))
		require.Equal(t, unix.ENOENT, err)
		require.NoError(t, os.Remove(v("h")))
		st, err = statOf(v("g"))
		require.NoError(t, err)
		require.EqualValues(t, 1, st.Nlink)
		require.NoError(t, os.Remove(v("g")))
	}
}

// TestCoherentCorners are changes that no watched directory tells of, or that
// come in the middle of something.
func TestCoherentCorners(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"c": ""})
	harness.Plant(t, h.Scope("c"), "d/f", "d/linked", "d/gone", "from/sub/deep", "to/x")
	size := func(name string) int64 { st, _ := statOf(h.View("c", name)); return st.Size }
	for _, name := range []string{"d/f", "d/linked", "d/gone", "from/sub/deep", "to/x"} {
		require.NotZero(t, size(name))
	}

	// A name of an unseen kind: the host's second name, outside.
	outside := filepath.Join(h.Base, "outside")
	require.NoError(t, os.Link(h.Scope("c", "d/linked"), outside))
	require.NoError(t, os.Chmod(h.Scope("c", "d/linked"), 0o600)) // told, and with it the link count
	seen(t, "the link count", func() bool { st, _ := statOf(h.View("c", "d/linked")); return st.Nlink == 2 })
	require.NoError(t, os.Truncate(outside, 3))
	seen(t, "a write by the name outside", func() bool { return size("d/linked") == 3 })

	// A stale name must not keep open(O_CREAT) from making it anew.
	require.NoError(t, os.Remove(h.Scope("c", "d/gone")))
	f, err := os.OpenFile(h.View("c", "d/gone"), os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	// Written by the host while it is open for writing here.
	f, err = os.OpenFile(h.View("c", "d/f"), os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(h.Scope("c", "d/f"), 7))
	seen(t, "a write to what is open here", func() bool { return size("d/f") == 7 })
	_, err = f.WriteAt([]byte("12345678901"), 0)
	require.NoError(t, err)
	require.EqualValues(t, 11, size("d/f"))
	require.NoError(t, f.Close())
	require.NoError(t, os.Truncate(h.Scope("c", "d/f"), 5))
	seen(t, "a write after it was closed", func() bool { return size("d/f") == 5 })

	// A directory with what is remembered below it goes elsewhere.
	require.NoError(t, os.Rename(h.Scope("c", "from/sub"), h.Scope("c", "to/sub")))
	seen(t, "a moved directory", func() bool { return size("to/sub/deep") > 0 })
	seen(t, "its old name", func() bool { _, err := statOf(h.View("c", "from/sub/deep")); return err == unix.ENOENT })
	assert.Equal(t, []string{"ok"}, harness.HostOps(t, h.View("c", "to/sub"), "read ../x"))

	// Removed by the host while it is open here: it stays what it is.
	f, err = os.Open(h.View("c", "to/x"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, os.Remove(h.Scope("c", "to/x")))
	seen(t, "a removed file", func() bool { _, err := statOf(h.View("c", "to/x")); return err == unix.ENOENT })
	_, err = f.Stat()
	assert.NoError(t, err)
}

// TestCoherentStorm: more changes than can be told drop everything. They come while
// the view is stopped, for less than a second: the daemon replaces it after that.
func TestCoherentStorm(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"c": ""})
	require.NoError(t, unix.Mount("none", h.Scope("c"), "tmpfs", 0, "")) // a disk takes too long
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(h.Scope("c"), unix.MNT_DETACH)) })
	h.Start()
	var n int
	_, err := fmt.Sscan(harness.ReadAll(t, "/proc/sys/fs/fanotify/max_queued_events"), &n)
	require.NoError(t, err)
	n += 3000 // a read(2) that the stop interrupts may still take 1,000 events
	round := 0
	name := func(i int) string { return fmt.Sprintf("d%d/f%05d", round, i) }
	storm := func() (served bool) {
		round++
		require.NoError(t, os.Mkdir(h.Scope("c", fmt.Sprint("d", round)), 0o755))
		pid := h.PS()[0].ViewPID
		for i := range 200 {
			_, err := statOf(h.View("c", name(i*n/200)))
			require.Equal(t, unix.ENOENT, err)
		}
		require.NoError(t, unix.Kill(pid, unix.SIGSTOP))
		for i := range n {
			require.NoError(t, unix.Mknod(h.Scope("c", name(i)), unix.S_IFREG|0o644, 0))
		}
		if unix.Kill(pid, unix.SIGCONT) != nil || h.Agent("c").ViewPID != pid {
			return false
		}
		for i := range 200 {
			h.Eventually(name(i*n/200), func() bool { _, err := statOf(h.View("c", name(i*n/200))); return err == nil })
		}
		return h.Agent("c").ViewPID == pid
	}
	for !storm() { // on a slow machine the daemon replaces the stopped view: no queue overflows
		require.Less(t, round, 10)
		h.Eventually("the view is back", func() bool { return h.Agent("c").State == "mounted" })
	}
	h.Stop()
	if !harness.Cacheless() {
		assert.Contains(t, h.Log.String(), "caches are invalidated", "the queue was not too long: this was no storm")
	}
}

// TestSearchPermission: a view that is its user's alone asks for no permission
// of the kernel, and still a directory that may not be searched is not, though
// what is in it is remembered.
func TestSearchPermission(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"c": "user: 4321"})
	harness.Plant(t, h.Scope("c"), "d/f", "x", "r")
	for _, name := range []string{"", "d", "d/f", "x", "r"} {
		require.NoError(t, os.Lchown(h.Scope("c", name), 4321, 4321))
	}
	require.NoError(t, os.Chmod(h.Scope("c", "r"), 0o400))
	h.Start()
	v := h.View("c")
	assert.Equal(t, []string{"ok", "ok", "ok", "EACCES", "EACCES", "ok"},
		opsAs(h, 4321, v, "stat d/f", "chmod d", "stat d", "stat d/f", "read d/f", "stat x"))
	require.NoError(t, os.Chmod(h.Scope("c", "d"), 0o755))
	seen(t, "a directory that was opened again", func() bool { return opsAs(h, 4321, v, "stat d/f")[0] == "ok" })
	require.NoError(t, os.Chmod(h.Scope("c", "d"), 0o000))
	seen(t, "a directory that was closed", func() bool { return opsAs(h, 4321, v, "stat d/f")[0] == "EACCES" })
	assert.Equal(t, []string{"EACCES", "EACCES", "ok"}, opsAs(h, 4321, v, "access-w r", "access-x x", "access-r r"))
}
