package mount

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
)

// TestMountTable: the table is parsed once, and again after a change; a mount root
// is known without it.
func TestMountTable(t *testing.T) {
	need.Root(t, "it mounts")
	at := filepath.Join(t.TempDir(), "mount point") // with a space, which the kernel escapes
	require.NoError(t, os.Mkdir(at, 0o755))
	var table Table
	has := func() bool {
		all, err := table.Read()
		require.NoError(t, err)
		return slices.ContainsFunc(all, func(m *mountinfo.Info) bool { return m.Mountpoint == at })
	}
	assert.False(t, has())
	root, err := IsRoot(at)
	assert.NoError(t, err)
	assert.False(t, root)

	require.NoError(t, unix.Mount("none", at, "tmpfs", 0, "size=64k"))
	defer unix.Unmount(at, unix.MNT_DETACH)
	assert.True(t, has())
	root, err = IsRoot(at)
	assert.NoError(t, err)
	assert.True(t, root)

	require.NoError(t, unix.Unmount(at, 0))
	assert.False(t, has())
	root, err = IsRoot(at + "/missing")
	assert.NoError(t, err)
	assert.False(t, root)
}

// TestAt: all mounts on a directory are found, the top one last.
func TestAt(t *testing.T) {
	need.Root(t, "it mounts")
	at := t.TempDir()
	for _, source := range []string{"below", "top"} {
		require.NoError(t, unix.Mount(source, at, "tmpfs", 0, "size=64k"))
		defer unix.Unmount(at, unix.MNT_DETACH)
	}
	all, err := At(at)
	require.NoError(t, err)
	var sources []string
	for _, m := range all {
		sources = append(sources, m.Source)
	}
	assert.Equal(t, []string{"below", "top"}, sources)
}

// TestWithoutViews: parents before children, each place once, and of views only the
// one that is asked for.
func TestWithoutViews(t *testing.T) {
	all := []*mountinfo.Info{{Mountpoint: "/proc"}, {Mountpoint: "/"}, {Mountpoint: "/run"}, {Mountpoint: "/run"}, {Mountpoint: "/run/views/me", FSType: Type}}
	assert.Nil(t, WithoutViews(all, "/run/views/me"), "few mounts")
	for range fewMounts {
		all = append(all, &mountinfo.Info{Mountpoint: "/run/views/other", FSType: Type})
	}
	assert.Equal(t, []string{"/", "/proc", "/run", "/run/views/me"}, WithoutViews(all, "/run/views/me"))
}

// TestAgent: a mount is an agent's by its type and a source with an id.
func TestAgent(t *testing.T) {
	for name, c := range map[string]struct {
		mount mountinfo.Info
		id    scope.ID
	}{
		"a view":     {mountinfo.Info{FSType: Type, Source: "scopefs:a"}, "a"},
		"other type": {mountinfo.Info{FSType: "fuse.other", Source: "scopefs:a"}, ""},
		"no id":      {mountinfo.Info{FSType: Type, Source: "scopefs:../a"}, ""},
		"no prefix":  {mountinfo.Info{FSType: Type, Source: "a"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			id, ok := Agent(&c.mount)
			assert.Equal(t, c.id, id)
			assert.Equal(t, c.id != "", ok)
		})
	}
}
