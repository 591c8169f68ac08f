package beneath

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// makeTree creates the objects that the lines describe, below dir: "d/" a
// directory, "f" a file with its name as content, "a => b" a symbolic link, "p
// |" a FIFO.
func makeTree(t *testing.T, dir string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		name, text, link := strings.Cut(line, " => ")
		fifo := strings.HasSuffix(name, " |")
		path := filepath.Join(dir, strings.TrimSuffix(name, " |"))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		var err error
		switch {
		case link:
			err = os.Symlink(text, path)
		case fifo:
			err = unix.Mkfifo(path, 0o644)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o755)
		default:
			err = os.WriteFile(path, []byte(name), 0o644)
		}
		require.NoError(t, err)
	}
}

// testRoot returns the scope of a1 in a base directory that has a neighbour
// scope and a file outside.
func testRoot(t *testing.T, lines ...string) (*Root, string) {
	t.Helper()
	base := t.TempDir()
	makeTree(t, base, "outside/secret", "agents/a10/secret", "agents/a1/")
	dir := filepath.Join(base, "agents", "a1")
	makeTree(t, dir, lines...)
	root, err := OpenRoot(base, "agents/a1")
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() })
	return root, dir
}

func TestOpenRoot(t *testing.T) {
	base := t.TempDir()
	makeTree(t, base, "agents/real/", "agents/file", "agents/link => real", "elsewhere/x/")
	for name, c := range map[string]struct {
		rel  string
		want error
	}{
		"directory":     {"agents/real", nil},
		"absent":        {"agents/none", unix.ENOENT},
		"not directory": {"agents/file", unix.ENOTDIR},
		"link":          {"agents/link", unix.ENOTDIR},
	} {
		t.Run(name, func(t *testing.T) {
			root, err := OpenRoot(base, c.rel)
			if c.want != nil {
				assert.ErrorIs(t, err, c.want)
				return
			}
			require.NoError(t, err)
			root.Close()
		})
	}
	require.NoError(t, os.Rename(filepath.Join(base, "agents"), filepath.Join(base, "moved")))
	require.NoError(t, os.Symlink("moved", filepath.Join(base, "agents")))
	_, err := OpenRoot(base, "agents/real")
	assert.ErrorIs(t, err, unix.ELOOP, "agents must not be a link")
}

func TestDirFollowsNothing(t *testing.T) {
	root, _ := testRoot(t, "d/e/", "f", "in => d", "out => ../../outside", "d/up => ..")
	for rel, want := range map[string]error{
		"":           nil,
		"d":          nil,
		"d/e":        nil,
		"f":          ErrStale,
		"none":       ErrStale,
		"in":         ErrStale,
		"in/e":       ErrStale,
		"out":        ErrStale,
		"d/up/d":     ErrStale,
		"..":         ErrEscape,
		"d/../..":    ErrEscape,
		"../a1":      ErrEscape,
		"d/../d":     nil, // the kernel resolves "..", still beneath the root
		"/":          ErrEscape,
		"/etc":       ErrEscape,
		"d/e/../../": nil,
	} {
		d, err := root.Dir(rel)
		if want == nil {
			if assert.NoError(t, err, "%q", rel) {
				d.Close()
			}
			continue
		}
		assert.ErrorIs(t, err, want, "%q", rel)
	}
}

func TestOpenTakesOnlyTheObjectMeant(t *testing.T) {
	root, dir := testRoot(t, "f", "g", "p |", "l => f")
	f, err := root.Object("f")
	require.NoError(t, err)
	defer f.Close()
	st, err := f.Stat()
	require.NoError(t, err)
	meant := st.ID()

	got, err := root.Open("f", unix.O_RDONLY, meant)
	require.NoError(t, err)
	got.Close()
	for name, swap := range map[string]string{"another file": "g", "a FIFO": "p", "a link": "l", "nothing": "none"} {
		_, err := root.Open(swap, unix.O_RDONLY, meant)
		assert.ErrorIs(t, err, ErrStale, name)
		_, err = root.Open(swap, unix.O_WRONLY, meant)
		assert.ErrorIs(t, err, ErrStale, name)
	}
	// A new file with the same name has another identity.
	require.NoError(t, os.Remove(filepath.Join(dir, "f")))
	time.Sleep(10 * time.Millisecond) // one tick, the granularity of birth times
	makeTree(t, dir, "f")
	_, err = root.Open("f", unix.O_RDONLY, meant)
	assert.ErrorIs(t, err, ErrStale)
}

func TestPathsBeyondPathMax(t *testing.T) {
	root, _ := testRoot(t)
	rel := ""
	for len(rel) < 3*pathMax {
		dir, err := root.Dir(rel)
		require.NoError(t, err)
		name := strings.Repeat("n", 200)
		require.NoError(t, dir.Mkdir(name, 0o755))
		dir.Close()
		rel = Join(rel, name)
	}
	dir, err := root.Dir(rel)
	require.NoError(t, err)
	defer dir.Close()
	f, err := dir.Create("f", unix.O_WRONLY, 0o600)
	require.NoError(t, err)
	f.Close()
	o, err := root.Object(rel + "/f")
	require.NoError(t, err)
	o.Close()
	_, err = root.Object(strings.Repeat("x", pathMax+10))
	assert.ErrorIs(t, err, unix.ENAMETOOLONG)
	// Each piece resolves beneath the previous one: ".." cannot climb out of
	// it.
	_, err = root.Dir(rel + strings.Repeat("/..", len(rel)/201+2))
	assert.Error(t, err)
}

