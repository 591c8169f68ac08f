package plan

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope/beneath"
)

// nobody is an ordinary user, and owns what the child of TestKilledSteps changes: modes bind him.
const nobody = 65534

// build makes what lines say in a directory: "mode name/" or "mode name=content". Directories get their modes at the
// end.
func build(t *testing.T, top string, lines ...string) {
	t.Helper()
	modes := map[string]fs.FileMode{}
	for _, l := range lines {
		text, name, _ := strings.Cut(l, " ")
		mode, err := strconv.ParseUint(text, 8, 32)
		require.NoError(t, err)
		name, content, file := strings.Cut(name, "=")
		path := filepath.Join(top, name)
		if modes[path] = fs.FileMode(mode); !file {
			require.NoError(t, os.Mkdir(path, 0o700))
		} else {
			require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		}
	}
	for path, mode := range modes {
		require.NoError(t, os.Chmod(path, mode))
	}
}

// tree lists a directory.
func tree(t *testing.T, top string) (lines []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == top {
			return err
		}
		info, err := d.Info()
		require.NoError(t, err)
		line := fmt.Sprintf("%#o %s/", info.Mode().Perm(), path[len(top)+1:])
		if !d.IsDir() {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			line = strings.TrimSuffix(line, "/") + "=" + string(text)
		}
		lines = append(lines, line)
		return nil
	}))
	return lines
}

// ident returns what a path has.
func ident(t *testing.T, path string) Ident {
	root, err := beneath.OpenDir(filepath.Dir(path))
	require.NoError(t, err)
	defer root.Close()
	st, err := root.Stat(filepath.Base(path))
	require.NoError(t, err)
	i := IdentOf(&st)
	i.Ctime = unix.StatxTimestamp{}
	return i
}

// keeper is a Keeper that removes, writes "new" and keeps nothing.
type keeper struct {
	root  *beneath.Root
	point func() // is called for each call
}

func (k keeper) Remove(_ *Step, at Place, st *beneath.Stat) error {
	k.point()
	if st.IsDir() {
		return at.Dir.Rmdir(at.Name)
	}
	return at.Dir.Unlink(at.Name)
}

func (k keeper) Move(_ *Step, _, _ Place, _ *beneath.Stat, change func() error) error {
	k.point()
	return change()
}

func (k keeper) Keep(*Step, Place, *beneath.Stat) error {
	k.point()
	return nil
}

func (k keeper) Fill(_ *Step, f beneath.File) error {
	for i, b := range []byte("new") { // in pieces
		if _, err := f.WriteAt([]byte{b}, int64(i), false); err != nil {
			return err
		}
		k.point()
	}
	return f.Truncate(3)
}

func (k keeper) Show(*Step) error { return nil }

func (k keeper) Left(*Step, *beneath.Stat, bool) { k.point() }

// changes returns a plan with each action, in directories that their owner has closed.
func changes(t *testing.T, top string, kept bool) Plan {
	base, stage := top+"/base", top+"/stage"
	id := func(path string) Ident { return ident(t, path) }
	moved := id(base + "/ro/sub")
	p := Plan{Note: []byte("note"), Steps: []Step{
		{Do: Remove, At: InTree("ro/f"), To: InStage("r0"), Object: id(base + "/ro/f")},
		{Do: Move, At: InTree("ro/sub"), To: InStage("p1"), Object: moved},
		{Do: Remove, At: InTree("ro/gone"), Object: id(base + "/ro/gone")},
		{Do: Move, At: InStage("p1"), To: InTree("closed/to"), Home: []byte("ro/sub"), Object: moved, Needs: []int{1}},
		{Do: Move, At: InStage("n2"), To: InTree("ro/f"), Object: id(stage + "/n2")},
		{Do: Exchange, At: InTree("ro/x"), To: InStage("n3"), Object: id(base + "/ro/x"), Other: id(stage + "/n3")},
		{Do: Exchange, At: InTree("a"), To: InTree("ro/b"), Object: id(base + "/a"), Other: id(base + "/ro/b")},
		{Do: Exchange, At: InTree("a"), To: InTree("ro/b"), Object: id(base + "/ro/b"), Other: id(base + "/a")},
		{Do: Move, At: InTree("a"), To: InTree("ro/a"), Object: id(base + "/a")},
		{Do: Move, At: InTree("ro/a"), To: InTree("c"), Object: id(base + "/a")},
		{Do: Move, At: InTree("shut/d"), To: InTree("d"), Object: id(base + "/shut/d")},
		{Do: Attributes, At: InTree("ro/y"), Object: id(base + "/ro/y"), Attr: &journal.Attr{Mode: 0o640, UID: nobody, GID: nobody, Atime: omitted, Mtime: omitted}},
		{Do: Attributes, At: InTree("closed"), Object: id(base + "/closed"), Attr: &journal.Attr{Mode: 0o500, UID: nobody, GID: nobody, Atime: omitted, Mtime: omitted}},
	}}
	if kept {
		p.Steps = append(p.Steps, Step{Do: Rewrite, At: InTree("ro/w"), Object: id(base + "/ro/w"),
			Attr: &journal.Attr{Mode: 0o600, UID: nobody, GID: nobody, Atime: omitted, Mtime: omitted}},
			Step{Do: Times, At: InTree("ro"), Object: id(base + "/ro"), Attr: &journal.Attr{Mtime: unix.StatxTimestamp{Sec: 7}}})
		p.Steps[0].To = Spot{}
	}
	return p
}

