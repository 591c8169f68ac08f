package attack

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// What reviewers have broken, so that it stays mended.

// A program that an agent leaves on the host must not run with its rights.
func TestFoundSetID(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	dir := h.View("a")
	harness.Executable(t, dir+"/x", []byte("#!/bin/sh\n"))
	require.NoError(t, unix.Chmod(dir+"/x", 0o6755))
	fd, err := unix.Open(dir+"/made", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o4755)
	require.NoError(t, err)
	unix.Close(fd)
	require.NoError(t, unix.Mknod(dir+"/nod", unix.S_IFREG|0o2711, 0))
	require.NoError(t, os.Mkdir(dir+"/d", 0o755))
	require.NoError(t, unix.Chmod(dir+"/d", 0o2775), "a directory's setgid is about groups")
	for name, want := range map[string]uint32{"x": 0o755, "made": 0o755, "nod": 0o711, "d": 0o2775} {
		var st unix.Stat_t
		require.NoError(t, unix.Lstat(h.Scope("a", name), &st))
		assert.Equal(t, want&^0o022, st.Mode&0o7777&^0o022, name)
	}
	assert.True(t, h.Recorded("a", audit.Event{Op: "setattr", Path: "x", Target: "set-id bits", Verdict: audit.Deny}))
}

// A denial is recorded whatever its path is made of, and however long.
func TestFoundRecordOfAnyPath(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {paths: {\"**/.env\": hide}}"})
	odd := []string{"\xff", "\xfe", "\xff\xff\\", "a EACCES (notes: read) pid 1", "\x01\x1b[2J"}
	for _, name := range odd {
		require.NoError(t, os.Mkdir(h.Scope("a", name), 0o755))
		_, err := os.Stat(h.View("a", name, ".env"))
		assert.ErrorIs(t, err, os.ErrNotExist)
	}
	seen := map[string]bool{}
	for _, e := range h.Events("a") {
		path, err := audit.Unescape(e.Path)
		assert.NoError(t, err)
		seen[path] = true
	}
	for _, name := range odd {
		assert.True(t, seen[name+"/.env"], "%q", name)
	}
	assert.Contains(t, h.Must("audit", "--denied"), `"a EACCES (notes: read) pid 1/.env"`)

	// Deep: what would be megabytes in JSON.
	before := len(h.Events("a"))
	name := strings.Repeat("\x01", 255)
	at, err := unix.Open(h.View("a"), unix.O_DIRECTORY|unix.O_PATH, 0)
	require.NoError(t, err)
	for range 1000 {
		require.NoError(t, unix.Mkdirat(at, name, 0o755))
		next, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_PATH, 0)
		require.NoError(t, err)
		unix.Close(at)
		at = next
	}
	assert.Equal(t, unix.ENOENT, unix.Fstatat(at, ".env", &unix.Stat_t{}, 0))
	assert.Equal(t, unix.EACCES, unix.Symlinkat("/etc/shadow", at, "s"))
	unix.Close(at)
	assert.Equal(t, before+2, len(h.Events("a")))
	require.NoError(t, exec.Command("rm", "-rf", h.Scope("a", name)).Run())
}

// A target is proof, whatever words are in it.
func TestFoundTargetNotRedacted(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	text := "secret=x/../../../../etc/shadow"
	assert.ErrorIs(t, os.Symlink(text, h.View("a", "l")), unix.EACCES)
	assert.True(t, h.Recorded("a", audit.Event{Op: "symlink", Target: text, Verdict: audit.Violation}))
}

// Links that take long to judge must not keep a daemon from ending.
func TestFoundSlowLinks(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	deep := h.Scope("a") + strings.Repeat("/y", 1200)
	require.NoError(t, os.MkdirAll(deep, 0o755))
	require.NoError(t, os.Symlink(strings.Repeat("y/../", 800)+"f", filepath.Join(h.Scope("a"), "slow")))
	began := time.Now()
	_, err := os.Readlink(h.View("a", "slow"))
	assert.ErrorIs(t, err, unix.ENAMETOOLONG)
	assert.Less(t, time.Since(began), 10*time.Second)
	ctx, cancel := context.WithCancel(context.Background())
	hog := exec.CommandContext(ctx, harness.Program, "--base", h.Base, "run", "a", "--", "sh", "-c", "while :; do readlink slow; done")
	require.NoError(t, hog.Start())
	h.Eventually("the hog runs", func() bool { return len(h.PS()[0].Sandboxes) > 0 })
	began = time.Now()
	h.Stop()
	assert.Less(t, time.Since(began), 15*time.Second)
	cancel()
	_ = hog.Wait()
}

// Two views of one scope: while one exchanges a file with a directory, the other
// renames it to where a directory would bring protected files.
func TestFoundMoveFromTwoViews(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {paths: {\"proj/.git/hooks\": read}}"})
	dir := h.Scope("a")
	harness.Plant(t, dir, "w/f", "w/d/hooks/post-commit", "proj/x")
	// The second view is that of a command without the daemon.
	other := exec.Command(harness.Program, "--base", h.Base, "--run", h.Base+"/none", "run", "a", "--", "/usr/bin/python3", "-c", `
import ctypes, os, time
libc = ctypes.CDLL(None)
end = time.time() + 3
while time.time() < end:
    libc.renameat2(-100, b"w/f", -100, b"w/d", 2)
`)
	require.NoError(t, other.Start())
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() { _ = other.Wait(); close(stop) })
	moves := 0
	for done := false; !done; {
		select {
		case <-stop:
			done = true
		default:
			if unix.Rename(h.View("a", "w/f"), h.View("a", "proj/.git")) == nil {
				moves++
				_ = unix.Rename(h.View("a", "proj/.git"), h.View("a", "w/f"))
			}
		}
		if _, err := os.Lstat(filepath.Join(dir, "proj/.git/hooks/post-commit")); err == nil {
			t.Fatal("a directory was moved to where its content is protected")
		}
	}
	wg.Wait()
	assert.Positive(t, moves, "the race was not run")
}