func TestCheckName(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "\xff\xfe": true, "a\nb": true, "\\": true, "...": true, " ": true, strings.Repeat("x", 255): true,
		"": false, ".": false, "..": false, "a/b": false, "a\x00": false, strings.Repeat("x", 256): false,
	} {
		assert.Equal(t, ok, CheckName(name) == nil, "%q", name)
	}
	assert.ErrorIs(t, CheckName(".."), ErrEscape)
	assert.ErrorIs(t, CheckName(strings.Repeat("x", 256)), unix.ENAMETOOLONG)
}

func TestMknodMakesNoDevice(t *testing.T) {
	root, _ := testRoot(t)
	dir, err := root.Dir("")
	require.NoError(t, err)
	defer dir.Close()
	for _, kind := range []uint32{unix.S_IFCHR, unix.S_IFBLK} {
		assert.ErrorIs(t, dir.Mknod("dev", kind|0o666), ErrEscape)
	}
	assert.NoError(t, dir.Mknod("fifo", unix.S_IFIFO|0o644))
	assert.NoError(t, dir.Mknod("sock", unix.S_IFSOCK|0o644))
	assert.NoError(t, dir.Mknod("file", unix.S_IFREG|0o644))
}

// TestDirRace exchanges a directory with a link to a foreign directory while
// the path through it is resolved. The walk must never open a foreign object.
func TestDirRace(t *testing.T) {
	root, dir := testRoot(t, "d/inside", "link => ../../outside")
	foreign, err := os.Stat(filepath.Join(dir, "../../outside/secret"))
	require.NoError(t, err)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, dir+"/d", unix.AT_FDCWD, dir+"/link", unix.RENAME_EXCHANGE)
			}
		}
	}()
	opened, refused := 0, 0
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		d, err := root.Dir("d")
		if err != nil {
			require.True(t, errors.Is(err, ErrStale) || errors.Is(err, ErrEscape), err)
			refused++
			continue
		}
		_, err = d.Stat("secret")
		assert.ErrorIs(t, err, unix.ENOENT)
		if f, err := root.Object("d/secret"); err == nil {
			st, err := f.Stat()
			require.NoError(t, err)
			assert.NotEqual(t, foreign.Sys(), st.Ino)
			f.Close()
		}
		d.Close()
		opened++
	}
	close(stop)
	<-stopped
	assert.Positive(t, opened, "the race was not run")
	assert.Positive(t, refused, "the race was not run")
}

// TestStat compares a Root of NewDetached, which resolves a path with one statx(2), with one
// that opens the object.
func TestStat(t *testing.T) {
	root, dir := testRoot(t, "d/e/f", "f", "in => d", "in2 => d/e/f", "out => ../../outside", "abs => /etc", "d/up => ..", "p |", "a..b", "m/covered", "d/m/")
	require.NoError(t, unix.Mount("none", filepath.Join(dir, "m"), "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(dir, "m"), unix.MNT_DETACH) })
	require.NoError(t, os.WriteFile(filepath.Join(dir, "m", "foreign"), nil, 0o644))
	_, err := NewDetached(root.FD())
	require.ErrorIs(t, err, unix.EINVAL, "this mount follows links")

	detach := func(flags uint) *Root { // with AT_RECURSIVE, as in an unprivileged user's namespace
		fd, err := unix.OpenTree(root.FD(), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|flags)
		require.NoError(t, err)
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSYMFOLLOW}
		require.NoError(t, unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr))
		r, err := NewDetached(fd)
		require.NoError(t, err)
		t.Cleanup(func() { r.Close() })
		return r
	}
	for name, quick := range map[string]*Root{"detached": detach(0), "with mounts": detach(unix.AT_RECURSIVE)} {
		slow := NewRoot(quick.FD())
		for _, rel := range []string{"", ".", "d", "d/", "d/e/f", "f", "f/", "in", "in/", "in/e", "in/e/f", "in2", "out", "out/", "out/secret", "abs", "abs/passwd", "d/up", "d/up/f", "p", "a..b",
			"..", "../a10/secret", "d/..", "d/../..", "/", "/etc", "none", "d/none", "f/none", "m", "m/", "m/foreign", "m/covered", "m/none", "d/m",
			strings.Repeat("n", 256), strings.Repeat("d/../", 1000) + "f", "d\x00e"} {
			got, gotErr := quick.Stat(rel)
			want, wantErr := slow.Stat(rel)
			if wantErr == nil {
				if assert.NoError(t, gotErr, "%s: %q", name, rel) {
					assert.Equal(t, want.ID(), got.ID(), "%s: %q", name, rel)
				}
				continue
			}
			assert.Equal(t, errors.Is(wantErr, ErrEscape), errors.Is(gotErr, ErrEscape), "%s: %q: %v, %v", name, rel, gotErr, wantErr)
			assert.Equal(t, errors.Is(wantErr, ErrStale), errors.Is(gotErr, ErrStale), "%s: %q: %v, %v", name, rel, gotErr, wantErr)
		}
	}
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
