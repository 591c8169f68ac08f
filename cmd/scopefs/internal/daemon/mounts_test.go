package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
)

// TestMountTable: the table is parsed once, and again after a change; a mount root
// is known without it.
func TestMountTable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("for root")
	}
	at := filepath.Join(t.TempDir(), "mount point") // with a space, which the kernel escapes
	require.NoError(t, os.Mkdir(at, 0o755))
	var table mountTable
	has := func() bool {
		all, err := table.read()
		require.NoError(t, err)
		return slices.ContainsFunc(all, func(m *mountinfo.Info) bool { return m.Mountpoint == at })
	}
	assert.False(t, has())
	root, err := isMountRoot(at)
	assert.NoError(t, err)
	assert.False(t, root)

	require.NoError(t, unix.Mount("none", at, "tmpfs", 0, "size=64k"))
	defer unix.Unmount(at, unix.MNT_DETACH)
	assert.True(t, has())
	root, err = isMountRoot(at)
	assert.NoError(t, err)
	assert.True(t, root)

	require.NoError(t, unix.Unmount(at, 0))
	assert.False(t, has())
	root, err = isMountRoot(at + "/missing")
	assert.NoError(t, err)
	assert.False(t, root)
}

// TestWithoutViews: parents before children, each place once, and of views only the
// one that is asked for.
func TestWithoutViews(t *testing.T) {
	all := []*mountinfo.Info{{Mountpoint: "/proc"}, {Mountpoint: "/"}, {Mountpoint: "/run"}, {Mountpoint: "/run"}, {Mountpoint: "/run/views/me", FSType: fsType}}
	assert.Nil(t, withoutViews(all, "/run/views/me"), "few views")
	for range manyViews {
		all = append(all, &mountinfo.Info{Mountpoint: "/run/views/other", FSType: fsType})
	}
	assert.Equal(t, []string{"/", "/proc", "/run", "/run/views/me"}, withoutViews(all, "/run/views/me"))
}

// TestHealth: a daemon whose lock, or the lock of one of whose views, is held does
// not say that it is healthy.
func TestHealth(t *testing.T) {
	v := &view{}
	log, err := audit.Open(t.TempDir(), audit.Options{})
	require.NoError(t, err)
	defer log.Close()
	d := &Daemon{views: map[scope.ID]*view{"a": v}, log: log}
	for name, lock := range map[string]sync.Locker{"daemon": &d.mu, "view": &v.mu} {
		t.Run(name, func(t *testing.T) {
			lock.Lock()
			done := make(chan struct{})
			go func() { d.checkHealth(); close(done) }()
			select {
			case <-done:
				t.Error("it is healthy")
			case <-time.After(50 * time.Millisecond):
			}
			lock.Unlock()
			<-done
		})
	}
}
