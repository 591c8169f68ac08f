package history

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// text reads a whole version.
func (c *client) text(v Version) string {
	p := make([]byte, 1<<20)
	n, size, _, err := c.store.Read(v, p, 0)
	require.NoError(c.t, err)
	assert.Equal(c.t, size, int64(n))
	return string(p[:n])
}

// change returns the one change of a call.
func (c *client) change(call string) Change {
	list, err := c.store.Changes(Selection{Calls: []string{call}})
	require.NoError(c.t, err)
	require.Len(c.t, list, 1, "%v", list)
	return list[0]
}

// TestChangesBeforeLaterOnes: the content after a change is that before the next one.
func TestChangesBeforeLaterOnes(t *testing.T) {
	c := newClient(t)
	for i, text := range []string{"one", "second", strings.Repeat("third ", 10_000)} {
		c.label.Call = fmt.Sprint("c", i)
		if i == 0 {
			c.create("f", text)
		} else {
			c.write("f", text)
		}
	}
	c.label.Call = "c3"
	require.NoError(t, c.rename("f", "g", 0))
	first := c.change("c0")
	assert.Equal(t, Added, first.Kind)
	assert.Equal(t, "f", first.Path)
	assert.Equal(t, "one", c.text(first.New))
	assert.EqualValues(t, 3, first.NewSize)
	second := c.change("c1")
	assert.Equal(t, "one", c.text(second.Old))
	assert.Equal(t, "second", c.text(second.New))
	third := c.change("c2")
	assert.Equal(t, "f", third.Path)
	assert.Equal(t, "second", c.text(third.Old))
	assert.Len(t, c.text(third.New), 60_000, "it has another name now")
	moved := c.change("c3")
	assert.Equal(t, []any{Renamed, "f", "g"}, []any{moved.Kind, moved.From, moved.Path})
	assert.Equal(t, moved.Old, moved.New)

	c.label.Call = "c4"
	c.unlink("g")
	assert.Len(t, c.text(c.change("c2").New), 60_000, "from the history")
	assert.Len(t, c.text(c.change("c4").Old), 60_000)
	assert.EqualValues(t, 60_000, c.change("c4").OldSize)
}

// TestChangesOfUndo: an undo of earlier changes is a change of its own.
func TestChangesOfUndo(t *testing.T) {
	c := newClient(t)
	c.label.Call = "c0"
	c.create("f", "one")
	c.label.Call = "c1"
	c.unlink("f")
	id, err := c.store.Checkpoint("p", "", Hooks{})
	require.NoError(t, err)
	assert.Empty(t, c.undo(Selection{Calls: []string{"c1"}}).Conflicts)
	list, err := c.store.Changes(Selection{Checkpoint: id})
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, []any{Added, "f"}, []any{list[0].Kind, list[0].Path})
}

// TestChangesOfMode: the permissions before and after, also of a file that was replaced.
func TestChangesOfMode(t *testing.T) {
	c := newClient(t)
	c.label.Call = "c0"
	c.create("f", "one")
	c.create("g", "one")
	c.label.Call = "c1"
	c.chmod("f", 0o755)
	c.chmod("g", 0o600)
	c.create("new", "two")
	require.NoError(t, c.rename("new", "g", 0))
	list, err := c.store.Changes(Selection{Calls: []string{"c1"}})
	require.NoError(t, err)
	require.Len(t, list, 2)
	for i, want := range [][]any{{ModeChanged, true, uint32(0o644), uint32(0o755)}, {Changed, false, uint32(0o644), uint32(0o644)}} {
		assert.Equal(t, want, []any{list[i].Kind, list[i].Mode, list[i].OldMode, list[i].NewMode})
	}
}

// TestBefore: a path has the content of a time, or an error.
func TestBefore(t *testing.T) {
	c := newClient(t)
	c.label.Call = "c0"
	c.create("f", "one")
	c.create("same", "same")
	_, err := c.store.Checkpoint("p", "", Hooks{})
	require.NoError(t, err)
	c.label.Call = "c1"
	c.write("f", "two")
	require.NoError(t, c.rename("f", "g", 0))
	at := Selection{Checkpoint: "p"}
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, "g"), []byte("of the host"), 0o644))
	for rel, want := range map[string]string{"f": "one", "same": "same"} {
		v, err := c.store.Before(rel, at)
		require.NoError(t, err)
		assert.Equal(t, want, c.text(v))
	}
	for rel, sel := range map[string]Selection{"g": at, "none": at, "f": {Checkpoint: "unknown"}, "": at} {
		_, err := c.store.Before(rel, sel)
		assert.Error(t, err, rel)
	}
	_, err = c.store.Before("none", Selection{Since: time.Now()})
	assert.Error(t, err)

	c.close()
	c.open(Options{Exclude: []string{"x*"}})
	c.label.Call = "c2"
	c.create("x", "one")
	c.create("xx", "one")
	_, err = c.store.Checkpoint("q", "", Hooks{})
	require.NoError(t, err)
	c.write("x", "two")
	c.unlink("xx")
	for _, rel := range []string{"x", "xx"} {
		_, err = c.store.Before(rel, Selection{Checkpoint: "q"})
		assert.ErrorContains(t, err, "not kept: excluded")
	}
}