// TestKilledSteps kills a process at each step of a plan, and in it: with what was lifted, before and after the change.
// Run makes what the plan wants, with no mode lifted, and changes of others meanwhile stay.
func TestKilledSteps(t *testing.T) {
	if os.Getenv("PLAN_OF") != "" {
		killChild(t)
		return
	}
	need.Root(t, "it gives files to another user")
	stride := 3 / need.Rounds("SCOPEFS_TEST_POINTS", 1, 3) // make test-all kills at each point
	for _, kept := range []bool{false, true} {
		killed := 0
		for point, more := 0, true; more; point += stride {
			top := t.TempDir()
			require.NoError(t, os.Chmod(top, 0o755))
			require.NoError(t, os.Chmod(filepath.Dir(top), 0o755))
			build(t, top, "755 base/", "700 stage/", "600 stage/n2=made", "600 stage/n3=other",
				"555 base/ro/", "444 base/ro/f=gone", "555 base/ro/sub/", "444 base/ro/sub/g=g", "555 base/ro/gone/", "444 base/ro/x=x",
				"444 base/ro/y=y", "0 base/closed/", "0 base/shut/", "555 base/shut/d/", "600 base/a=a", "600 base/ro/b=b", "400 base/ro/w=old")
			require.NoError(t, filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
				require.NoError(t, err)
				return os.Lchown(path, nobody, nobody)
			}))
			stage, err := beneath.OpenDir(top + "/stage")
			require.NoError(t, err)
			dir, err := stage.Dir("")
			require.NoError(t, err)
			j, err := Begin(t.Context(), dir, "plan", changes(t, top, kept))
			require.NoError(t, err)
			j.Close()
			require.NoError(t, os.Chown(top+"/stage/plan", nobody, nobody))
			dir.Close()
			stage.Close()
			child := func(point int) error {
				cmd := exec.Command(os.Args[0], "-test.run=^TestKilledSteps$")
				cmd.Env = append(os.Environ(), "PLAN_OF="+top, fmt.Sprint("PLAN_KEPT=", kept), fmt.Sprint("PLAN_KILL=", point))
				cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
				out, err := cmd.CombinedOutput()
				if err != nil && err.Error() != "signal: killed" {
					t.Fatalf("%v: %s", err, out)
				}
				return err
			}
			if more = child(point) != nil; more {
				killed++
				require.NoError(t, child(-1))
			}
			want := []string{"0644 a=host", "0600 c=a", "0500 closed/", "0555 closed/to/", "0444 closed/to/g=g", "0555 ro/", "0 shut/", "0555 d/",
				"0600 ro/b=b", "0600 ro/f=made", "0600 ro/x=other", "0640 ro/y=y", "0400 ro/w=old"}
			if kept {
				want[len(want)-1] = "0600 ro/w=new"
			}
			require.ElementsMatch(t, want[1:], tree(t, top+"/base"), "killed at point %d, kept %v", point, kept)
		}
		assert.Greater(t, killed*stride, 40)
		t.Logf("killed at %d points, kept %v", killed, kept)
	}
}

