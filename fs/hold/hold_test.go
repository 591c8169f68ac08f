package hold

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/scope/beneath"
)

func layers(t *testing.T, files ...string) (l *Layers, dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"base/", "state/upper/", "state/stage/"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	for _, name := range files {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644))
	}
	open := func(rel string) *beneath.Root {
		r, err := beneath.OpenRoot(dir, rel)
		require.NoError(t, err)
		t.Cleanup(func() { r.Close() })
		return r
	}
	l, err := Open(open("base"), open("state"), true)
	require.NoError(t, err)
	t.Cleanup(func() { l.Upper.Close(); l.Stage.Close() })
	return l, dir
}

// at returns a name, with its directory in Upper.
func at(t *testing.T, l *Layers, rel string) Name {
	t.Helper()
	require.NoError(t, l.MakeDirs(beneath.Parent(rel)))
	d, err := l.Upper.Dir(beneath.Parent(rel))
	require.NoError(t, err)
	t.Cleanup(d.Close)
	return Name{d, beneath.Parent(rel), beneath.Base(rel)}
}

// TestLayers: names are removed, made again, moved and copied, and Base stays as it was.
func TestLayers(t *testing.T) {
	l, dir := layers(t, "base/d/x", "base/d/y", "base/d/e/z", "base/free")
	there := func(rel string) bool {
		_, err := l.Find(rel)
		return err == nil
	}
	base, err := l.Base.Stat("d")
	require.NoError(t, err)
	require.NoError(t, l.MakeDirs("d"))
	both, err := l.Find("d")
	require.NoError(t, err)
	assert.Equal(t, base.ID(), both.Stat.ID())
	assert.Same(t, l.Upper, both.Root)

	assert.Equal(t, unix.ENOTEMPTY, l.Remove(at(t, l, "d/e"), true, nil, false))
	assert.Equal(t, unix.ENOTDIR, l.Remove(at(t, l, "d/x"), true, nil, false))
	require.NoError(t, l.Remove(at(t, l, "d/e/z"), false, nil, false))
	require.NoError(t, l.Remove(at(t, l, "d/e"), true, nil, false))
	assert.False(t, there("d/e"))
	assert.False(t, there("d/e/z"))
	e := at(t, l, "d/e")
	require.NoError(t, l.Make(e, func(history.Place) error { return e.Dir.Mkdir("e", 0o755) }))
	assert.Equal(t, unix.EEXIST, l.Make(e, func(history.Place) error { return nil }))
	assert.False(t, there("d/e/z"), "the removed directory shows through")

	require.NoError(t, l.Rename(at(t, l, "d/x"), at(t, l, "d/w"), 0, nil, false))
	assert.False(t, there("d/x"))
	assert.Equal(t, unix.EEXIST, l.Rename(at(t, l, "d/w"), at(t, l, "d/y"), unix.RENAME_NOREPLACE, nil, false))
	require.NoError(t, l.Rename(at(t, l, "d/e"), at(t, l, "d/f"), 0, nil, false))
	st, err := l.Base.Stat("free")
	require.NoError(t, err)
	require.NoError(t, l.Adopt("free", &st, "d/x", 0))
	text, err := os.ReadFile(dir + "/state/upper/d/x")
	require.NoError(t, err)
	assert.Equal(t, "base/free", string(text))

	for _, rel := range []string{"base/d/x", "base/d/y", "base/d/e/z", "base/free"} {
		text, err := os.ReadFile(filepath.Join(dir, rel))
		require.NoError(t, err)
		assert.Equal(t, rel, string(text))
	}
	want, err := l.Names("d")
	require.NoError(t, err)
	require.NoError(t, l.Load())
	names, err := l.Names("d")
	require.NoError(t, err)
	assert.Equal(t, want, names, "the journal has all records")
	assert.Equal(t, []string{"f", "w", "x", "y"}, names)
}