// TestBeforeModel makes random changes. Every path has the content that it had before each call, checkpoint and time.
func TestBeforeModel(t *testing.T) {
	for seed := range need.Rounds("SCOPEFS_TEST_HISTORY_SEEDS", 7, 20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { beforeModel(t, uint64(seed)) })
	}
}

func beforeModel(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 3))
	c := newClient(t)
	type point struct {
		by   []Selection
		tree map[string]string
	}
	var points []point
	var trace bytes.Buffer
	paths := map[string]bool{}
	for round := range 6 {
		p := point{tree: contents(t, c.dir), by: []Selection{{Since: time.Now()}}}
		if random.IntN(2) == 0 {
			id, err := c.store.Checkpoint("", "", Hooks{})
			require.NoError(t, err)
			p.by = append(p.by, Selection{Checkpoint: id})
		}
		fmt.Fprintln(&trace, "point", round, len(p.tree), "files")
		c.label = Label{Session: "s", Call: fmt.Sprint("call", round)}
		for range 1 + random.IntN(15) {
			c.random(random, &trace)
		}
		if _, err := c.store.Changes(Selection{Calls: []string{c.label.Call}}); err == nil {
			p.by = append(p.by, Selection{Calls: []string{c.label.Call}})
		}
		points = append(points, p)
		if random.IntN(3) == 0 {
			fmt.Fprintln(&trace, "undo", c.label.Call)
			c.removed = true
			_, err := c.store.Undo(t.Context(), Selection{Calls: []string{c.label.Call}}, Hooks{})
			require.True(t, err == nil || errors.As(err, new(*ErrNothing)), err)
		}
		for _, tree := range []map[string]string{p.tree, contents(t, c.dir)} {
			for rel := range tree {
				paths[rel] = true
			}
		}
	}
	for i, p := range points {
		for rel := range paths {
			for _, sel := range p.by {
				want, there := p.tree[rel]
				v, err := c.store.Before(rel, sel)
				if !there {
					require.Error(t, err, "%s before %+v (%d)\n%s", rel, sel, i, &trace)
					continue
				}
				require.NoError(t, err, "%s before %+v (%d)\n%s", rel, sel, i, &trace)
				require.Equal(t, want, short(c.text(v)), "%s before %+v (%d)\n%s", rel, sel, i, &trace)
			}
		}
	}
}

// short stands for a text in messages.
func short(text string) string { return fmt.Sprint(text[:min(len(text), 8)], "… of ", len(text)) }

// contents returns the files of a tree, and the texts of its links.
func contents(t *testing.T, dir string) map[string]string {
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		require.NoError(t, err)
		if d.Type() == os.ModeSymlink {
			text, err := os.Readlink(name)
			all[rel] = short(text)
			return err
		}
		text, err := os.ReadFile(name)
		all[rel] = short(string(text))
		return err
	}))
	return all
}

// TestBeforeRename: a call has only renamed the file. Another file has its name by now, and a later call the file.
func TestBeforeRename(t *testing.T) {
	c := newClient(t)
	c.label.Call = "c0"
	c.create("f", "one")
	c.create("other", "two")
	c.label.Call = "c1"
	require.NoError(t, c.rename("f", "g", 0))
	before := func() string {
		v, err := c.store.Before("f", Selection{Calls: []string{"c1"}})
		require.NoError(t, err)
		return c.text(v)
	}
	assert.Equal(t, "one", before())
	c.label.Call = "c2"
	require.NoError(t, c.rename("other", "f", 0))
	assert.Equal(t, "one", before())
	c.write("g", "three")
	assert.Equal(t, "one", before())
	require.NoError(t, c.rename("g", "h", 0))
	assert.Equal(t, "one", before())
	assert.Empty(t, c.undo(Selection{Calls: []string{"c2"}}).Conflicts)
	assert.Empty(t, c.undo(Selection{Calls: []string{"c1"}}).Conflicts)
	assert.Equal(t, "one", before())
	c.label.Call = "c3"
	c.write("f", "four")
	assert.Equal(t, "one", before(), "the call was taken back")
}

// TestBeforeOwn: the file as it was before the first change of a session, not when the session began.
func TestBeforeOwn(t *testing.T) {
	c := newClient(t)
	c.create("f", "one")
	c.label = Label{Session: "s"}
	c.create("g", "one")
	c.label = Label{Session: "other"}
	c.write("f", "two")
	c.label = Label{Session: "s"}
	c.write("f", "three")
	v, err := c.store.Before("f", Selection{Session: "s"})
	require.NoError(t, err)
	assert.Equal(t, "two", c.text(v))
}