// killChild runs the plan of a directory as an ordinary user, and is killed at a point.
func killChild(t *testing.T) {
	top := os.Getenv("PLAN_OF")
	last, err := strconv.Atoi(os.Getenv("PLAN_KILL"))
	require.NoError(t, err)
	require.NoError(t, syscall.Setgroups(nil))
	require.NoError(t, syscall.Setgid(nobody))
	require.NoError(t, syscall.Setuid(nobody))
	base, err := beneath.OpenDir(top + "/base")
	require.NoError(t, err)
	stage, err := beneath.OpenDir(top + "/stage")
	require.NoError(t, err)
	dir, err := stage.Dir("")
	require.NoError(t, err)
	points := 0
	point := func() {
		if points == last {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		points++
	}
	r := Runner{Tree: base, Stage: stage,
		Lock:    func() (func(), error) { point(); return func() {}, nil },
		Changed: func(Place, beneath.FileID) { point() },
	}
	if os.Getenv("PLAN_KEPT") == "true" {
		r.Keeper = keeper{base, point}
	}
	j, err := Load(dir, "plan")
	require.NoError(t, err)
	require.Equal(t, "note", string(j.Note))
	require.NoError(t, j.Run(t.Context(), r))
	require.Empty(t, j.Failed)
	require.NoError(t, j.End())
}

// TestTornPlan: a plan that was not written whole has done nothing, and is none.
func TestTornPlan(t *testing.T) {
	top := t.TempDir()
	stage, err := beneath.OpenDir(top)
	require.NoError(t, err)
	defer stage.Close()
	dir, err := stage.Dir("")
	require.NoError(t, err)
	defer dir.Close()
	p := Plan{Steps: []Step{{Do: Remove, At: InTree("a")}, {Do: Remove, At: InTree("b")}}}
	j, err := Begin(t.Context(), dir, "plan", p)
	require.NoError(t, err)
	j.Close()
	whole, err := os.ReadFile(top + "/plan")
	require.NoError(t, err)
	for size := range whole {
		require.NoError(t, os.WriteFile(top+"/plan", whole[:size], 0o600))
		j, err := Load(dir, "plan")
		require.NoError(t, err)
		assert.Nil(t, j)
		assert.NoFileExists(t, top+"/plan")
	}
	require.NoError(t, os.WriteFile(top+"/plan", whole, 0o600))
	j, err = Load(dir, "plan")
	require.NoError(t, err)
	assert.Len(t, j.Steps, 2)
	j.Close()
	require.NoError(t, os.WriteFile(top+"/plan", []byte(`{"steps":[{"do":"take"}]}`), 0o600))
	_, err = Load(dir, "plan")
	assert.ErrorIs(t, err, ErrOlder)
	assert.FileExists(t, top+"/plan")
}

// TestStepsLeaveOthers: what others have made of the names of a plan stays, and what needs a step that was not done is
// not done.
func TestStepsLeaveOthers(t *testing.T) {
	top := t.TempDir()
	build(t, top, "755 base/", "700 stage/", "755 stage/d/", "644 stage/n=n", "644 base/a=1", "755 base/dir/", "644 base/dir/f=1", "644 base/w=1", "644 base/m=1")
	base, err := beneath.OpenDir(top + "/base")
	require.NoError(t, err)
	defer base.Close()
	stage, err := beneath.OpenDir(top + "/stage")
	require.NoError(t, err)
	defer stage.Close()
	dir, err := stage.Dir("")
	require.NoError(t, err)
	defer dir.Close()
	p := Plan{Steps: []Step{
		{Do: Remove, At: InTree("a"), Object: ident(t, top+"/base/a")},
		{Do: Remove, At: InTree("dir"), Object: ident(t, top+"/base/dir")},
		{Do: Move, At: InStage("d"), To: InTree("new"), Object: ident(t, top+"/stage/d")},
		{Do: Move, At: InStage("n"), To: InTree("new/n"), Object: ident(t, top+"/stage/n"), Needs: []int{2}},
		{Do: Rewrite, At: InTree("w"), Object: ident(t, top+"/base/w"), Attr: &journal.Attr{Mode: 0o644, Atime: omitted, Mtime: omitted}},
		{Do: Move, At: InTree("m"), To: InTree("o"), Object: ident(t, top+"/base/m")},
	}}
	j, err := Begin(t.Context(), dir, "plan", p)
	require.NoError(t, err)
	for _, name := range []string{"a", "w", "m"} {
		require.NoError(t, os.WriteFile(top+"/base/"+name, []byte("host"), 0o644))
	}
	require.NoError(t, os.Mkdir(top+"/base/new", 0o755))
	require.NoError(t, j.Run(t.Context(), Runner{Tree: base, Stage: stage, Keeper: keeper{base, func() {}}}))
	kinds := map[int]Kind{}
	for i, f := range j.Failed {
		kinds[i] = f.Kind
	}
	assert.Equal(t, map[int]Kind{0: Changed, 1: Full, 2: Taken, 3: Skipped, 4: Changed, 5: Changed}, kinds)
	assert.ElementsMatch(t, []string{"0644 a=host", "0755 dir/", "0644 dir/f=1", "0644 m=host", "0755 new/", "0644 w=host"}, tree(t, top+"/base"))
}

// TestBackHome: an object of the tree that cannot get to its new place goes back to its name, whatever the reason.
func TestBackHome(t *testing.T) {
	for name, to := range map[string]string{"the name is too long": strings.Repeat("x", 256), "it has an object": "taken", "no directory": "none/a"} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			build(t, top, "755 base/", "700 stage/", "644 base/a=1", "644 base/taken=2")
			base, err := beneath.OpenDir(top + "/base")
			require.NoError(t, err)
			defer base.Close()
			stage, err := beneath.OpenDir(top + "/stage")
			require.NoError(t, err)
			defer stage.Close()
			dir, err := stage.Dir("")
			require.NoError(t, err)
			defer dir.Close()
			a := ident(t, top+"/base/a")
			j, err := Begin(t.Context(), dir, "plan", Plan{Steps: []Step{
				{Do: Move, At: InTree("a"), To: InStage("p"), Object: a},
				{Do: Move, At: InStage("p"), To: InTree(to), Home: []byte("a"), Object: a, Needs: []int{0}},
			}})
			require.NoError(t, err)
			require.NoError(t, j.Run(t.Context(), Runner{Tree: base, Stage: stage}))
			require.NotNil(t, j.Failed[1])
			require.NoError(t, j.End())
			assert.Equal(t, []string{"0644 a=1", "0644 taken=2"}, tree(t, top+"/base"))
			assert.Empty(t, tree(t, top+"/stage"))
		})
	}
}

