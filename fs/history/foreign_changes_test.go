package history

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// host writes a file of the tree past the history.
func (c *client) host(rel, text string) {
	require.NoError(c.t, os.WriteFile(filepath.Join(c.dir, rel), []byte(text), 0o644))
}

func (c *client) read(rel string) string {
	text, err := os.ReadFile(filepath.Join(c.dir, rel))
	require.NoError(c.t, err)
	return string(text)
}

// conflicts are the paths of a result's conflicts.
func conflicts(r *Result) (paths []string) {
	for _, p := range r.Conflicts {
		paths = append(paths, p.Path)
	}
	return paths
}

// TestOthersWithin: what the host writes between two changes of one session is kept, comes back, and what the session did before it is
// a conflict.
func TestOthersWithin(t *testing.T) {
	for name, change := range map[string]func(c *client, rel string){
		"written":             func(c *client, rel string) { c.write(rel, "of the agent") },
		"removed":             func(c *client, rel string) { c.unlink(rel) },
		"replaced":            func(c *client, rel string) { c.create("new", "new"); require.NoError(c.t, c.rename("new", rel, 0)) },
		"written and removed": func(c *client, rel string) { c.write(rel, "of the agent"); c.unlink(rel) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t)
			c.host("f", "before")
			c.label = Label{Session: "s"}
			c.write("f", "first")
			c.create("made", "draft")
			c.host("f", "an hour of work")
			c.host("made", "an hour in the draft")
			change(c, "f")
			change(c, "made")
			r := c.undo(Selection{Session: "s"})
			assert.ElementsMatch(t, []string{"f", "made"}, conflicts(r))
			assert.Equal(t, "an hour of work", c.read("f"))
			assert.Equal(t, "an hour in the draft", c.read("made"))
			again := c.undo(Selection{Session: "s"})
			assert.ElementsMatch(t, []string{"f", "made"}, conflicts(again))
			assert.Equal(t, "an hour of work", c.read("f"))
			assert.Equal(t, "an hour in the draft", c.read("made"))
			c.undo(Selection{Undo: true})
			if name == "written" {
				assert.Equal(t, "of the agent", c.read("f"))
			}
			c.undo(Selection{Session: "s"})
			c.undo(Selection{Session: "s", Force: true})
			assert.Equal(t, "before", c.read("f"))
			assert.Equal(t, "an hour of work", c.read("f.newer1"))
			assert.Equal(t, "an hour in the draft", c.read("made")) // which no version replaces
		})
	}
}

// TestUndoWhileOpen: a file that a program has open for writing may have newer work of others.
func TestUndoWhileOpen(t *testing.T) {
	c := newClient(t)
	c.host("f", "before")
	c.label = Label{Session: "s"}
	c.write("f", "of the agent")
	c.host("f", "an hour of work")
	r := c.undoWith(Selection{Session: "s"}, Hooks{Writing: func(beneath.FileID) bool { return true }})
	assert.Equal(t, []Problem{{"f", "a program has it open for writing"}}, r.Conflicts)
	assert.Equal(t, "an hour of work", c.read("f"))
}

// TestTwins: a name that is given and removed again leaves nothing in the history, and others of a file are bounded there.
func TestTwins(t *testing.T) {
	c := newClient(t)
	c.host("f", "before")
	before := state(t, c.dir)
	c.label = Label{Session: "s"}
	for range maxNames + 10 {
		c.link("f", "g")
		c.unlink("g")
	}
	st, err := c.root.Stat("f")
	require.NoError(t, err)
	assert.EqualValues(t, 1, st.Nlink)
	assert.Empty(t, c.undo(Selection{Session: "s"}).Conflicts)
	assert.Equal(t, before, state(t, c.dir))
	c.link("f", "g") // a name that has come back by another way is no twin
	require.NoError(t, c.rename("g", "h", 0))
	require.NoError(t, c.rename("h", "g", 0))
	c.unlink("g")
	assert.Empty(t, c.undo(Selection{Session: "s"}).Conflicts)
	assert.Equal(t, before, state(t, c.dir))
	c.label = Label{Session: "s2"}
	for n := 0; ; n++ {
		c.link("f", "g")
		require.NoError(t, c.rename("g", "h", 0))
		at := c.place("h")
		st, err := at.Dir.Stat("h")
		require.NoError(t, err)
		if err = c.writer().Unlink(at, &st, false); err != nil {
			assert.Equal(t, maxNames-1, n) // the undo has kept one
			assert.ErrorIs(t, err, unix.EMLINK)
			assert.ErrorContains(t, err, "history: not kept: the history has 1000 of its names")
			at.Dir.Close()
			break
		}
		at.Dir.Close()
	}
}

