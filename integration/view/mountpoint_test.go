package view

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// TestMountPointHidden: a root process of the host that works in a mount point
// writes nothing below a view that is away: not while it is dead, not while no
// daemon is there, and not after somebody has unmounted what is dead.
func TestMountPointHidden(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": ""})
	h.Put("scopefs.yaml", "grace: 0s\n") // the view dies with the daemon
	h.Start()
	at := h.View("a", "made")
	h.KillAll()
	h.Eventually("the mount is dead", func() bool { return os.Mkdir(at, 0o755) != nil })
	assert.ErrorIs(t, os.Mkdir(at, 0o755), unix.ENOTCONN)
	require.NoError(t, unix.Unmount(h.View("a"), unix.MNT_DETACH))
	assert.ErrorIs(t, os.Mkdir(at, 0o755), unix.EPERM)
	h.Start()
	assert.NoError(t, os.Mkdir(at, 0o755))
	assert.DirExists(t, h.Scope("a", "made"))
	h.Must("down", "a")
	assert.NoDirExists(t, h.View("a"))
	assert.ErrorIs(t, os.Mkdir(at, 0o755), unix.ENOENT)
}

// TestMountPointLeft: a daemon that is started over dead mounts shows each view
// in the place of its own, and removes the mounts of agents that are gone.
func TestMountPointLeft(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "", "gone": ""})
	h.Put("scopefs.yaml", "grace: 0s\n") // the views die with the daemon
	h.Start()
	h.Kill()
	require.NoError(t, os.Remove(filepath.Join(h.Base, "agents.d", "gone.md")))
	h.Start()
	h.Eventually("the mount of the agent that is gone is removed, with its directory", func() bool {
		_, err := os.Lstat(h.View("gone"))
		return errors.Is(err, os.ErrNotExist)
	})
	assert.Equal(t, 1, h.Mounted(h.View("a")))
}

// TestMountPointFull: what is in a mount point already is hidden, and ps says so.
func TestMountPointFull(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	h.Must("down", "a")
	at := filepath.Join(h.Base, "full")
	harness.Plant(t, at, "one", "two")
	assert.Equal(t, at+"\n", h.Must("up", "a", "--at", at))
	assert.NoFileExists(t, filepath.Join(at, "one"))
	assert.Contains(t, h.Must("ps"), "hides 2 entries")
	h.Must("down", "a")
	assert.FileExists(t, filepath.Join(at, "one"))
	assert.NoError(t, os.WriteFile(filepath.Join(at, "three"), nil, 0o644), "it is as it was before")
}

// TestScopeGone: a view ends with its directory and is back with it. A missing
// agents/ is not made: its file system may be missing.
func TestScopeGone(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t, map[string]string{"a": ""})
	require.NoError(t, os.WriteFile(h.Scope("a", "old"), nil, 0o644))
	state := func(want string) func() bool { return func() bool { return h.Agent("a").State == want } }

	moved := filepath.Join(h.Base, "moved")
	require.NoError(t, os.Rename(h.Scope("a"), moved))
	h.Eventually("it has no view", state("failed"))
	assert.NoDirExists(t, h.Scope("a"))
	_, err := os.Lstat(h.View("a", "old"))
	assert.ErrorIs(t, err, unix.ENOTCONN)
	require.NoError(t, os.Rename(moved, h.Scope("a")))
	h.Eventually("it is back", state("mounted"))
	assert.FileExists(t, h.View("a", "old"))

	require.NoError(t, os.RemoveAll(h.Scope("a")))
	h.Eventually("it has no view", state("failed"))
	require.NoError(t, os.Mkdir(h.Scope("a"), 0o755))
	h.Eventually("it is back", state("mounted"))
	assert.NoFileExists(t, h.View("a", "old"))

	agents := filepath.Join(h.Base, "agents")
	require.NoError(t, os.Rename(agents, moved))
	h.Eventually("it has no view", state("failed"))
	h.Must("down", "a")
	_, errs, code := h.Try("up", "a")
	assert.NotZero(t, code)
	assert.Contains(t, errs, "mount its file system, or make it")
	assert.NoDirExists(t, agents)
	require.NoError(t, os.Rename(moved, agents))
	h.Must("up", "a")
	for _, want := range []audit.Event{{Event: audit.KindView, Outcome: "died"}, {Event: audit.KindView, Outcome: "not mounted"}} {
		assert.True(t, h.Recorded("a", want), want)
	}
}
