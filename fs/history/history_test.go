package history

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope/beneath"
)

// client changes a tree as a view does.
type client struct {
	t     testing.TB
	dir   string // of the tree
	kept  string
	root  *beneath.Root
	hist  *beneath.Root
	store *Store
	label Label

	removed bool // something since the last newObject
}

func newClient(t testing.TB) *client {
	base := t.TempDir()
	c := &client{t: t, dir: filepath.Join(base, "tree"), kept: filepath.Join(base, "history")}
	require.NoError(t, os.Mkdir(c.dir, 0o755))
	require.NoError(t, os.Mkdir(c.kept, 0o700))
	c.open(Options{})
	t.Cleanup(func() { c.close() })
	return c
}

func (c *client) open(opt Options) (corrected int) {
	var err error
	c.root, err = beneath.OpenDir(c.dir)
	require.NoError(c.t, err)
	c.hist, err = beneath.OpenDir(c.kept)
	require.NoError(c.t, err)
	opt.Actor = func(uint32) (Actor, error) { return Actor{Label: c.label}, nil }
	c.store, corrected, err = Open(c.root, c.hist, opt)
	require.NoError(c.t, err)
	return corrected
}

func (c *client) close() {
	if c.store != nil {
		c.store.Close()
		c.root.Close()
		c.hist.Close()
		c.store = nil
	}
}

// place opens the directory of a path.
func (c *client) place(rel string) Place {
	d, err := c.root.Dir(beneath.Parent(rel))
	require.NoError(c.t, err, rel)
	st, err := d.Self().Stat()
	require.NoError(c.t, err)
	return Place{Dir: d, ID: st.ID(), Rel: beneath.Parent(rel), Name: beneath.Base(rel)}
}

func (c *client) writer() *Writer { return c.store.Writer(1) }

func (c *client) create(rel, text string) {
	at := c.place(rel)
	defer at.Dir.Close()
	m, err := c.writer().Make(at)
	require.NoError(c.t, err)
	f, err := at.Dir.Create(at.Name, unix.O_RDWR, 0o644)
	require.NoError(c.t, err, rel)
	c.fill(f, text)
	st, err := f.Stat()
	require.NoError(c.t, err)
	m.Done(&st)
	c.writer().Begin(st.ID(), true)
	c.writer().Left(st.ID(), f.Stat)
	f.Close()
}

func (c *client) fill(f beneath.File, text string) {
	require.NoError(c.t, f.Truncate(0))
	_, err := f.WriteAt([]byte(text), 0, false)
	require.NoError(c.t, err)
}

func (c *client) mkdir(rel string) {
	at := c.place(rel)
	defer at.Dir.Close()
	m, err := c.writer().Make(at)
	require.NoError(c.t, err)
	require.NoError(c.t, at.Dir.Mkdir(at.Name, 0o755))
	st, err := at.Dir.Stat(at.Name)
	require.NoError(c.t, err)
	m.Done(&st)
}

func (c *client) symlink(rel, text string) {
	at := c.place(rel)
	defer at.Dir.Close()
	m, err := c.writer().Make(at)
	require.NoError(c.t, err)
	require.NoError(c.t, at.Dir.Symlink(text, at.Name))
	st, err := at.Dir.Stat(at.Name)
	require.NoError(c.t, err)
	m.Done(&st)
}

func (c *client) link(rel, to string) {
	from, at := c.place(rel), c.place(to)
	defer from.Dir.Close()
	defer at.Dir.Close()
	st, err := from.Dir.Stat(from.Name)
	require.NoError(c.t, err)
	require.NoError(c.t, c.writer().Link(rel, at, st.ID(), func() error { return from.Dir.Link(from.Name, at.Dir, at.Name) }))
}

func (c *client) write(rel, text string) {
	st, err := c.root.Stat(rel)
	require.NoError(c.t, err)
	c.begin(rel, st.ID())
	f, err := c.root.Open(rel, unix.O_RDWR, st.ID())
	require.NoError(c.t, err)
	defer f.Close()
	c.fill(f, text)
	c.writer().Left(st.ID(), f.Stat)
}

// begin opens a file for writing.
func (c *client) begin(rel string, id beneath.FileID) {
	st, err := c.root.Stat(rel)
	require.NoError(c.t, err)
	c.writer().Begin(id, false)
	require.NoError(c.t, c.writer().Content(rel, &st, func() (beneath.File, error) { return c.root.Open(rel, unix.O_RDONLY, id) }))
}

func (c *client) chmod(rel string, mode uint32) {
	st, err := c.root.Stat(rel)
	require.NoError(c.t, err)
	require.NoError(c.t, c.writer().Attributes(rel, &st))
	f, err := c.root.Object(rel)
	require.NoError(c.t, err)
	defer f.Close()
	require.NoError(c.t, c.root.Chmod(f, rel, mode))
}

