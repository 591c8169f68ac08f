package mounts

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// TestDetachWith: the directories of a Pair are in one mount, of the nearest directory that holds both.
func TestDetachWith(t *testing.T) {
	base := t.TempDir()
	plant := func(files ...string) {
		for _, name := range files {
			require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(base, name)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(base, name), nil, 0o644))
		}
	}
	plant("s/agents/a/f", "s/agents/b/secret", "s/history/a/kept", "s/m/covered", "s/agents/a/m/covered", "outside/secret")
	open := func(rel string) *beneath.Root {
		r, err := beneath.OpenRoot(base, rel)
		require.NoError(t, err, rel)
		t.Cleanup(func() { r.Close() })
		return r
	}
	mounted := filepath.Join(base, "s/m")
	require.NoError(t, unix.Mount("none", mounted, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
	require.NoError(t, os.Mkdir(filepath.Join(mounted, "h"), 0o700))
	bound := filepath.Join(base, "s/agents/a/m") // another mount of the same file system
	require.NoError(t, unix.Mount(filepath.Join(base, "outside"), bound, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(bound, unix.MNT_DETACH) })

	for name, c := range map[string]struct {
		scope, beside string
		want          error
	}{
		"beside one another":        {"s/agents/a", "s/history/a", nil},
		"siblings":                  {"s/agents/a", "s/agents/b", nil},
		"names with a common start": {"s", "outside", nil},
		"one within the other":      {"s/agents", "s/agents/a", ErrApart},
		"the other way around":      {"s/agents/a", "s", ErrApart},
		"the same":                  {"s/agents/a", "s/agents/a", ErrApart},
		"another file system":       {"s/agents/a", "s/m/h", ErrApart},
		"another mount of this one": {"s/history/a", "s/agents/a/m", ErrApart},
		"the root of a mount":       {"s/m", "s/m/h", ErrApart},
	} {
		t.Run(name, func(t *testing.T) {
			scope, beside := open(c.scope), open(c.beside)
			p, err := DetachWith(scope, beside)
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
				return
			}
			require.NoError(t, err)
			defer p.Close()
			var mounts []uint64
			for fd, want := range map[int]*beneath.Root{p.Scope: scope, p.Beside: beside} {
				got, err := beneath.NewDetached(fd)
				require.NoError(t, err)
				a, err := beneath.NewFile(got.FD()).Stat()
				require.NoError(t, err)
				b, err := beneath.NewFile(want.FD()).Stat()
				require.NoError(t, err)
				assert.Equal(t, b.ID(), a.ID())
				assert.NotEqual(t, b.Mnt_id, a.Mnt_id)
				mounts = append(mounts, a.Mnt_id)
			}
			assert.Equal(t, mounts[0], mounts[1])
		})
	}

	scope, beside := open("s/agents/a"), open("s/history/a")
	p, err := DetachWith(scope, beside)
	require.NoError(t, err)
	defer p.Close()
	from, to := beneath.NewFile(p.Scope).Dir(), beneath.NewFile(p.Beside).Dir()
	require.NoError(t, from.Rename("f", to, "moved", 0), "one mount")
	require.NoError(t, to.Link("moved", from, "again"))
	_, err = beneath.NewRoot(p.Scope).Object("../b/secret")
	assert.ErrorIs(t, err, beneath.ErrEscape)
	_, err = beneath.NewRoot(p.Scope).Object("m/secret")
	assert.Error(t, err, "mounts of the host are not in it")

	require.NoError(t, unix.Unmount(bound, unix.MNT_DETACH))
	require.NoError(t, os.Rename(filepath.Join(base, "s/agents/a"), filepath.Join(base, "s/agents/moved")))
	plant("s/agents/a/decoy")
	q, err := DetachWith(scope, beside)
	require.NoError(t, err, "the directory that the root holds, wherever it is")
	q.Close()
}
