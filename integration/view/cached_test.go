package view

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// What reviewers found in the view that keeps much and waits little.

// TestHeldUp: an agent that makes the view do what takes seconds, here to free
// the pieces of a file, keeps nobody else waiting.
func TestHeldUp(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": ""})
	h.Start()
	harness.Plant(t, h.Scope("a"), "f")
	const files, holes = 3, 25_000
	fds := make([]int, files)
	for i := range fds {
		var err error
		at := h.View("a", "pieces"+string(rune('0'+i)))
		fds[i], err = unix.Open(at, unix.O_CREAT|unix.O_RDWR, 0o644)
		require.NoError(t, err)
		require.NoError(t, unix.Fallocate(fds[i], 0, 0, holes*8192))
		inner, err := os.OpenFile(h.Scope("a", filepath.Base(at)), os.O_RDWR, 0)
		require.NoError(t, err)
		for n := range int64(holes) {
			require.NoError(t, unix.Fallocate(int(inner.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, n*8192, 4096))
		}
		require.NoError(t, inner.Close())
		require.NoError(t, os.Remove(at))
	}
	var all sync.WaitGroup
	for _, fd := range fds {
		all.Go(func() { unix.Close(fd) })
	}
	answered, began := 0, time.Now()
	closed := make(chan struct{})
	go func() { all.Wait(); close(closed) }()
	for done := false; !done && answered < 500; answered++ {
		_ = unix.Stat(h.View("a", "absent"+strconv.Itoa(answered)), &unix.Stat_t{})
		select {
		case <-closed:
			done = true
		default:
		}
	}
	t.Log("answered meanwhile:", answered, "in", time.Since(began))
	assert.True(t, answered > 20 || time.Since(began) < time.Second/5, "%d answered in %s", answered, time.Since(began))
}

// TestCoherentUnknown: what the host does to names that nobody has asked for
// changes the directory.
func TestCoherentUnknown(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"c": ""})
	harness.Plant(t, h.Scope("c"), "d/f", "d/g")
	in := func() (st unix.Stat_t) { st, _ = statOf(h.View("c", "d")); return st }
	_, _ = statOf(h.View("c", "d/f"))
	require.EqualValues(t, 2, in().Nlink)
	time.Sleep(50 * time.Millisecond)
	before := in() // watched now
	require.NoError(t, os.Mkdir(h.Scope("c", "d/new"), 0o755))
	seen(t, "a new directory's link", func() bool { return in().Nlink == 3 })
	assert.NotEqual(t, before.Mtim, in().Mtim)
	before = in()
	require.NoError(t, os.Remove(h.Scope("c", "d/g")))
	seen(t, "a removed name's time", func() bool { return in().Mtim != before.Mtim })
}

// TestCoherentMade: a file that was just made, is still open for writing, and is
// written by the host.
func TestCoherentMade(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"c": ""})
	f, err := os.Create(h.View("c", "f"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, os.WriteFile(h.Scope("c", "f"), []byte("hello"), 0o644))
	seen(t, "its size", func() bool { st, _ := statOf(h.View("c", "f")); return st.Size == 5 })
}

// TestSharedModes: what others may open in a shared view goes by the modes that
// the kernel remembers; the host changes one by a name that was never seen.
func TestSharedModes(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"s": "view: {allow_other: true}"})
	harness.Plant(t, h.Scope("s"), "d/f", "e/x")
	h.Start()
	require.Equal(t, []string{"ok"}, opsAs(h, 4321, h.View("s"), "read d/f"))
	require.NoError(t, os.Link(h.Scope("s", "d/f"), h.Scope("s", "e/g")))
	require.NoError(t, os.Chmod(h.Scope("s", "e/g"), 0o600))
	seen(t, "that it is closed to others", func() bool { return opsAs(h, 4321, h.View("s"), "read d/f")[0] == "EACCES" })
}

// TestExecute: of a private view the kernel asks only whether anybody may
// execute a file; the view, whether its user may.
func TestExecute(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"x": "user: 4321"})
	program := "#!/bin/sh\nexit 0\n"
	for name, mode := range map[string]os.FileMode{"own": 0o755, "others": 0o645, "nobody": 0o644} {
		harness.Executable(t, h.Scope("x", name), []byte(program))
		require.NoError(t, os.Chmod(h.Scope("x", name), mode))
		require.NoError(t, os.Lchown(h.Scope("x", name), 4321, 4321))
	}
	require.NoError(t, os.Lchown(h.Scope("x"), 4321, 4321))
	h.Start()
	for name, want := range map[string]int{"own": 0, "others": 126, "nobody": 126} {
		_, _, code := h.Try("run", "-T", "x", "--", "/workspace/"+name)
		assert.Equal(t, want, code, name)
	}
}