func (c *client) unlink(rel string) {
	c.removed = true
	at := c.place(rel)
	defer at.Dir.Close()
	st, err := at.Dir.Stat(at.Name)
	require.NoError(c.t, err)
	require.NoError(c.t, c.writer().Unlink(at, &st, false))
}

func (c *client) rmdir(rel string) error {
	c.removed = true
	at := c.place(rel)
	defer at.Dir.Close()
	st, err := at.Dir.Stat(at.Name)
	require.NoError(c.t, err)
	return c.writer().Rmdir(at, &st)
}

func (c *client) rename(rel, name string, flags uint) error {
	c.removed = true
	from, to := c.place(rel), c.place(name)
	defer from.Dir.Close()
	defer to.Dir.Close()
	moved, err := from.Dir.Stat(from.Name)
	require.NoError(c.t, err)
	var other *beneath.Stat
	if st, err := to.Dir.Stat(to.Name); err == nil {
		other = &st
	}
	return c.writer().Rename(from, to, &moved, other, false, flags)
}

// state describes everything in a tree, a line for each name.
func state(t *testing.T, dir string) string {
	var lines []string
	inodes := map[uint64]string{}
	require.NoError(t, filepath.Walk(dir, func(name string, info os.FileInfo, err error) error {
		require.NoError(t, err)
		rel, _ := filepath.Rel(dir, name)
		var st unix.Stat_t
		require.NoError(t, unix.Lstat(name, &st))
		what := ""
		switch {
		case info.Mode().IsRegular():
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			what = fmt.Sprintf("%.60q", text)
			if first, ok := inodes[st.Ino]; ok {
				what += " = " + first
			} else {
				inodes[st.Ino] = rel
			}
		case info.Mode()&os.ModeSymlink != 0:
			what, _ = os.Readlink(name)
		}
		lines = append(lines, fmt.Sprintf("%s %v %d.%09d %s", rel, info.Mode(), st.Mtim.Sec, st.Mtim.Nsec, what))
		return nil
	}))
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// undo is an undo of what its plan said.
func (c *client) undo(sel Selection) *Result {
	return c.undoWith(sel, Hooks{Agree: func(*Plan) error { return nil }})
}

func (c *client) undoWith(sel Selection, hooks Hooks) *Result {
	r, err := c.store.Undo(c.t.Context(), sel, hooks)
	if _, nothing := errors.AsType[*ErrNothing](err); nothing {
		return &Result{}
	}
	require.NoError(c.t, err)
	return r
}

func TestUndo(t *testing.T) {
	c := newClient(t)
	c.label = Label{Session: "s1", Call: "c1"}
	c.mkdir("d")
	c.create("d/f", "one")
	c.create("g", strings.Repeat("long ", 10_000))
	before := state(t, c.dir)
	c.label.Call = "c2"
	c.write("d/f", "two")
	c.write("g", "short")
	c.chmod("g", 0o600)
	c.create("d/tmp", "t")
	require.NoError(t, c.rename("d/tmp", "g", 0))
	c.unlink("d/f")
	require.NoError(t, c.rmdir("d"))
	after := state(t, c.dir)

	list, err := c.store.Changes(Selection{Calls: []string{"c2"}})
	require.NoError(t, err)
	var lines []string
	for _, change := range list {
		lines = append(lines, fmt.Sprint(change.Kind, " ", change.Path))
	}
	assert.Equal(t, []string{"removed d", "removed d/f", "changed g"}, lines)

	r := c.undo(Selection{Calls: []string{"c2"}})
	assert.Empty(t, r.Conflicts)
	assert.Equal(t, before, state(t, c.dir))
	r = c.undo(Selection{Undo: true})
	assert.Empty(t, r.Conflicts)
	assert.Equal(t, after, state(t, c.dir))
	r = c.undo(Selection{Session: "s1"})
	assert.Empty(t, r.Conflicts)
	assert.Equal(t, ".", strings.Fields(state(t, c.dir))[0])
}

// TestUndoContent: an undo leaves nothing of a content that it writes over, and the holes of one that it brings back.
func TestUndoContent(t *testing.T) {
	contents := map[string]string{
		"empty": "", "short": "one", "long": strings.Repeat("a long text ", 100), "large": strings.Repeat("a large file ", 3000),
		"larger": strings.Repeat("a larger file ", 9000), "with holes": strings.Repeat("\x00", 1<<20) + "end",
	}
	for was, before := range contents {
		for is, after := range contents {
			t.Run(was+" to "+is, func(t *testing.T) {
				c := newClient(t)
				c.create("f", "")
				write := func(text string) {
					c.write("f", "")
					hole := len(text) - len(strings.TrimLeft(text, "\x00"))
					f, err := os.OpenFile(filepath.Join(c.dir, "f"), os.O_WRONLY, 0)
					require.NoError(t, err)
					defer f.Close()
					_, err = f.WriteAt([]byte(text[hole:]), int64(hole))
					require.NoError(t, err)
				}
				write(before)
				c.label = Label{Call: "x"}
				write(after)
				c.undoWith(Selection{Calls: []string{"x"}, Force: true}, Hooks{}) // write is as a change of the host
				assert.True(t, read(t, c.dir, "f") == before)
				var st unix.Stat_t
				require.NoError(t, unix.Stat(filepath.Join(c.dir, "f"), &st))
				assert.Less(t, st.Blocks*512, int64(len(strings.TrimLeft(before, "\x00"))+64<<10))
			})
		}
	}
}

// TestRedoOfClient: the last undo is the operator's. That of a client's session is named by its id.
func TestRedoOfClient(t *testing.T) {
	c := newClient(t)
	for _, name := range []string{"a", "b", "c"} {
		c.label = Label{Session: "s", Parent: "client", Call: name}
		c.create(name, name)
	}
	there := func(name string) bool { _, err := os.Lstat(filepath.Join(c.dir, name)); return err == nil }
	require.NotZero(t, c.undo(Selection{Calls: []string{"a"}}).Done)
	mine := c.undo(Selection{Calls: []string{"b"}, Client: "client"})
	require.NotZero(t, mine.Done)
	c.undo(Selection{Undo: true})
	assert.True(t, there("a"))
	assert.False(t, there("b"))
	_, err := c.store.Undo(t.Context(), Selection{Undo: true}, Hooks{})
	assert.ErrorContains(t, err, "there is no undo that could be taken back")
	for _, id := range []string{"x", "c"} {
		_, err = c.store.Undo(t.Context(), Selection{Undo: true, Generations: []string{id}}, Hooks{})
		assert.ErrorContains(t, err, "there is no undo \""+id+"\" that could be taken back")
	}
	c.undo(Selection{Undo: true, Generations: []string{mine.Generation}})
	assert.True(t, there("b"))
}

// TestUndoOfUndos: an undo takes back two others: one that returned a file to the history, and one that restored the file.
func TestUndoOfUndos(t *testing.T) {
	c := newClient(t)
	var states []string
	checkpoint := func() {
		_, err := c.store.Checkpoint(fmt.Sprint("p", len(states)), "", Hooks{})
		require.NoError(t, err)
		states = append(states, state(t, c.dir))
	}
	c.create("f", "one")
	checkpoint()
	c.unlink("f")
	checkpoint()
	back := func(to int) {
		r := c.undo(Selection{Checkpoint: fmt.Sprint("p", to)})
		assert.Empty(t, r.Conflicts)
		assert.Empty(t, r.Unkept)
		assert.Equal(t, states[to], state(t, c.dir))
	}
	back(0)
	checkpoint()
	back(1)
	back(0)
	back(2)
}

// TestUndoOpened: a file that a client has opened for writing since the plan keeps its name: what the client writes would have none.
func TestUndoOpened(t *testing.T) {
	for name, c := range map[string]struct {
		before, after bool // a client has the file open for writing, before the plan and after it
		stays         bool
	}{
		"never":          {false, false, false},
		"since the plan": {false, true, true},
		"before, too":    {true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, again := range []bool{false, true} {
				client, sel := newClient(t), Selection{Calls: []string{"c1"}}
				client.label = Label{Call: "c1"}
				client.create("f", "new")
				if again { // the redo of its removal returns the file to the history
					client.label = Label{Call: "c2"}
					client.unlink("f")
					client.undo(Selection{Calls: []string{"c2"}})
					sel = Selection{Undo: true}
				}
				open := c.before
				r := client.undoWith(sel, Hooks{
					Writing: func(beneath.FileID) bool { return open },
					Agree:   func(*Plan) error { open = c.after; return nil },
				})
				_, err := os.Stat(filepath.Join(client.dir, "f"))
				assert.Equal(t, c.stays, err == nil, "%+v", r)
				assert.Equal(t, c.stays, len(r.Conflicts) > 0, "%+v", r)
			}
		})
	}
}