// TestCarry: what is held below a directory moves with it, and stays if the rename fails.
func TestCarry(t *testing.T) {
	l, dir := layers(t, "base/a/held", "base/b/x")
	require.NoError(t, l.CopyUp("a/held", nil))
	assert.Equal(t, unix.EIO, l.Carry("a", "c", func() error { return unix.EIO }))
	assert.FileExists(t, dir+"/state/upper/a/held")
	require.NoError(t, l.Carry("a", "b/c", func() error { return os.Rename(dir+"/base/a", dir+"/base/b/c") }))
	held, err := l.Find("b/c/held")
	require.NoError(t, err)
	assert.Same(t, l.Upper, held.Root)
	assert.Equal(t, unix.EXDEV, l.Remains("b", "d", unix.RENAME_EXCHANGE))
	assert.True(t, l.Shows("b"))
}

// TestFreeze: a change waits for the end of a freeze, or fails with EBUSY.
func TestFreeze(t *testing.T) {
	l, _ := layers(t)
	thaw := l.Freeze()
	assert.Equal(t, unix.EBUSY, l.Enter())
	done := make(chan error, 1)
	go func() { done <- l.Enter() }()
	require.NoError(t, thaw())
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("still frozen")
	}
	l.Leave()
}

// TestJournal: the journal has all records after it was written anew, and does what a process that was killed has announced.
func TestJournal(t *testing.T) {
	l, dir := layers(t, "base/a/x", "base/b/y", "base/c")
	require.NoError(t, l.Rename(at(t, l, "a"), at(t, l, "b/a"), 0, nil, false))
	require.NoError(t, l.CopyUp("b/a/x", nil))
	require.NoError(t, l.Remove(at(t, l, "b/y"), false, nil, false))
	want, err := l.Names("b")
	require.NoError(t, err)
	l.compactAt = 0
	require.NoError(t, l.Remove(at(t, l, "c"), false, nil, false))
	require.NoError(t, l.Load())
	names, err := l.Names("b")
	require.NoError(t, err)
	assert.Equal(t, want, names)
	_, err = l.Find("c")
	assert.ErrorIs(t, err, beneath.ErrStale)

	// Killed after the line, before the rename in Upper.
	st, err := l.Upper.Stat("b/a")
	require.NoError(t, err)
	require.NoError(t, l.write(line{Op: opMove, Path: []byte("b/a"), To: []byte("d"), From: objectOf(&st),
		Shows: stateOf(shown{true, true, "a"})}))
	require.NoError(t, l.Load())
	assert.FileExists(t, dir+"/state/upper/d/x")
	require.NoError(t, l.write(line{Op: opOut, Path: []byte("d/x"), To: []byte("away")}))
	require.NoError(t, os.Rename(dir+"/state/upper/d/x", dir+"/state/stage/away"))
	require.NoError(t, l.Load())
	assert.FileExists(t, dir+"/state/upper/d/x")
	held, err := l.Find("d/x")
	require.NoError(t, err)
	assert.Same(t, l.Upper, held.Root)
}

// slowKeeper reads a path for as long as a disk may take.
type slowKeeper struct {
	reading, goOn chan struct{}
	noted         []string
}

func (k *slowKeeper) Read(rel, _ string, _ *beneath.Stat, _ bool) (note func(string, *beneath.Stat)) {
	if rel == "slow" {
		k.reading <- struct{}{}
		<-k.goOn
	}
	return func(at string, _ *beneath.Stat) { k.noted = append(k.noted, rel+" of "+at) }
}

func (*slowKeeper) Moved(...string) {}

// TestReadUnlocked: requests for other names do not wait while a version of Base is read.
func TestReadUnlocked(t *testing.T) {
	for name, change := range map[string]func(l *Layers) error{
		"copy":   func(l *Layers) error { return l.CopyUp("slow", nil) },
		"remove": func(l *Layers) error { return l.Remove(at(t, l, "slow"), false, nil, false) },
		"rename": func(l *Layers) error { return l.Rename(at(t, l, "slow"), at(t, l, "to"), 0, nil, false) },
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := layers(t, "base/slow", "base/other", "base/gone")
			k := &slowKeeper{reading: make(chan struct{}), goOn: make(chan struct{})}
			l.Keep = k
			done := make(chan error)
			go func() { done <- change(l) }()
			<-k.reading
			_, err := l.Find("other")
			require.NoError(t, err)
			require.NoError(t, l.Remove(at(t, l, "gone"), false, nil, false))
			close(k.goOn)
			require.NoError(t, <-done)
			assert.Equal(t, []string{"gone of gone", "slow of slow"}, k.noted)
		})
	}
}
