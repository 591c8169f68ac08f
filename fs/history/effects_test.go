package history

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/effect"
	"github.com/scopefs/scopefs/scope/effect/prose"
)

// effects returns those of a call.
func (c *client) effects(w Work) (*effect.Effects, uint64) {
	e, until, err := c.store.Effects(w)
	require.NoError(c.t, err)
	return e, until
}

// fifo makes a FIFO.
func (c *client) fifo(rel string) {
	at := c.place(rel)
	defer at.Dir.Close()
	m, err := c.writer().Make(at)
	require.NoError(c.t, err)
	require.NoError(c.t, at.Dir.Mknod(at.Name, unix.S_IFIFO|0o644))
	st, err := at.Dir.Stat(at.Name)
	require.NoError(c.t, err)
	m.Done(&st)
}

// TestEffects: the effects of a call are what Changes says of it, also when a checkpoint or other calls have ended its generation, and
// after a restart. The next answer has what came since.
func TestEffects(t *testing.T) {
	for name, end := range map[string]func(*client){
		"open":       func(*client) {},
		"checkpoint": func(c *client) { _, _ = c.store.Checkpoint("p", "", Hooks{}) },
		"restart":    func(c *client) { c.close(); c.open(Options{}) },
		"others": func(c *client) {
			for n := range maxOpen + maxEndings {
				c.label = Label{Session: "s", Call: fmt.Sprint("other", n)}
				c.create(fmt.Sprint("other", n), "")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t)
			c.label = Label{Session: "s", Call: "before"}
			c.create("old", "1")
			began := time.Now()
			mine := Label{Session: "s", Call: "x"}
			c.label = mine
			c.mkdir("d")
			c.create("d/f", "1")
			c.write("old", "2")
			end(c)
			c.label = mine
			c.unlink("d/f")
			c.write("old", "3")
			work := Work{Call: "x", Began: began}
			e, until := c.effects(work)
			assert.Equal(t, effect.Counts{Created: 1, Changed: 1}, e.Counts)
			assert.Equal(t, []effect.Object{{Path: "d/"}}, e.Created)
			assert.Equal(t, []effect.Object{{Path: "old"}}, e.Changed, "nobody else has changed it")
			work.After = until
			e, again := c.effects(work)
			assert.True(t, e.Nothing)
			assert.Equal(t, until, again)
			c.create("new", "")
			e, _ = c.effects(work)
			assert.Equal(t, []effect.Object{{Path: "new"}}, e.Created)
			e, _ = c.effects(Work{Call: "y", Began: began})
			assert.True(t, e.Nothing)
		})
	}
}

// TestEffectsFold: a whole directory is one object, git's files are one, and what has marks stands beside.
func TestEffectsFold(t *testing.T) {
	c := newClient(t)
	c.label = Label{Session: "before"}
	c.mkdir(".git")
	c.mkdir("gone")
	c.create("gone/a", "")
	c.create("gone/b", "")
	c.label = Label{Session: "s"}
	began := time.Now()
	c.create(".git/index", "")
	c.create(".git/HEAD", "")
	c.create(".git/config", "")
	c.unlink("gone/a")
	c.unlink("gone/b")
	require.NoError(t, c.rmdir("gone"))
	c.mkdir("lib")
	for n := range 5 {
		c.create(fmt.Sprint("lib/", n), "")
	}
	c.create("lib/package.json", "")
	e, _ := c.effects(Work{Session: "s", Began: began})
	assert.Equal(t, []effect.Object{{Path: "gone/", Files: 2}}, e.Removed)
	read := []string{effect.Read}
	c.label = Label{Session: "fifo"}
	c.create("notes", "text")
	c.label = Label{Session: "fifos"}
	c.unlink("notes")
	c.fifo("notes")
	c.mkdir("pipes")
	c.fifo("pipes/p")
	fifos, _ := c.effects(Work{Session: "fifos", Began: began})
	fifo := []string{effect.FIFO}
	assert.ElementsMatch(t, []effect.Object{{Path: "notes", Marks: fifo}, {Path: "pipes/", Files: 1}, {Path: "pipes/p", Marks: fifo}},
		slices.Concat(fifos.Changed, fifos.Created))
	assert.Equal(t, []effect.Object{{Path: ".git/*", Files: 2}, {Path: ".git/config", Marks: read}, {Path: "lib/", Files: 6}, {Path: "lib/package.json", Marks: read}}, e.Created)
	assert.Equal(t, 10, e.Counts.Created)
	assert.Equal(t, "removed gone/ (2 files)\ncreated .git/config (the host may execute or read it), lib/package.json (the host may execute or read it)\n",
		prose.Text(e, func(string, bool) bool { return true }, "", ""))
}