// TestUndoAgreed: nothing is done after Agree fails. What changes after it has agreed stays, whoever has changed it.
func TestUndoAgreed(t *testing.T) {
	c := newClient(t)
	c.label = Label{Call: "c1"}
	c.create("f", "one")
	c.create("g", "one")
	c.mkdir("d")
	c.label = Label{Call: "c2"}
	c.write("f", "two")
	c.write("g", "two")
	c.create("d/new", "new")
	of := Selection{Calls: []string{"c2"}}
	seen := func() (all []string) {
		p, err := c.store.Plan(of, Hooks{})
		require.NoError(t, err)
		for _, step := range p.Steps {
			all = append(all, step.Path+" "+step.Seen())
		}
		return all
	}
	before := seen()
	assert.Equal(t, before, seen())
	refused := errors.New("not what was shown")
	was := state(t, c.dir)
	_, err := c.store.Undo(t.Context(), of, Hooks{Agree: func(p *Plan) error { return refused }})
	require.ErrorIs(t, err, refused)
	assert.Equal(t, was, state(t, c.dir))
	c.write("f", "TWO") // by the same call, with the same size
	assert.NotEqual(t, before, seen())
	require.NoError(t, os.Chmod(filepath.Join(c.dir, "g"), 0o600))
	before = seen()
	require.NoError(t, os.Chmod(filepath.Join(c.dir, "g"), 0o601))
	assert.NotEqual(t, before, seen())

	r := c.undoWith(of, Hooks{Agree: func(*Plan) error {
		c.write("f", "three")
		c.write("d/new", "newer")
		return nil
	}})
	assert.Equal(t, "three", read(t, c.dir, "f"))
	assert.Equal(t, "newer", read(t, c.dir, "d/new"))
	assert.Equal(t, "one", read(t, c.dir, "g"))
	require.Len(t, r.Conflicts, 2)
	for _, conflict := range r.Conflicts {
		assert.Equal(t, "changed since it was shown", conflict.Why)
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	return string(text)
}

// TestUndoOfOthers: what the host has changed since stays.
func TestUndoOfOthers(t *testing.T) {
	c := newClient(t)
	c.label = Label{Call: "c1"}
	c.create("f", "one")
	c.label = Label{Call: "c2"}
	c.write("f", "two")
	c.create("g", "new")
	time.Sleep(20 * time.Millisecond) // the file system's clock
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, "f"), []byte("six"), 0o644))
	r := c.undo(Selection{Calls: []string{"c2"}})
	require.Len(t, r.Conflicts, 1)
	assert.Equal(t, "f", r.Conflicts[0].Path)
	text, err := os.ReadFile(filepath.Join(c.dir, "f"))
	require.NoError(t, err)
	assert.Equal(t, "six", string(text))
	assert.NoFileExists(t, filepath.Join(c.dir, "g"))
}

