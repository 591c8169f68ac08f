package history

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// another puts another object with a text in the place of a file, as an editor and a restore by tar do.
func (c *client) another(rel, text string) {
	name := filepath.Join(c.dir, rel)
	require.NoError(c.t, os.WriteFile(name+".new", []byte(text), 0o644))
	require.NoError(c.t, os.Rename(name+".new", name))
}

// TestAnotherObject: when somebody has put another file in the place of one that an agent has changed, what that had before is still
// known, and comes back with force beside the newer one. An undo of that takes both away.
func TestAnotherObject(t *testing.T) {
	c := newClient(t)
	c.host("f", "before")
	c.label.Call = "c1"
	c.write("f", "one")
	c.label.Call = "c2"
	c.write("f", "after")
	c.another("f", "newer")
	before := state(t, c.dir)

	v, err := c.store.Before("f", Selection{Calls: []string{"c1"}})
	require.NoError(t, err)
	assert.Equal(t, "before", c.text(v))
	v, err = c.store.Before("f", Selection{Calls: []string{"c2"}})
	require.NoError(t, err)
	assert.Equal(t, "one", c.text(v))

	r := c.undo(Selection{Since: timeOf(1)})
	assert.Equal(t, []Problem{{"f", "another object is there"}}, r.Conflicts)
	assert.Zero(t, r.Done)
	assert.Equal(t, before, state(t, c.dir))
	r = c.undo(Selection{Since: timeOf(1), Force: true})
	assert.Empty(t, r.Conflicts)
	assert.Equal(t, "before", c.read("f"))
	assert.Equal(t, "newer", c.read("f.newer1"))
	r = c.undo(Selection{Undo: true})
	assert.Empty(t, r.Conflicts)
	assert.Equal(t, "newer", c.read("f"))
	assert.NoFileExists(t, filepath.Join(c.dir, "f.newer1"))
}

// TestAnotherObjectStays: a file that the agent has made itself, a directory, and one of whose older content only parts were kept are
// in nobody's place.
func TestAnotherObjectStays(t *testing.T) {
	c := newClient(t)
	c.store.shares = false // whatever the file system can
	large := strings.Repeat("0123456789abcdef", (MaxCopy+blockSize)/16)
	for _, rel := range []string{"f", "d", "large"} {
		c.host(rel, "before"+strings.Repeat(large, len(rel)/5))
	}
	c.label.Call = "c1"
	c.write("f", "after")
	c.write("d", "after")
	st, err := c.root.Stat("large")
	require.NoError(t, err)
	open := func() (beneath.File, error) { return c.root.Open("large", unix.O_RDONLY, st.ID()) }
	require.NoError(t, c.writer().Content("large", &st, open))
	require.True(t, c.store.ByBlocks(st.ID()))
	c.create("g", "made")
	require.NoError(t, os.Remove(filepath.Join(c.dir, "f")))
	require.NoError(t, os.Rename(filepath.Join(c.dir, "g"), filepath.Join(c.dir, "f"))) // by the host
	require.NoError(t, os.Remove(filepath.Join(c.dir, "d")))
	require.NoError(t, os.Mkdir(filepath.Join(c.dir, "d"), 0o755))
	c.another("large", "newer")
	for _, rel := range []string{"f", "d", "large"} {
		_, err := c.store.Before(rel, Selection{Calls: []string{"c1"}})
		assert.Error(t, err, rel)
	}
	r := c.undo(Selection{Since: timeOf(1), Force: true})
	assert.Len(t, r.Conflicts, 3, "%v", r.Conflicts)
	assert.Equal(t, "made", c.read("f"))
	assert.Equal(t, "newer", c.read("large"))
	left, err := filepath.Glob(filepath.Join(c.dir, "*.newer1"))
	require.NoError(t, err)
	assert.Empty(t, left)
}
