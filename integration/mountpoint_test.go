package integration

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
)

// TestMountPointHidden: a root process of the host that works in a mount point
// writes nothing below a view that is away: not while it is dead, not while no
// daemon is there, and not after somebody has unmounted what is dead.
func TestMountPointHidden(t *testing.T) {
	h := newHost(t, map[string]string{"a": ""})
	at := h.view("a", "made")
	h.kill()
	h.eventually("the mount is dead", func() bool { return os.Mkdir(at, 0o755) != nil })
	assert.ErrorIs(t, os.Mkdir(at, 0o755), unix.ENOTCONN)
	require.NoError(t, unix.Unmount(h.view("a"), unix.MNT_DETACH))
	assert.ErrorIs(t, os.Mkdir(at, 0o755), unix.EPERM)
	h.start()
	assert.NoError(t, os.Mkdir(at, 0o755))
	assert.DirExists(t, h.scope("a", "made"))
	h.must("down", "a")
	assert.NoDirExists(t, h.view("a"))
	assert.ErrorIs(t, os.Mkdir(at, 0o755), unix.ENOENT)
}

// TestMountPointLeft: a daemon that is started over dead mounts shows each view
// in the place of its own, and removes the mounts of agents that are gone.
func TestMountPointLeft(t *testing.T) {
	h := newHost(t, map[string]string{"a": "", "gone": ""})
	h.kill()
	require.NoError(t, os.Remove(filepath.Join(h.base, "agents.d", "gone.md")))
	h.start()
	h.eventually("the mount of the agent that is gone is removed, with its directory", func() bool {
		_, err := os.Lstat(h.view("gone"))
		return errors.Is(err, os.ErrNotExist)
	})
	assert.Equal(t, 1, h.mounted(h.view("a")))
}

// TestMountPointFull: what is in a mount point already is hidden, and ps says so.
func TestMountPointFull(t *testing.T) {
	h := newHost(t, map[string]string{"a": ""})
	h.must("down", "a")
	at := filepath.Join(h.base, "full")
	plant(t, at, "one", "two")
	assert.Equal(t, at+"\n", h.must("up", "a", "--at", at))
	assert.NoFileExists(t, filepath.Join(at, "one"))
	assert.Contains(t, h.must("ps"), "hides 2 entries")
	h.must("down", "a")
	assert.FileExists(t, filepath.Join(at, "one"))
	assert.NoError(t, os.WriteFile(filepath.Join(at, "three"), nil, 0o644), "it is as it was before")
}

// TestScopeGone: a view ends with its directory and is back with it. A missing
// agents/ is not made: its file system may be missing.
func TestScopeGone(t *testing.T) {
	t.Parallel()
	h := newHost(t, map[string]string{"a": ""})
	require.NoError(t, os.WriteFile(h.scope("a", "old"), nil, 0o644))
	state := func(want string) func() bool { return func() bool { return h.agent("a").State == want } }

	moved := filepath.Join(h.base, "moved")
	require.NoError(t, os.Rename(h.scope("a"), moved))
	h.eventually("it has no view", state("failed"))
	assert.NoDirExists(t, h.scope("a"))
	_, err := os.Lstat(h.view("a", "old"))
	assert.ErrorIs(t, err, unix.ENOTCONN)
	require.NoError(t, os.Rename(moved, h.scope("a")))
	h.eventually("it is back", state("mounted"))
	assert.FileExists(t, h.view("a", "old"))

	require.NoError(t, os.RemoveAll(h.scope("a")))
	h.eventually("it has no view", state("failed"))
	require.NoError(t, os.Mkdir(h.scope("a"), 0o755))
	h.eventually("it is back", state("mounted"))
	assert.NoFileExists(t, h.view("a", "old"))

	agents := filepath.Join(h.base, "agents")
	require.NoError(t, os.Rename(agents, moved))
	h.eventually("it has no view", state("failed"))
	h.must("down", "a")
	_, errs, code := h.try("up", "a")
	assert.NotZero(t, code)
	assert.Contains(t, errs, "mount its file system, or make it")
	assert.NoDirExists(t, agents)
	require.NoError(t, os.Rename(moved, agents))
	h.must("up", "a")
	for _, want := range []audit.Event{{Event: audit.KindView, Outcome: "died"}, {Event: audit.KindView, Outcome: "not mounted"}} {
		assert.True(t, h.recorded("a", want), want)
	}
}