// TestUndoOfOthersWork: a file that the host has changed since is not moved back, and is one conflict.
func TestUndoOfOthersWork(t *testing.T) {
	c := newClient(t)
	c.label = Label{Call: "c1"}
	c.create("tmp", "one")
	require.NoError(t, c.rename("tmp", "f", 0))
	time.Sleep(20 * time.Millisecond) // the file system's clock
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, "f"), []byte("of the host"), 0o644))
	r := c.undo(Selection{Calls: []string{"c1"}})
	for _, step := range r.Steps {
		assert.True(t, step.OnlyTimes(), step)
	}
	assert.Equal(t, []Problem{{"f", "changed since by the host or another agent"}}, r.Conflicts)
	text, err := os.ReadFile(filepath.Join(c.dir, "f"))
	require.NoError(t, err)
	assert.Equal(t, "of the host", string(text))
}

// TestModel makes random changes, and takes back those since random checkpoints.
func TestModel(t *testing.T) {
	seeds, first := need.Rounds("SCOPEFS_TEST_HISTORY_SEEDS", 20, 60), need.Rounds("SCOPEFS_TEST_HISTORY_FIRST", 0, 0)
	for seed := first; seed < first+seeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { model(t, uint64(seed)) })
	}
}

// TestModelFound runs the model with seeds that have found faults.
func TestModelFound(t *testing.T) {
	for _, seed := range []uint64{
		774, 988, // the times of a directory that one undo made and removed
		1005, // a file that one undo returns to the history and restores
		1231, // the times of directories below one that was exchanged and exchanged back
	} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { model(t, seed) })
	}
}

