package history

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope/beneath"
)

// TestUndoKilled kills a process that undoes, as an ordinary user, at each step and in it: before and after the changes
// of a step, with what it has lifted. The next process makes the tree as it was, with no mode lifted; a redo takes that
// back, and another undo the redo.
func TestUndoKilled(t *testing.T) {
	if base := os.Getenv("HISTORY_OF"); base != "" {
		killedChild(t, base)
		return
	}
	need.Root(t, "it gives files to another user")
	killed, seen := 0, ""
	stride := 3 / need.Rounds("SCOPEFS_TEST_POINTS", 1, 3) // make test-all kills at each point
	for point, more := 0, true; more; point += stride {
		base := t.TempDir()
		for dir := base; dir != os.TempDir(); dir = filepath.Dir(dir) {
			require.NoError(t, os.Chmod(dir, 0o755))
		}
		require.NoError(t, os.Chown(base, nobody, nobody))
		child := func(phase string) error {
			cmd := exec.Command(os.Args[0], "-test.run=^TestUndoKilled$", "-test.v")
			cmd.Env = append(os.Environ(), "HISTORY_OF="+base, "HISTORY_PHASE="+phase, fmt.Sprint("HISTORY_KILL=", point))
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			out, err := cmd.CombinedOutput()
			if err != nil && err.Error() != "signal: killed" {
				t.Fatalf("%s: killed at point %d: %v: %s", phase, point, err, out)
			}
			seen = string(out)
			return err
		}
		tree := filepath.Join(base, "tree")
		require.NoError(t, child("make"))
		before := read(t, base, "before")
		require.NotEqual(t, before, read(t, base, "after"))
		if more = child("undo") != nil; more {
			killed++
			require.NoError(t, child("resume"))
		}
		require.Equal(t, before, state(t, tree), "killed at point %d: %s", point, seen)
		require.NoError(t, child("redo"))
		left, err := filepath.Glob(base + "/history/*.open")
		require.NoError(t, err)
		require.Empty(t, left)
		left, err = filepath.Glob(base + "/history/*/[ps]*")
		require.NoError(t, err)
		require.Empty(t, left)
	}
	assert.Greater(t, killed*stride, 50)
	t.Logf("killed at %d points", killed)
}

// TestUndoKilledModel kills a process that undoes random changes at random moments: an undo of the next one to the
// checkpoint finds nothing of others, gives the tree of that time, and a redo and another undo do as well.
func TestUndoKilledModel(t *testing.T) {
	if base := os.Getenv("HISTORY_OF"); base != "" {
		killedModel(t, base)
		return
	}
	killed, first := 0, need.Rounds("SCOPEFS_TEST_HISTORY_FIRST", 0, 0)
	for seed := first; seed < first+need.Rounds("SCOPEFS_TEST_HISTORY_KILLS", 10, 200); seed++ {
		base := t.TempDir()
		for _, phase := range []string{"make", "undo", "again"} {
			cmd := exec.Command(os.Args[0], "-test.run=^TestUndoKilledModel$")
			cmd.Env = append(os.Environ(), "HISTORY_OF="+base, "HISTORY_PHASE="+phase, fmt.Sprint("HISTORY_KILL=", seed))
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			out, err := cmd.CombinedOutput()
			if err != nil && err.Error() == "signal: killed" {
				killed++
			} else {
				require.NoError(t, err, "seed %d: %s: %s", seed, phase, out)
			}
		}
	}
	t.Logf("killed %d", killed)
}

// killedModel does a phase of TestUndoKilledModel.
func killedModel(t *testing.T, base string) {
	seed, err := strconv.ParseUint(os.Getenv("HISTORY_KILL"), 10, 64)
	require.NoError(t, err)
	random := rand.New(rand.NewPCG(seed, 5))
	c := &client{t: t, dir: filepath.Join(base, "tree"), kept: filepath.Join(base, "history")}
	phase := os.Getenv("HISTORY_PHASE")
	if phase == "make" {
		require.NoError(t, os.Mkdir(c.dir, 0o755))
		require.NoError(t, os.Mkdir(c.kept, 0o700))
	}
	c.open(Options{})
	defer c.close()
	var trace bytes.Buffer
	changes := func() {
		for range 5 + random.IntN(40) {
			c.label = Label{Session: "s", Call: fmt.Sprint("call", random.IntN(3))}
			c.random(random, &trace)
		}
	}
	whole := func(what string, r *Result) {
		require.Empty(t, r.Conflicts, "%s\n%s", what, read(t, base, "trace"))
		require.Empty(t, r.Unkept, "%s\n%s", what, read(t, base, "trace"))
	}
	switch phase {
	case "make":
		changes()
		require.NoError(t, os.WriteFile(filepath.Join(base, "before"), []byte(state(t, c.dir)), 0o600))
		_, err := c.store.Checkpoint("p", "", Hooks{})
		require.NoError(t, err)
		trace.Reset()
		changes()
		require.NoError(t, os.WriteFile(filepath.Join(base, "after"), []byte(state(t, c.dir)), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(base, "trace"), trace.Bytes(), 0o600))
	case "undo":
		end, points := random.IntN(60), 0
		point := func() {
			if points++; points == end && seed%2 == 0 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
		}
		whole("undo", c.undoWith(Selection{Checkpoint: "p"}, Hooks{
			Lock: func() (func(), error) {
				if points == 0 && seed%2 == 1 {
					time.AfterFunc(time.Duration(random.IntN(2000))*time.Microsecond, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) })
				}
				point()
				return point, nil
			},
			Changed: func(Place, beneath.FileID) { point() },
		}))
	case "again":
		whole("to the checkpoint", c.undo(Selection{Checkpoint: "p"}))
		require.Equal(t, withoutTimes(read(t, base, "before")), withoutTimes(state(t, c.dir)), read(t, base, "trace"))
		whole("redo", c.undo(Selection{Undo: true}))
		whole("undo of the redo", c.undo(Selection{Checkpoint: "p"}))
		require.Equal(t, withoutTimes(read(t, base, "before")), withoutTimes(state(t, c.dir)), read(t, base, "trace"))
	}
}