// TestCapabilityRestored: the capabilities of a file are restored by a process that may, and another one says that they
// are not.
func TestCapabilityRestored(t *testing.T) {
	need.Root(t, "it sets capabilities")
	if os.Getenv("PLAN_OF") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCapabilityRestored$")
		cmd.Env = append(os.Environ(), "PLAN_OF=without")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	top := t.TempDir()
	build(t, top, "755 f=old")
	root, err := beneath.OpenDir(top)
	require.NoError(t, err)
	defer root.Close()
	net := []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // CAP_NET_RAW, permitted and effective
	require.NoError(t, unix.Setxattr(top+"/f", journal.Capability, net, 0))
	st, err := root.Stat("f")
	require.NoError(t, err)
	f, err := root.Open("f", unix.O_RDWR, st.ID())
	require.NoError(t, err)
	defer f.Close()
	a := journal.AttrOf(&st)
	a.Capability = journal.CapabilityOf(f)
	require.Equal(t, net, a.Capability)
	_, err = f.WriteAt([]byte("new"), 0, false)
	require.NoError(t, err)
	require.Nil(t, journal.CapabilityOf(f), "the kernel removes it")
	if os.Getenv("PLAN_OF") != "" {
		dropCapability(t, unix.CAP_SETFCAP)
		assert.ErrorIs(t, SetAttributes(root, "f", st.ID(), a), ErrCapability)
		assert.Nil(t, journal.CapabilityOf(f))
		return
	}
	require.NoError(t, SetAttributes(root, "f", st.ID(), a))
	assert.Equal(t, net, journal.CapabilityOf(f))
}

// dropCapability drops a capability of this thread.
func dropCapability(t *testing.T, which uint) {
	t.Helper()
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	require.NoError(t, unix.Capget(&header, &data[0]))
	data[which/32].Effective &^= 1 << (which % 32)
	require.NoError(t, unix.Capset(&header, &data[0]))
}