func model(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	c := newClient(t)
	type point struct {
		name  string
		state string
	}
	var points []point
	var trace bytes.Buffer
	for round := range 8 {
		name := fmt.Sprint("p", round)
		points = append(points, point{name, state(t, c.dir)})
		_, err := c.store.Checkpoint(name, "", Hooks{})
		require.NoError(t, err)
		fmt.Fprintln(&trace, "checkpoint", name)
		for range 1 + random.IntN(25) {
			c.label = Label{Session: "s", Call: fmt.Sprint("call", random.IntN(3))}
			c.random(random, &trace)
		}
		switch random.IntN(4) {
		case 0:
			back := random.IntN(len(points))
			fmt.Fprintln(&trace, "undo to", points[back].name)
			after := state(t, c.dir)
			r := c.undo(Selection{Checkpoint: points[back].name})
			require.Empty(t, r.Conflicts, trace.String())
			require.Empty(t, r.Unkept, trace.String())
			require.Equal(t, points[back].state, state(t, c.dir), trace.String())
			if random.IntN(2) == 0 && r.Generation != "" {
				fmt.Fprintln(&trace, "redo")
				r = c.undo(Selection{Undo: true})
				require.Empty(t, r.Conflicts, trace.String())
				require.Equal(t, after, state(t, c.dir), trace.String())
			}
		case 1:
			fmt.Fprintln(&trace, "reopen")
			c.close()
			require.Zero(t, c.open(Options{}))
		}
	}
	for _, p := range []int{random.IntN(len(points)), 0} {
		fmt.Fprintln(&trace, "undo to", points[p].name)
		r, err := c.store.Undo(t.Context(), Selection{Checkpoint: points[p].name}, Hooks{})
		if _, nothing := err.(*ErrNothing); nothing {
			continue
		}
		require.NoError(t, err, trace.String())
		require.Empty(t, r.Conflicts, trace.String())
		require.Equal(t, points[p].state, state(t, c.dir), trace.String())
	}
}

// newObject waits, if something was removed, for the next tick of the clock that birth times are of (1 to 10 ms): within one the
// file system may use the inode again, and the new object has the number and the birth time of the old one.
func (c *client) newObject() {
	if !c.removed {
		return
	}
	c.removed = false
	var was, now unix.Timespec
	require.NoError(c.t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &was))
	for now = was; now == was; time.Sleep(100 * time.Microsecond) {
		require.NoError(c.t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now))
	}
}

func (c *client) random(r *rand.Rand, trace *bytes.Buffer) {
	var files, dirs []string
	_ = filepath.Walk(c.dir, func(name string, info os.FileInfo, _ error) error {
		rel, _ := filepath.Rel(c.dir, name)
		if rel == "." {
			rel = ""
		}
		if info.IsDir() {
			dirs = append(dirs, rel)
		} else {
			files = append(files, rel)
		}
		return nil
	})
	some := func(list []string) string {
		if len(list) == 0 {
			return ""
		}
		return list[r.IntN(len(list))]
	}
	fresh := func() string {
		rel := beneath.Join(some(dirs), fmt.Sprintf("n%d", r.IntN(6)))
		if _, err := os.Lstat(filepath.Join(c.dir, rel)); err == nil {
			return ""
		}
		return rel
	}
	regular := some(files)
	if info, err := os.Lstat(filepath.Join(c.dir, regular)); err != nil || !info.Mode().IsRegular() {
		regular = ""
	}
	text := strings.Repeat(fmt.Sprintf("%d ", r.IntN(1000)), 1+r.IntN(6)*r.IntN(3000))
	log := func(words ...any) { fmt.Fprintln(trace, append([]any{c.label.Call}, words...)...) }
	switch n := r.IntN(12); {
	case n < 3:
		if rel := fresh(); rel != "" {
			log("create", rel)
			c.newObject()
			c.create(rel, text)
		}
	case n == 3:
		if rel := fresh(); rel != "" {
			log("mkdir", rel)
			c.newObject()
			c.mkdir(rel)
		}
	case n == 4:
		if rel := fresh(); rel != "" {
			log("symlink", rel)
			c.newObject()
			c.symlink(rel, "to/"+rel)
		}
	case n == 5 && regular != "":
		if rel := fresh(); rel != "" {
			log("link", regular, rel)
			c.link(regular, rel)
		}
	case n == 6 && regular != "":
		log("write", regular)
		c.write(regular, text)
	case n == 7 && len(files) > 0:
		rel := some(files)
		log("unlink", rel)
		c.unlink(rel)
	case n == 8:
		rel := some(dirs)
		if rel != "" {
			log("rmdir", rel)
			_ = c.rmdir(rel)
		}
	case n == 9:
		rel := some(append(dirs[1:], files...))
		if rel != "" && regular == "" {
			regular = rel
		}
		if regular != "" {
			mode := uint32(0o600 + 8*r.IntN(8))
			if info, _ := os.Lstat(filepath.Join(c.dir, regular)); info.IsDir() {
				mode |= 0o700
			} else if !info.Mode().IsRegular() {
				return
			}
			log("chmod", regular)
			c.chmod(regular, mode)
		}
	default:
		all := append(dirs[1:], files...)
		from, to := some(all), some(all)
		if r.IntN(2) == 0 {
			to = fresh()
		}
		flags := uint(0)
		if r.IntN(4) == 0 && to != "" {
			if _, err := os.Lstat(filepath.Join(c.dir, to)); err == nil {
				flags = beneath.RenameExchange
			}
		}
		if from != "" && to != "" && from != to && !strings.HasPrefix(to+"/", from+"/") && !strings.HasPrefix(from+"/", to+"/") {
			log("rename", from, to, flags)
			_ = c.rename(from, to, flags)
		}
	}
}