const nobody = 65534

// withoutTimes removes the times of directories from what state returns.
func withoutTimes(state string) string {
	lines := strings.Split(state, "\n")
	for i, l := range lines {
		if words := strings.Split(l, " "); len(words) > 2 && strings.HasPrefix(words[1], "d") {
			lines[i] = strings.Join(words[:2], " ")
		}
	}
	return strings.Join(lines, "\n")
}

// killedChild does a phase of TestUndoKilled.
func killedChild(t *testing.T, base string) {
	require.NoError(t, syscall.Setgroups(nil))
	require.NoError(t, syscall.Setgid(nobody))
	require.NoError(t, syscall.Setuid(nobody))
	syscall.Umask(0o022)
	c := &client{t: t, dir: filepath.Join(base, "tree"), kept: filepath.Join(base, "history")}
	phase := os.Getenv("HISTORY_PHASE")
	if phase == "make" {
		require.NoError(t, os.Mkdir(c.dir, 0o755))
		require.NoError(t, os.Mkdir(c.kept, 0o700))
	}
	c.open(Options{})
	defer c.close()
	last, err := strconv.Atoi(os.Getenv("HISTORY_KILL"))
	require.NoError(t, err)
	points := 0
	point := func() {
		if points == last && phase == "undo" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		points++
	}
	whole := func(r *Result) {
		assert.Empty(t, r.Conflicts)
		assert.Empty(t, r.Unkept)
	}
	switch phase {
	case "make":
		c.label = Label{Call: "c1"}
		for _, rel := range []string{"a", "b", "c", "ro", "ro/sub", "ro/gone"} {
			c.mkdir(rel)
		}
		c.chmod("b", 0o700)
		c.create("a/f", "one")
		c.create("c/g", "two")
		c.create("ro/h", strings.Repeat("long", 10_000))
		c.create("ro/w", "old")
		c.create("ro/sub/x", "x")
		require.NoError(t, os.WriteFile(filepath.Join(base, "before"), []byte(state(t, c.dir)), 0o600))
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
		c.write("ro/w", strings.Repeat("new", 10_000))
		c.chmod("ro/w", 0o444)
		c.unlink("ro/h")
		require.NoError(t, c.rename("ro/sub", "sub", 0))
		require.NoError(t, c.rmdir("ro/gone"))
		c.create("ro/new", "new")
		c.chmod("sub", 0o500)
		c.chmod("ro", 0o555)
		require.NoError(t, os.WriteFile(filepath.Join(base, "after"), []byte(state(t, c.dir)), 0o600))
	case "undo":
		begun := false
		may := func(string, *beneath.Stat) error {
			if begun { // else for the plan
				point()
			}
			return nil
		}
		whole(c.undoWith(Selection{Checkpoint: "p"}, Hooks{
			Lock:    func() (func(), error) { begun = true; point(); return func() {}, nil },
			May:     may,
			Open:    func(beneath.FileID) bool { point(); return false },
			Changed: func(Place, beneath.FileID) { point() },
		}))
	case "resume":
		results, err := c.store.Resume(t.Context(), Hooks{})
		require.NoError(t, err)
		require.Len(t, results, 1)
		whole(results[0])
	case "redo":
		r := c.undo(Selection{Undo: true})
		whole(r)
		assert.NotZero(t, r.Done)
		assert.Equal(t, withoutTimes(read(t, base, "after")), withoutTimes(state(t, c.dir)))
		whole(c.undo(Selection{Checkpoint: "p"}))
		assert.Equal(t, read(t, base, "before"), state(t, c.dir), "again")
	}
}

