package view

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// newNFS returns a volume of the kernel's NFS server.
func newNFS(t *testing.T, options ...string) *harness.Volume {
	t.Helper()
	need.Target(t, "test-nfs", harness.VolumeEnv, string(harness.NFS))
	return harness.NewVolumeOf(t, harness.NFS, options...)
}

// TestNFSStale: what the server removes or replaces below a view is gone there: an open file is stale, a name is the new file.
func TestNFSStale(t *testing.T) {
	vol := newNFS(t)
	one, other := vol.NewHosts(t, map[string]string{"w": ""})
	one.Start()
	other.Start()
	a, b := newPlace(t, one, one.View("w")), newPlace(t, other, other.View("w"))
	served := filepath.Join(vol.Served(), "w")
	for round := range 5 {
		require.Empty(t, a.do("mkdir d"))
		require.Empty(t, a.do("write d/f old"))
		require.Equal(t, "old", b.do("read d/f"))
		require.Empty(t, b.do("hold d/f"))
		require.NoError(t, os.Remove(filepath.Join(served, "d/f")))
		require.Equal(t, "ENOENT", a.do("read d/f"))
		require.Contains(t, []string{"ESTALE", "old"}, b.do("held"), "round %d", round)
		require.NoError(t, os.WriteFile(filepath.Join(served, "d/f"), []byte("new"), 0o666))
		require.Equal(t, "new", a.do("read d/f"))
		require.Equal(t, "new", b.do("read d/f"))
		require.Contains(t, []string{"ESTALE", "old"}, b.do("held"), "the open file is not the new one")
		require.NoError(t, os.RemoveAll(filepath.Join(served, "d")))
		require.Equal(t, "ENOENT", b.do("list d"))
		require.Equal(t, "ENOENT", a.do("size d/f"))
		require.Empty(t, b.do("release"))
	}
}

// TestNFSRootSquash: a server that maps root to nobody serves an agent's files to the agent's user.
func TestNFSRootSquash(t *testing.T) {
	vol := newNFS(t, "root_squash")
	require.NoError(t, os.Mkdir(filepath.Join(vol.Served(), "w"), 0o700))
	require.NoError(t, os.Chown(filepath.Join(vol.Served(), "w"), 1000, 1000))
	h := harness.LayOut(t, nil)
	h.Define("w", fmt.Sprintf("user: 1000:1000\ndir: %s", filepath.Join(vol.A, "w")))
	h.Start()
	t.Log(h.Must("ps"))
	require.Equal(t, "mounted", h.Agent("w").State, h.Agent("w").Error)
	a := newPlace(t, h, h.View("w"))
	for _, step := range []string{"write f text", "rename f g", "mkdir d", "write d/f text", "link l g", "remove g"} {
		assert.Empty(t, a.do(step), step)
	}
	assert.Equal(t, "text", a.do("read d/f"))
}

// TestNFSServerStops: while the server has no threads, a client of a view gets an error and other agents work. Afterwards both
// hosts go on.
func TestNFSServerStops(t *testing.T) {
	vol := newNFS(t)
	one, other := vol.NewHosts(t, map[string]string{"w": ""})
	one.Define("near", "")
	require.NoError(t, os.MkdirAll(one.Scope("near"), 0o755))
	one.Start()
	other.Start()
	a, b := newPlace(t, one, one.View("w")), newPlace(t, other, other.View("w"))
	require.Empty(t, b.do("write f text"))
	require.Equal(t, "text", a.do("read f"))
	vol.Server(t, "echo 0 >/proc/fs/nfsd/threads")
	said := make(chan string, 1)
	go func() { said <- a.do("read f") }()
	one.Must("run", "-T", "near", "--", "true")
	one.Must("ps")
	require.Equal(t, "EIO", <-said)
	vol.Server(t, "rpc.nfsd -N 3 -V 4.2 4")
	one.Eventually("the file is there again", func() bool { return a.do("read f") == "text" })
	one.Eventually("it can be written", func() bool { return a.do("write f again") == "" })
	one.Eventually("the other host sees it", func() bool { return b.do("read f") == "again" })
}