// TestPrune: the oldest generations go, whole, and an undo across them says so.
func TestPrune(t *testing.T) {
	c := newClient(t)
	_, err := c.store.Checkpoint("first", "", Hooks{})
	require.NoError(t, err)
	for i := range 6 {
		c.label = Label{Call: fmt.Sprint(i)}
		c.create(fmt.Sprint("f", i), strings.Repeat("x", 100_000))
	}
	for i := range 6 {
		c.label = Label{Call: fmt.Sprint("gone", i)}
		c.unlink(fmt.Sprint("f", i))
	}
	c.close()
	dropped := 0
	c.open(Options{Size: 350_000, Dropped: func(count int, _ string) { dropped += count }})
	require.Eventually(t, func() bool {
		c.store.prune(false) // the first one says it
		all, err := c.store.generations()
		return err == nil && len(all) > 0 && len(all) <= 4
	}, time.Minute, 10*time.Millisecond)
	_, err = c.store.Undo(t.Context(), Selection{Checkpoint: "first"}, Hooks{})
	assert.ErrorContains(t, err, "given up")
	r := c.undo(Selection{Calls: []string{"gone5"}})
	assert.Empty(t, r.Conflicts)
	assert.FileExists(t, filepath.Join(c.dir, "f5"))
	c.close()
	c.open(Options{})
	assert.NotZero(t, dropped)
}

// TestCrash: a journal that a killed process has left is corrected by the tree.
func TestCrash(t *testing.T) {
	for name, tear := range map[string]bool{"whole": false, "torn": true} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t)
			c.label = Label{Call: "c1"}
			c.create("kept", "one")
			c.create("plain", "one")
			before := state(t, c.dir)
			_, err := c.store.Checkpoint("p", "", Hooks{})
			require.NoError(t, err)
			c.label = Label{Call: "c2"}
			c.unlink("kept")
			c.create("new", "two")
			// Killed between the record and the change.
			at := c.place("never")
			defer at.Dir.Close()
			_, err = c.writer().Make(at)
			require.NoError(t, err)
			w := c.writer()
			g, err := w.generation()
			require.NoError(t, err)
			st, err := c.root.Stat("plain")
			require.NoError(t, err)
			require.NoError(t, w.write(g, &journal.Record{Kind: journal.Removed, Path: "plain", Object: st.ID(), Kept: g.number()}))
			c.kill()
			if tear {
				file := filepath.Join(c.kept, journal.OpenName(g.began), journal.Name)
				f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
				require.NoError(t, err)
				_, err = f.Write([]byte{40, 0, 0, 0, 1, 2, 3})
				require.NoError(t, errors.Join(err, f.Close()))
			}
			assert.Equal(t, 1, c.open(Options{}))
			r := c.undo(Selection{Checkpoint: "p"})
			assert.Empty(t, r.Conflicts)
			assert.Empty(t, r.Unkept)
			assert.Equal(t, before, state(t, c.dir))
		})
	}
}

// TestCrashClock: the clock of the kernel's times lags 50 ms behind that of the records. The object that a killed process has just made is
// known as made all the same, and a generation as later than the checkpoint before it.
func TestCrashClock(t *testing.T) {
	for name, killed := range map[string]bool{"killed": true, "alive": false} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t)
			c.create("f", "one")
			before := state(t, c.dir)
			c.store.last.Add(50_000_000)
			_, err := c.store.Checkpoint("p", "", Hooks{})
			require.NoError(t, err)
			require.NoError(t, c.rename("f", "g", 0))
			at := c.place("f")
			m, err := c.writer().Make(at)
			require.NoError(t, err)
			defer at.Dir.Close()
			require.NoError(t, at.Dir.Symlink("x", at.Name)) // a file that was open would be a conflict
			st, err := at.Stat()
			require.NoError(t, err)
			if killed {
				c.kill()
				assert.Equal(t, 1, c.open(Options{}))
			} else {
				m.Done(&st)
			}
			r := c.undo(Selection{Checkpoint: "p"})
			assert.Empty(t, r.Conflicts)
			assert.Equal(t, before, state(t, c.dir))
		})
	}
}