// TestUndoUnknown: the reason for which a file stays that was open when the view was killed is that of all names that stay with it.
func TestUndoUnknown(t *testing.T) {
	const unknown = "how it was left is not known: the view ended while a program had it open"
	c := newClient(t)
	c.host("one", "before")
	c.mkdir("d")
	_, err := c.store.Checkpoint("p", "", Hooks{})
	require.NoError(t, err)
	c.create("two", "open")
	require.NoError(t, c.rename("one", "two", unix.RENAME_EXCHANGE))
	require.NoError(t, c.rename("one", "three", 0))
	require.NoError(t, c.rename("two", "d/two", 0))
	st, err := c.root.Stat("three")
	require.NoError(t, err)
	c.begin("three", st.ID())
	c.host("three", "written past the view")
	c.kill()
	c.open(Options{})
	c.newObject()
	c.create("one", "newer")
	before := state(t, c.dir)
	r := c.undo(Selection{Checkpoint: "p"})
	because := "because of three: " + unknown
	assert.Equal(t, []Problem{{"one", because}, {"three", unknown}, {"two", because}}, r.Conflicts)
	c.undo(Selection{Undo: true})
	assert.Equal(t, withoutTimes(before), withoutTimes(state(t, c.dir)))
	c.undo(Selection{Checkpoint: "p", Force: true})
	assert.Equal(t, "before", c.read("one"))
	assert.True(t, c.has("written past the view"))
	assert.True(t, c.has("newer"))
}

// TestUndoSkips: what others have made of a directory that comes back stays, and nothing comes into it.
func TestUndoSkips(t *testing.T) {
	c := newClient(t)
	c.label = Label{Call: "c1"}
	c.mkdir("d")
	c.create("d/f", "one")
	c.label = Label{Call: "c2"}
	c.unlink("d/f")
	require.NoError(t, c.rmdir("d"))
	r := c.undoWith(Selection{Calls: []string{"c2"}}, Hooks{Agree: func(*Plan) error { return os.Mkdir(filepath.Join(c.dir, "d"), 0o700) }})
	assert.Equal(t, []Problem{{"d", "another object is there"}, {"d/f", "what comes before it was not done"}}, r.Conflicts)
	assert.Equal(t, 0, entries(t, filepath.Join(c.dir, "d")))
	assert.Zero(t, len(slicesOf(r.Steps, Restore)))
}

// TestUndoCapability: the capabilities of a file that a write has removed come back, or the undo says that they do not.
func TestUndoCapability(t *testing.T) {
	need.Root(t, "it sets capabilities")
	runtime.LockOSThread()                                                       // with the capabilities of this thread: it ends with the test
	net := []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // CAP_NET_RAW, permitted and effective
	for _, may := range []bool{true, false} {
		c := newClient(t)
		c.label = Label{Call: "c1"}
		c.create("f", "one")
		require.NoError(t, unix.Setxattr(filepath.Join(c.dir, "f"), journal.Capability, net, 0))
		c.label = Label{Call: "c2"}
		c.write("f", "two")
		if !may {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			require.NoError(t, unix.Capget(&header, &data[0]))
			data[0].Effective &^= 1 << unix.CAP_SETFCAP
			require.NoError(t, unix.Capset(&header, &data[0]))
		}
		r := c.undo(Selection{Calls: []string{"c2"}})
		assert.Empty(t, r.Conflicts)
		assert.Equal(t, "one", read(t, c.dir, "f"))
		value := make([]byte, 100)
		n, err := unix.Getxattr(filepath.Join(c.dir, "f"), journal.Capability, value)
		if may {
			require.NoError(t, err)
			assert.Equal(t, net, value[:n])
			assert.Empty(t, r.Unkept)
		} else {
			assert.ErrorIs(t, err, unix.ENODATA)
			assert.Equal(t, []Problem{{"f", plan.ErrCapability.Error()}}, r.Unkept)
		}
	}
}

func slicesOf(steps []Step, a Action) (list []Step) {
	for _, s := range steps {
		if s.Action == a {
			list = append(list, s)
		}
	}
	return list
}

// TestUndoNewer: what a client has written after the plan was made is not overwritten, whether somebody was shown the
// plan or not.
func TestUndoNewer(t *testing.T) {
	c := newClient(t)
	c.label = Label{Call: "c1"}
	c.create("f", "one")
	c.label = Label{Call: "c2"}
	c.write("f", "two")
	locked := false
	r := c.undoWith(Selection{Calls: []string{"c2"}}, Hooks{Lock: func() (func(), error) {
		if !locked {
			c.write("f", "three")
		}
		locked = true
		return func() {}, nil
	}})
	assert.Len(t, r.Conflicts, 1)
	assert.Equal(t, "three", read(t, c.dir, "f"))
	assert.Zero(t, r.Done)
}

var _ plan.Keeper = (*undoing)(nil)
