package history

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
)

// TestFull: on a full file system what cannot be kept stays, what the session has made can be removed, and with Unkept everything.
// Nothing is left of a generation that has no room for its journal.
func TestFull(t *testing.T) {
	const files = 200
	for _, unkept := range []bool{false, true} {
		t.Run(fmt.Sprint(unkept), func(t *testing.T) {
			c := onMemory(t, "size=512k", Options{Unkept: unkept})
			defer c.close()
			for i := range files {
				c.host(strconv.Itoa(i), "")
			}
			c.label = Label{Call: "made"}
			for i := range files {
				c.create("own"+strconv.Itoa(i), "")
			}
			require.ErrorIs(t, os.WriteFile(filepath.Join(c.dir, "large"), bytes.Repeat([]byte("x"), 600<<10), 0o644), unix.ENOSPC)
			before := entries(t, "/proc/self/fd")
			for i := range files {
				c.unlink("own" + strconv.Itoa(i))
			}
			c.label = Label{Call: "removed"}
			refused := 0
			for i := range files {
				at := c.place(strconv.Itoa(i))
				st, err := at.Dir.Stat(at.Name)
				require.NoError(t, err)
				if err = c.writer().Unlink(at, &st, false); err != nil {
					assert.ErrorIs(t, err, unix.ENOSPC)
					assert.ErrorContains(t, err, "history: not kept: the file system is full")
					refused++
				}
				at.Dir.Close()
			}
			assert.Less(t, entries(t, "/proc/self/fd"), before+files/10)
			assert.Less(t, entries(t, c.kept), files/10)
			assert.Equal(t, 1+refused, entries(t, c.dir), "what is large")
			assert.Equal(t, unkept, refused == 0)
		})
	}
}

// onMemory returns a client on a tmpfs that is mounted with options.
func onMemory(t *testing.T, options string, opt Options) *client {
	need.Root(t, "it mounts a file system")
	base := t.TempDir()
	require.NoError(t, unix.Mount("none", base, "tmpfs", 0, options))
	t.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
	c := &client{t: t, dir: filepath.Join(base, "tree"), kept: filepath.Join(base, "history")}
	require.NoError(t, os.Mkdir(c.dir, 0o755))
	require.NoError(t, os.Mkdir(c.kept, 0o700))
	c.open(opt)
	return c
}