// kill leaves the history as a killed process does.
func (c *client) kill() {
	close(c.store.ending)
	c.store.working.Wait()
	c.store.finishing.Wait()
	c.store.lock.Close()
	c.root.Close()
	c.hist.Close()
	c.store = nil
}

// TestUndoReused: a new object may have the inode of one that is gone, and its birth time too, whose clock is coarse
// (ext4). It is not taken for the older one.
func TestUndoReused(t *testing.T) {
	c := newClient(t)
	before := state(t, c.dir)
	_, err := c.store.Checkpoint("p", "", Hooks{})
	require.NoError(t, err)
	identity := func(rel string) beneath.FileID {
		st, err := c.root.Stat(rel)
		require.NoError(t, err)
		return st.ID()
	}
	reused := 0
	for i := range 50 {
		c.create("tmp", "one")
		was, name := identity("tmp"), fmt.Sprint(i)
		c.unlink("tmp")
		if i%2 == 0 {
			c.symlink(name, "x")
		} else {
			c.mkdir(name)
		}
		if identity(name) == was {
			reused++
		}
	}
	t.Log(reused, "have the identity of an older object")
	r := c.undo(Selection{Checkpoint: "p"})
	assert.Empty(t, r.Conflicts)
	assert.Equal(t, before, state(t, c.dir))
}

// TestUndoForce: what the host has changed since is kept beside the old version, and a redo takes both away.
func TestUndoForce(t *testing.T) {
	c := newClient(t)
	c.label = Label{Call: "c1"}
	c.create("f", "one")
	c.create("g", "old")
	files := func() string { // without the line of the root, whose time the host has changed as well
		_, lines, _ := strings.Cut(state(t, c.dir), "\n")
		return lines
	}
	c.label = Label{Call: "c2"}
	c.write("f", "two")
	c.unlink("g")
	time.Sleep(20 * time.Millisecond) // the file system's clock
	for name, text := range map[string]string{"f": "three", "g": "new"} {
		require.NoError(t, os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o644))
	}
	after := files()
	assert.Len(t, c.undo(Selection{Calls: []string{"c2"}}).Conflicts, 2)
	assert.Equal(t, after, files())
	r := c.undo(Selection{Calls: []string{"c2"}, Force: true})
	assert.Empty(t, r.Conflicts)
	for name, text := range map[string]string{"f": "one", "g": "old", "f.newer1": "three", "g.newer1": "new"} {
		now, err := os.ReadFile(filepath.Join(c.dir, name))
		require.NoError(t, err)
		assert.Equal(t, text, string(now), name)
	}
	assert.Empty(t, c.undo(Selection{Undo: true}).Conflicts)
	assert.Equal(t, after, files())
}

// TestUndoInterrupted kills an undo after each of its steps, with and without the last note in the journal.
func TestUndoInterrupted(t *testing.T) {
	for noted := range 2 {
		for steps, more := 1, true; more; steps++ {
			t.Run(fmt.Sprintf("%d steps, noted %d", steps, noted), func(t *testing.T) { more = interruptedUndo(t, steps, noted == 1) })
		}
	}
}

// interruptedUndo reports whether the undo has more steps.
func interruptedUndo(t *testing.T, steps int, noted bool) (more bool) {
	c := newClient(t)
	c.label = Label{Call: "c1"}
	for _, rel := range []string{"a", "b", "c"} {
		c.mkdir(rel)
	}
	c.chmod("b", 0o700)
	c.create("a/f", "one")
	c.create("c/g", "two")
	before := state(t, c.dir)
	_, err := c.store.Checkpoint("p", "", Hooks{})
	require.NoError(t, err)
	c.label = Label{Call: "c2"}
	c.mkdir("x")
	c.mkdir("y")
	c.label = Label{Call: "c3"}
	require.NoError(t, c.rename("x", "y", 0))
	require.NoError(t, c.rename("a", "b", 0))
	c.write("b/f", "three")
	c.chmod("b/f", 0o600)
	require.NoError(t, c.rename("c/g", "b/f", 0))
	c.unlink("b/f")
	require.NoError(t, c.rmdir("c"))
	done := 0
	r := c.undoWith(Selection{Checkpoint: "p"}, Hooks{Lock: func() (func(), error) {
		if done++; done > steps {
			return nil, errors.New("killed")
		}
		return func() {}, nil
	}})
	if done <= steps {
		return false
	}
	c.close()
	began, err := strconv.ParseUint(r.Generation, 16, 64)
	require.NoError(t, err)
	ended, err := filepath.Glob(filepath.Join(c.kept, r.Generation+"-*"))
	require.NoError(t, err)
	require.NoError(t, os.Rename(ended[0], filepath.Join(c.kept, journal.OpenName(began))))
	file := filepath.Join(c.kept, journal.OpenName(began), journal.Name)
	cutLast(t, file, journal.Ended)
	if !noted {
		cutLast(t, file, journal.Written, journal.Settled)
	}
	c.open(Options{})
	_, err = c.store.Resume(t.Context(), Hooks{})
	require.NoError(t, err)
	assert.Equal(t, before, state(t, c.dir))
	r = c.undo(Selection{Checkpoint: "p"})
	assert.Empty(t, r.Conflicts)
	assert.Equal(t, before, state(t, c.dir), "again: %v", r.Steps)
	return true
}