// TestManyPrograms: effects name effect.Max programs at most, whatever names programs give themselves, and count every object.
func TestManyPrograms(t *testing.T) {
	var all []Change
	for i := range 3 * effect.Max {
		all = append(all, Change{Kind: Added, Path: fmt.Sprint("f", i), Type: "file", By: []string{fmt.Sprint("p", i)}},
			Change{Kind: Changed, Path: fmt.Sprint("g", i), Type: "file", By: []string{"first"}})
	}
	e := summary(all, "")
	assert.Len(t, e.By, effect.Max)
	assert.Equal(t, 3*effect.Max, e.By["first"])
	assert.Equal(t, 3*effect.Max, e.Counts.Created)
}

// TestEffectsGitTimes: that git has set the times of its objects is no effect that a person reads of.
func TestEffectsGitTimes(t *testing.T) {
	times := func(path string) Change {
		return Change{Kind: ModeChanged, Path: path, Type: "file", OldMode: 0o444, NewMode: 0o444}
	}
	e := summary([]Change{times(".git/objects/ab/1"), times("a")}, "")
	assert.Equal(t, 1, e.Counts.Modes)
	require.Len(t, e.Modes, 1)
	assert.Equal(t, "a", e.Modes[0].Path)
}

// TestEffectsOthersRemoved: a file that a session has made, others have changed and the session has removed is a removed file with the
// version of the others, whatever the session wrote in between. One that others have not changed is none.
func TestEffectsOthersRemoved(t *testing.T) {
	for name, change := range map[string]func(c *client){
		"removed":             func(c *client) { c.unlink("f") },
		"replaced":            func(c *client) { c.create("g", "new"); require.NoError(t, c.rename("g", "f", 0)); c.unlink("f") },
		"written and removed": func(c *client) { c.write("f", "again"); c.unlink("f") },
	} {
		for _, calls := range [][2]string{{"", ""}, {"c1", "c2"}} {
			t.Run(fmt.Sprint(name, calls), func(t *testing.T) {
				c := newClient(t)
				began := time.Now()
				c.label = Label{Session: "s", Call: calls[0]}
				c.create("f", "draft")
				c.create("mine", "draft")
				c.host("f", "an hour of work")
				c.label.Call = calls[1]
				c.unlink("mine")
				change(c)
				list, err := c.store.Changes(Selection{Session: "s"})
				require.NoError(t, err)
				require.Len(t, list, 1)
				assert.Equal(t, Deleted, list[0].Kind)
				assert.Equal(t, "f", list[0].Path)
				text := make([]byte, 100)
				n, _, _, err := c.store.Read(list[0].Old, text, 0)
				require.NoError(t, err)
				assert.Equal(t, "an hour of work", string(text[:n]))
				assert.EqualValues(t, n, list[0].OldSize)
				if calls[0] == "" {
					e, _ := c.effects(Work{Session: "s", Began: began})
					assert.Equal(t, []effect.Object{{Path: "f", Marks: []string{effect.Others}}}, e.Removed)
				}
			})
		}
	}
}
