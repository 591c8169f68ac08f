package beneath

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestDetachWith: the directories of a Pair are in one mount, of the nearest directory that holds both.
func TestDetachWith(t *testing.T) {
	base := t.TempDir()
	makeTree(t, base, "s/agents/a/f", "s/agents/b/secret", "s/history/a/", "s/link => agents", "s/m/", "s/agents/a/m/covered", "outside/secret")
	open := func(rel string) *Root {
		r, err := OpenRoot(base, rel)
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
			p, err := scope.DetachWith(beside)
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
				return
			}
			require.NoError(t, err)
			defer p.Close()
			var mounts []uint64
			for fd, want := range map[int]*Root{p.Scope: scope, p.Beside: beside} {
				got, err := NewDetached(fd)
				require.NoError(t, err)
				var a, b Stat
				require.NoError(t, statx(got.fd, "", &a))
				require.NoError(t, statx(want.fd, "", &b))
				assert.Equal(t, b.ID(), a.ID())
				assert.NotEqual(t, b.Mnt_id, a.Mnt_id)
				mounts = append(mounts, a.Mnt_id)
			}
			assert.Equal(t, mounts[0], mounts[1])
		})
	}

	scope, beside := open("s/agents/a"), open("s/history/a")
	p, err := scope.DetachWith(beside)
	require.NoError(t, err)
	defer p.Close()
	from, to := Dir{fd: p.Scope}, Dir{fd: p.Beside}
	require.NoError(t, from.Rename("f", to, "kept", 0), "one mount")
	require.NoError(t, to.Link("kept", from, "again"))
	_, err = NewRoot(p.Scope).Object("../b/secret")
	assert.ErrorIs(t, err, ErrEscape)
	_, err = NewRoot(p.Scope).Object("m/secret")
	assert.Error(t, err, "mounts of the host are not in it")

	require.NoError(t, unix.Unmount(bound, unix.MNT_DETACH))
	require.NoError(t, os.Rename(filepath.Join(base, "s/agents/a"), filepath.Join(base, "s/agents/moved")))
	makeTree(t, base, "s/agents/a/decoy")
	q, err := scope.DetachWith(beside)
	require.NoError(t, err, "the directory that the root holds, wherever it is")
	q.Close()
}

// TestClone: a clone has the data of the file, and keeps them when the file changes.
func TestClone(t *testing.T) {
	root, _ := testRoot(t, "f")
	dir, err := root.Dir("")
	require.NoError(t, err)
	defer dir.Close()
	st, err := root.Stat("f")
	require.NoError(t, err)
	from, err := root.Open("f", unix.O_RDWR, st.ID())
	require.NoError(t, err)
	defer from.Close()
	to, err := dir.Create("clone", unix.O_RDWR, 0o600)
	require.NoError(t, err)
	defer to.Close()
	err = to.Clone(from)
	if err == unix.EOPNOTSUPP || err == unix.ENOTTY || err == unix.EINVAL {
		t.Logf("this file system has no clones: %v", err)
		return
	}
	require.NoError(t, err)
	_, err = from.WriteAt([]byte("x"), 0, false)
	require.NoError(t, err)
	text := make([]byte, 8)
	n, err := to.ReadAt(text, 0)
	require.NoError(t, err)
	assert.Equal(t, "f", string(text[:n]))
}

// TestSub: a Root of a directory follows no link either, with a mount of its own and without.
func TestSub(t *testing.T) {
	base := t.TempDir()
	makeTree(t, base, "s/d/f", "s/d/link => ../outside", "s/outside/secret", "s/to => outside")
	r, err := OpenRoot(base, "s")
	require.NoError(t, err)
	defer r.Close()
	sub, err := r.Sub("d")
	require.NoError(t, err)
	defer sub.Close()
	want, err := r.Stat("d/f")
	require.NoError(t, err)
	st, err := sub.Stat("f")
	require.NoError(t, err)
	require.Equal(t, want.ID(), st.ID())
	_, err = sub.Stat("link/secret")
	require.ErrorIs(t, err, ErrStale)
	for _, rel := range []string{"to", "d/f", "missing"} {
		_, err = r.Sub(rel)
		require.ErrorIs(t, err, ErrStale, rel)
	}
}