// TestReserve: on a file system without a free byte removals are kept, also as the first change of a call, until the reserve is used up.
// What is removed comes back, and with room the reserve.
func TestReserve(t *testing.T) {
	c := onMemory(t, "size=20m,nr_inodes=100k", Options{})
	defer c.close()
	const files = 5000
	for i := range files {
		c.host(strconv.Itoa(i), "")
	}
	require.NoError(t, os.Mkdir(filepath.Join(c.dir, "d"), 0o755))
	before := state(t, c.dir)
	fill := filepath.Join(filepath.Dir(c.dir), "fill")
	full := func() {
		f, err := os.OpenFile(fill, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		require.NoError(t, err)
		defer f.Close()
		for size := 1 << 20; size > 0; size /= 2 {
			for err = nil; err == nil; {
				_, err = f.Write(make([]byte, size))
			}
			require.ErrorIs(t, err, unix.ENOSPC)
		}
	}
	remove := func(i int) error {
		at := c.place(strconv.Itoa(i))
		defer at.Dir.Close()
		st, err := at.Dir.Stat(at.Name)
		require.NoError(t, err)
		return c.store.WithRoom(func() error { return c.writer().Unlink(at, &st, false) })
	}
	full()
	c.label = Label{Session: "s", Call: "first"}
	at := c.place("d")
	st, err := at.Dir.Stat(at.Name)
	require.NoError(t, err)
	require.NoError(t, c.store.WithRoom(func() error { return c.writer().Rmdir(at, &st) }))
	at.Dir.Close()
	removed := 0
	for ; removed < files && err == nil; removed++ {
		if removed == 100 {
			c.label.Call = "second"
		}
		if err = remove(removed); err != nil {
			assert.ErrorContains(t, err, "history: not kept: the file system is full")
			break
		}
		full() // others take what is left
	}
	assert.Error(t, err)
	assert.Greater(t, removed, 300)
	require.NoError(t, os.Remove(fill))
	c.store.fill()
	full()
	require.NoError(t, remove(removed))
	require.NoError(t, os.Remove(fill))
	r := c.undo(Selection{Session: "s"})
	assert.Empty(t, r.Conflicts)
	assert.Empty(t, r.Unkept)
	assert.True(t, before == state(t, c.dir), "the tree is as it was")
}

// TestRefused: a removal that was refused on a full file system is in no record: an undo takes back what has happened, without a conflict.
func TestRefused(t *testing.T) {
	c := onMemory(t, "size=512k", Options{})
	defer c.close()
	for i := range 200 {
		c.host(strconv.Itoa(i), "")
	}
	before := state(t, c.dir)
	c.label = Label{Call: "removed"}
	c.unlink("0")
	large := filepath.Join(filepath.Dir(c.dir), "large")
	require.ErrorIs(t, os.WriteFile(large, bytes.Repeat([]byte("x"), 600<<10), 0o644), unix.ENOSPC)
	refused := false
	for i := 1; i < 199 && !refused; i++ {
		at := c.place(strconv.Itoa(i))
		st, err := at.Dir.Stat(at.Name)
		require.NoError(t, err)
		refused = c.writer().Unlink(at, &st, false) != nil
		at.Dir.Close()
	}
	require.True(t, refused)
	require.NoError(t, os.Remove(large))
	c.unlink("199")
	r := c.undo(Selection{Calls: []string{"removed"}})
	assert.Empty(t, r.Conflicts)
	assert.Equal(t, before, state(t, c.dir))
}

func entries(t *testing.T, dir string) int {
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	return len(list)
}

// TestNearlyFull: a history that is nearly full says so once, before the oldest generations go.
func TestNearlyFull(t *testing.T) {
	c := newClient(t)
	c.close()
	var said []string
	c.open(Options{Size: 1 << 20, Dropped: func(count int, why string) { said = append(said, fmt.Sprint(count, " ", why)) }})
	keep := func(name string, size int) {
		c.label = Label{Call: name}
		c.host(name, string(make([]byte, size)))
		c.unlink(name)
		c.store.endAll(func(*generation) bool { return true })
		c.store.prune(false)
		c.store.prune(false)
	}
	keep("half", 596<<10)
	assert.Empty(t, said)
	keep("more", 376<<10)
	soon := "0 more than 90 % of 1048576 bytes: the oldest generations go next"
	assert.Equal(t, []string{soon}, said)
	keep("too much", 100<<10)
	assert.Equal(t, []string{soon, "1 more than 1048576 bytes"}, said)
}

// TestManyKept: files without a content count, too, so that a bound of bytes bounds the number of kept files, and is said before it is reached.
func TestManyKept(t *testing.T) {
	c := newClient(t)
	c.close()
	var said []string
	c.open(Options{Size: 1 << 20, Dropped: func(count int, why string) { said = append(said, fmt.Sprint(count, " ", why)) }})
	most := 0
	for call := range 20 {
		c.label = Label{Call: fmt.Sprint(call)}
		for i := range 20 {
			name := fmt.Sprint(call, "-", i)
			c.host(name, "")
			c.unlink(name)
		}
		c.store.endAll(func(*generation) bool { return true })
		c.store.prune(false)
		kept := 0
		generations, err := os.ReadDir(c.kept)
		require.NoError(t, err)
		for _, g := range generations {
			if g.IsDir() {
				kept += entries(t, filepath.Join(c.kept, g.Name()))
			}
		}
		most = max(most, kept)
	}
	assert.Less(t, most, 300)
	require.NotEmpty(t, said)
	assert.Equal(t, "0 more than 90 % of 1048576 bytes: the oldest generations go next", said[0])
}

// TestSpared: neither a start of a view nor a disk that is full costs the last session what it has destroyed, unless its drafts take more
// than twice the bound; then the oldest go.
func TestSpared(t *testing.T) {
	const bound = 1 << 20
	c := newClient(t)
	c.close()
	c.open(Options{Size: bound})
	destroy := func(session, name string, size int) {
		c.label = Label{Session: session, Call: name}
		c.host(name, strings.Repeat("x", size))
		c.unlink(name)
		c.store.endAll(func(*generation) bool { return true })
		c.close()
		c.open(Options{Size: bound})
		c.store.prune(true)
	}
	kept := func(session string) (names []string) {
		list, _ := c.store.Changes(Selection{Session: session}) // an error: it has none
		for _, one := range list {
			names = append(names, one.Path)
		}
		return names
	}
	destroy("one", "large", 3*bound)
	assert.Equal(t, []string{"large"}, kept("one"), "the last change")
	destroy("two", "a", bound/2)
	assert.Empty(t, kept("one"), "another session has followed")
	assert.Equal(t, []string{"a"}, kept("two"))
	destroy("two", "b", bound)
	assert.Equal(t, []string{"a", "b"}, kept("two"), "less than twice the bound")
	destroy("two", "c", bound/2)
	assert.Equal(t, []string{"b", "c"}, kept("two"), "more than that")
	c.undo(Selection{Calls: []string{"c"}})
	c.store.prune(true)
	assert.FileExists(t, filepath.Join(c.dir, "c"))
}