// TestPathBound: a name beyond MaxPath is refused before anything changes, and a deep tree makes a small history.
func TestPathBound(t *testing.T) {
	c := newClient(t)
	c.label = Label{Session: "s"}
	d, err := c.root.Dir("")
	require.NoError(t, err)
	defer d.Close()
	st, err := d.Self().Stat()
	require.NoError(t, err)
	_, err = c.writer().Make(Place{Dir: d, ID: st.ID(), Rel: strings.Repeat("d/", MaxPath/2), Name: "n"})
	assert.ErrorIs(t, err, unix.ENAMETOOLONG)
	rel := strings.TrimSuffix(strings.Repeat("directory/", 1500), "/")
	for range 3000 {
		m, err := c.writer().Make(Place{Dir: d, ID: st.ID(), Rel: rel, Name: "n"})
		require.NoError(t, err)
		m.Void()
	}
	c.store.settle(nil)
	size := 0
	require.NoError(t, filepath.Walk(c.kept, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Name() != "reserve" {
			size += int(info.Size())
		}
		return err
	}))
	assert.Less(t, size, 1<<20)
}

// TestSeveralWriters: an undo knows how clients have left a file that several of them change at once, by any of its names.
func TestSeveralWriters(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, c *client, id beneath.FileID){
		"one leaves it before the other changes it": func(t *testing.T, c *client, id beneath.FileID) {
			left := func() { c.writer().Left(id, func() (beneath.Stat, error) { return c.root.Stat("f") }) }
			c.begin("f", id)
			c.host("f", "first")
			c.begin("f", id) // a request to open it, which the view has not answered
			left()
			c.host("f", "second, and larger")
			c.begin("f", id)
			left()
			left()
		},
		"another sets the mode by a name that it removes": func(t *testing.T, c *client, id beneath.FileID) {
			c.write("f", "first")
			c.link("f", "twin")
			c.begin("f", id)
			c.host("f", "half")
			c.chmod("twin", 0o700)
			c.host("f", "second")
			c.writer().Left(id, func() (beneath.Stat, error) { return c.root.Stat("f") })
			c.unlink("twin")
		},
		"another sets the mode after it is removed": func(t *testing.T, c *client, id beneath.FileID) {
			f, err := c.root.Open("f", unix.O_RDWR, id)
			require.NoError(t, err)
			defer f.Close()
			c.begin("f", id)
			c.host("f", "half")
			st, err := f.Stat()
			require.NoError(t, err)
			at := c.place("f")
			defer at.Dir.Close()
			require.NoError(t, c.writer().Unlink(at, &st, true))
			require.NoError(t, c.writer().Unnamed(id).Attributes("f", &st))
			c.fill(f, "second")
			c.writer().Left(id, f.Stat)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t)
			c.host("f", "before")
			before := state(t, c.dir)
			st, err := c.root.Stat("f")
			require.NoError(t, err)
			change(t, c, st.ID())
			assert.Empty(t, c.undo(Selection{Since: timeOf(1)}).Conflicts)
			assert.Equal(t, before, state(t, c.dir))
		})
	}
}

// TestBlocks: a large file is kept by blocks, whatever changes a part of it, also over
// generations, and comes back.
func TestBlocks(t *testing.T) {
	c := newClient(t)
	c.store.shares = false // whatever the file system can
	const size = MaxCopy + 3*blockSize + 100
	text := make([]byte, size)
	for i := range text {
		text[i] = byte(i * i >> 7)
	}
	c.host("f", string(text))
	before := state(t, c.dir)
	st, err := c.root.Stat("f")
	require.NoError(t, err)
	id := st.ID()
	change := func(session string, off, end int64, do func(f *os.File) error) {
		c.label = Label{Session: session}
		c.begin("f", id)
		assert.True(t, c.store.ByBlocks(id))
		require.NoError(t, c.writer().Blocks(id, off, end))
		f, err := os.OpenFile(filepath.Join(c.dir, "f"), os.O_RDWR, 0)
		require.NoError(t, err)
		defer f.Close()
		require.NoError(t, do(f))
		c.writer().Left(id, func() (beneath.Stat, error) { return c.root.Stat("f") })
	}
	write := func(session string, off int64, n int) {
		change(session, off, off+int64(n), func(f *os.File) error {
			_, err := f.WriteAt(bytes.Repeat([]byte(session), n), off)
			return err
		})
	}
	write("a", 10, 100)
	write("b", blockSize-5, 10)
	write("c", size-50, 500)
	write("a", 3*blockSize, 5)
	change("c", 2*blockSize, 1<<62, func(f *os.File) error { return f.Truncate(2 * blockSize) })
	write("c", 5*blockSize, 10)
	after := state(t, c.dir)
	r := c.undo(Selection{Since: timeOf(1)})
	assert.Empty(t, r.Conflicts)
	assert.Equal(t, before, state(t, c.dir))
	assert.True(t, bytes.Equal(text, []byte(c.read("f"))))
	r = c.undo(Selection{Undo: true})
	assert.Empty(t, r.Conflicts)
	assert.Equal(t, after, state(t, c.dir))
	c.close()
	c.open(Options{})
	c.store.shares = false
	r = c.undo(Selection{Since: timeOf(1)})
	assert.Empty(t, r.Conflicts)
	assert.True(t, bytes.Equal(text, []byte(c.read("f"))))
}