// cutLast cuts the last record of a journal off if it is of one of these kinds.
func cutLast(t *testing.T, file string, kinds ...journal.Kind) {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var code journal.Coder
	for rest := text; len(rest) > 0; {
		r, after, err := code.Cut(rest)
		require.NoError(t, err)
		if len(after) == 0 && slices.Contains(kinds, r.Kind) {
			require.NoError(t, os.Truncate(file, int64(len(text)-len(rest))))
		}
		rest = after
	}
}

// TestUndoBelowMoved: a client changes a file while another one moves its directory, and the record has the path before.
func TestUndoBelowMoved(t *testing.T) {
	c := newClient(t)
	c.label = Label{Call: "c1"}
	c.mkdir("d")
	c.create("d/f", "one")
	before := state(t, c.dir)
	_, err := c.store.Checkpoint("p", "", Hooks{})
	require.NoError(t, err)
	c.label = Label{Call: "c2"}
	st, err := c.root.Stat("d/f")
	require.NoError(t, err)
	require.NoError(t, c.rename("d", "e", 0))
	open := func() (beneath.File, error) { return c.root.Open("e/f", unix.O_RDONLY, st.ID()) }
	c.writer().Begin(st.ID(), false)
	require.NoError(t, c.writer().Content("d/f", &st, open))
	require.NoError(t, c.writer().Attributes("d/f", &st))
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, "e/f"), []byte("two"), 0o644))
	c.writer().Left(st.ID(), func() (beneath.Stat, error) { return c.root.Stat("e/f") })
	assert.Empty(t, c.undo(Selection{Checkpoint: "p"}).Conflicts)
	assert.Equal(t, before, state(t, c.dir))
}

// TestEndsWhileChanged: a generation that ends, as by a checkpoint or for lack of room, waits for the changes that it keeps. None
// fails, and none reaches a directory that has got the descriptor meanwhile.
func TestEndsWhileChanged(t *testing.T) {
	c := newClient(t)
	const files = 300
	for i := range files {
		require.NoError(t, os.WriteFile(filepath.Join(c.dir, strconv.Itoa(i)), []byte("x"), 0o644))
	}
	_, err := c.store.Checkpoint("start", "", Hooks{})
	require.NoError(t, err)
	over := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() { // its directories take free descriptors
		for i := 0; ; i++ {
			select {
			case <-over:
				return
			default:
			}
			_, err := c.store.Checkpoint("p", "", Hooks{})
			assert.NoError(t, err)
			d, err := c.root.Dir("")
			assert.NoError(t, err)
			d.Close()
		}
	})
	for i := range files {
		c.unlink(strconv.Itoa(i))
		c.create("made", "x")
		c.unlink("made")
	}
	close(over)
	all.Wait()
	assert.Zero(t, entries(t, c.dir))
	r := c.undo(Selection{Checkpoint: "start"})
	assert.Empty(t, r.Conflicts)
	assert.Empty(t, r.Unkept)
	assert.Equal(t, files, entries(t, c.dir))
}

// TestUndoMayMoveBelow: an undo leaves a directory that the agent's rules do not let move back, for what is below it by then.
func TestUndoMayMoveBelow(t *testing.T) {
	c := newClient(t)
	c.mkdir("d")
	c.mkdir("packages")
	_, err := c.store.Checkpoint("p", "", Hooks{})
	require.NoError(t, err)
	require.NoError(t, c.rename("d", "packages/d", 0))
	var asked []string
	hooks := Hooks{Below: func(from, to string) error {
		asked = append(asked, from+" to "+to)
		return errors.New("a protected name is below it")
	}}
	r := c.undoWith(Selection{Checkpoint: "p"}, hooks)
	assert.Equal(t, []string{"packages/d to d"}, asked)
	require.Len(t, r.Conflicts, 1)
	assert.Equal(t, "a protected name is below it", r.Conflicts[0].Why)
	assert.DirExists(t, filepath.Join(c.dir, "packages/d"))
	hooks.Below = func(string, string) error { return nil }
	assert.Empty(t, c.undoWith(Selection{Checkpoint: "p"}, hooks).Conflicts)
	assert.DirExists(t, filepath.Join(c.dir, "d"))
}
