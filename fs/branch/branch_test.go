package branch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/event"
	view "github.com/scopefs/scopefs/fs"
	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/hold"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// fork is a branch of a directory, with a view of it mounted, which another process serves: one that uses its own mount can deadlock.
type fork struct {
	testing.TB
	base, merged, state string
	layers              *hold.Layers
	served              *exec.Cmd
	to                  io.WriteCloser // of the process
	from                *bufio.Reader  // likewise
	*Branch
}

// newFork makes a directory, by lines as of tree, and forks it.
func newFork(t testing.TB, lines ...string) *fork {
	need.Root(t, "it mounts a view")
	return newForkAt(t, t.TempDir(), lines...)
}

// newForkAt is newFork in an empty directory.
func newForkAt(t testing.TB, top string, lines ...string) *fork {
	f := &fork{TB: t, base: top + "/base", merged: top + "/merged", state: top + "/state"}
	for _, dir := range []string{"base", "merged", "state", "state/upper"} {
		require.NoError(t, os.Mkdir(filepath.Join(top, dir), 0o755))
	}
	f.make(f.base, lines...)
	require.NoError(t, os.Mkdir(filepath.Join(f.state, stageName), 0o700))
	stamp, err := os.OpenFile(filepath.Join(f.state, StampName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	require.NoError(t, err)
	require.NoError(t, Stamp(beneath.NewFile(int(stamp.Fd()))))
	stamp.Close()
	f.mount()
	f.open()
	t.Cleanup(func() {
		f.Close()
		f.unmount()
	})
	return f
}

// recorder records nothing.
type recorder struct{}

func (recorder) Record(context.Context, event.Event) error { return nil }
func (recorder) Err() error                                { return nil }

// openLayers opens the layers of a fork in a directory.
func openLayers(t testing.TB, top string) *hold.Layers {
	base, err := beneath.OpenDir(top + "/base")
	require.NoError(t, err)
	state, err := beneath.OpenDir(top + "/state")
	require.NoError(t, err)
	layers, err := hold.Open(base, state, true)
	require.NoError(t, err)
	return layers
}

// TestServe is the process that serves the view of a fork.
func TestServe(t *testing.T) {
	top := os.Getenv("BRANCH_SERVE")
	if top == "" {
		return
	}
	layers := openLayers(t, top)
	bases, err := NewBases(layers)
	require.NoError(t, err)
	layers.Keep = bases
	policy, err := scope.Compile(scope.PolicySpec{})
	require.NoError(t, err)
	dev, err := fusemount.Mount(top+"/merged", fusemount.MountOptions{})
	require.NoError(t, err)
	kept := newKept(t, layers)
	v, err := view.New(layers.Base, dev.FD(), view.Options{Policy: policy, Recorder: recorder{}, Hold: layers, Whole: true, XAttrs: true,
		Passthrough: true, Timeout: time.Millisecond, History: kept.Store})
	require.NoError(t, err)
	go func() {
		results, err := kept.Resume(context.Background(), v.Hooks())
		require.NoError(t, err)
		for _, r := range results {
			require.Empty(t, append(r.Conflicts, r.Unkept...), "resumed")
		}
		fmt.Println("ready")
		thaw, lines := func() {}, bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			what, about, _ := strings.Cut(lines.Text(), " ")
			switch what {
			case "session":
				kept.session.Store(&about)
			case "freeze":
				thaw = v.Freeze()
			case "thaw":
				thaw()
			case "full":
				bases.records, bases.removed = maxBases, maxBases
			default:
				fmt.Println(kept.answer(v, what, about))
				continue
			}
			fmt.Println("done")
		}
	}()
	if err := v.Serve(); !errors.Is(err, unix.ENODEV) { // unmounted before the kernel's first request was read
		require.NoError(t, err)
	}
	kept.Close()
}

// mount has a view of the branch served at merged.
func (f *fork) mount() {
	f.Helper()
	top := filepath.Dir(f.base)
	f.layers = openLayers(f, top)
	f.served = exec.Command(os.Args[0], "-test.run=^TestServe$")
	f.served.Env = append(os.Environ(), "BRANCH_SERVE="+top)
	f.served.Stderr = os.Stderr
	var err error
	f.to, err = f.served.StdinPipe()
	require.NoError(f, err)
	from, err := f.served.StdoutPipe()
	require.NoError(f, err)
	f.from = bufio.NewReader(from)
	require.NoError(f, f.served.Start())
	line, err := f.from.ReadString('\n')
	require.NoError(f, err)
	require.Equal(f, "ready\n", line)
}

// newBases returns what keeps the bases of the fork in this process.
func (f *fork) newBases() *Bases {
	f.Helper()
	b, err := NewBases(f.layers)
	require.NoError(f, err)
	return b
}

// tell has the process that serves the view do something.
func (f *fork) tell(what string) {
	f.Helper()
	_, err := fmt.Fprintln(f.to, what)
	require.NoError(f, err)
	line, err := f.from.ReadString('\n')
	require.NoError(f, err)
	require.Equal(f, "done\n", line)
}

func (f *fork) unmount() {
	f.Helper()
	require.NoError(f, unix.Unmount(f.merged, unix.MNT_DETACH)) // another test's process may just be starting, with our descriptors
	said, _ := io.ReadAll(f.from)
	require.NoError(f, f.served.Wait(), "%s", said)
	f.layers.Base.Close()
	f.layers.State.Close()
	f.layers.Upper.Close()
	f.layers.Stage.Close()
}

func (f *fork) open() {
	require.NoError(f, f.layers.Load())
	b, err := Open(Roots{Layers: f.layers})
	require.NoError(f, err)
	f.Branch = b
}

// frozen has the view change nothing until thaw is called: this process may.
func (f *fork) frozen() (thaw func()) {
	f.Helper()
	f.tell("freeze")
	require.NoError(f, f.layers.Load())
	return func() { f.tell("thaw") }
}

// make makes objects: "dir/", "file=content", "link->text".
func (f *fork) make(dir string, lines ...string) {
	f.Helper()
	for _, l := range lines {
		name, text, link := strings.Cut(l, "->")
		if link {
			require.NoError(f, os.Symlink(text, filepath.Join(dir, name)))
			continue
		}
		name, text, file := strings.Cut(l, "=")
		if file {
			require.NoError(f, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
			require.NoError(f, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		} else {
			require.NoError(f, os.MkdirAll(filepath.Join(dir, name), 0o755))
		}
	}
}

// tree lists a directory: names, modes, contents, texts of links.
func tree(t testing.TB, dir string) (lines []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		if d.Name() == "theirs" { // the host's
			return fs.SkipDir
		}
		line, err := describe(dir, strings.TrimPrefix(path, dir+"/"))
		lines = append(lines, line)
		return err
	}))
	return lines
}

// describe returns the line of tree for an object.
func describe(dir, rel string) (string, error) {
	path := filepath.Join(dir, rel)
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	text := ""
	switch info.Mode().Type() {
	case 0:
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		text = string(data)
	case fs.ModeSymlink:
		if text, err = os.Readlink(path); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%v %q %q", info.Mode(), rel, text), nil
}

// requireMerged requires that the view has a tree.
func requireMerged(t testing.TB, want []string, dir string, about ...any) {
	t.Helper()
	require.ElementsMatch(t, want, tree(t, dir), about...)
}

// diff lists what differs, as "kind path" or "kind from -> path", and conflicts after "!".
func (f *fork) diff(paths ...string) []string {
	f.Helper()
	s, err := f.Diff(f.Context(), paths, false)
	require.NoError(f, err)
	return texts(s.Entries)
}

func texts(entries []Entry) []string {
	list := []string{}
	for _, e := range entries {
		text := string(e.Kind) + " " + e.Path
		if e.From != "" {
			text = string(e.Kind) + " " + e.From + " -> " + e.Path
		}
		if e.Conflict != "" {
			text += " ! " + e.Conflict
		}
		list = append(list, text)
	}
	return list
}

// commit commits as a daemon does.
func (f *fork) commit(opt Options) *Result {
	f.Helper()
	r, err := f.Commit(context.Background(), opt)
	require.NoError(f, err)
	return r
}

// Commit is Branch.Commit.
func (f *fork) Commit(ctx context.Context, opt Options) (*Result, error) {
	defer f.frozen()()
	return f.Branch.Commit(ctx, opt)
}

// Resume is Branch.Resume.
func (f *fork) Resume() (*Result, error) {
	defer f.frozen()()
	return f.Branch.Resume()
}

// Discard is Branch.Discard.
func (f *fork) Discard(ctx context.Context, paths []string, hash string) (done, total int, err error) {
	defer f.frozen()()
	return f.Branch.Discard(ctx, paths, hash)
}

// Diff is Branch.Diff.
func (f *fork) Diff(ctx context.Context, paths []string, hashed bool) (*Set, error) {
	require.NoError(f, f.layers.Load())
	return f.Branch.Diff(ctx, paths, hashed)
}

// again mounts the view anew.
func (f *fork) again() {
	f.Helper()
	f.undo(history.Selection{Calls: []string{"none"}}) // waits until the view has closed what clients have: an unmount does not
	f.Close()
	f.unmount()
	f.mount()
	f.open()
}

// rename renames a path of the branch or of Base.
func (f *fork) rename(dir, from, to string) {
	f.Helper()
	require.NoError(f, os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)))
}

func (f *fork) remove(dir string, names ...string) {
	f.Helper()
	for _, name := range names {
		require.NoError(f, os.RemoveAll(filepath.Join(dir, name)))
	}
}

func TestCommit(t *testing.T) {
	f := newFork(t, "same=1", "changed=1", "mode=1", "gone=1", "d/gone/a=1", "d/gone/b/c=1", "moved=1", "old/a=1", "old/b/c=1", "old/b/d=1",
		"link->same", "kind=1", "turn/a=1", "again/a=1", "again/b=1")
	f.make(f.merged, "changed=22", "added=1", "new/dir/", "new/file=1", "new/link->../outside", "name\n\xff=1")
	require.NoError(t, os.Chmod(f.merged+"/mode", 0o600))
	f.remove(f.merged, "gone", "d/gone", "link", "kind", "turn", "again", "old/b/d")
	f.rename(f.merged, "moved", "new/moved")
	f.rename(f.merged, "old", "new/old")
	f.make(f.merged, "link->changed", "kind/a=1", "turn=1", "again/b=2", "again/c=1", "new/old/b/c=2")
	require.NoError(t, unix.Mkfifo(f.merged+"/fifo", 0o644))
	assert.Equal(t, []string{
		"added added", "removed again/a", "changed again/b", "added again/c", "changed changed", "removed d/gone", "removed d/gone/a",
		"removed d/gone/b", "removed d/gone/b/c", "added fifo", "removed gone", "removed kind", "added kind", "added kind/a",
		"changed link", "mode mode", "added name\n\xff", "added new", "added new/dir", "added new/file", "added new/link",
		"moved moved -> new/moved", "moved old -> new/old", "changed new/old/b/c", "removed old/b/d",
		"removed turn", "added turn", "removed turn/a",
	}, f.diff())
	want := tree(t, f.merged)
	r := f.commit(Options{})
	assert.Empty(t, r.Conflicts)
	assert.Len(t, r.Taken, 28)
	assert.Equal(t, want, tree(t, f.base))
	assert.Empty(t, f.diff())
	left, err := os.ReadDir(f.state + "/stage")
	require.NoError(t, err)
	assert.Empty(t, left)

	f.make(f.merged, "changed=333", "new/old/b/c=3")
	f.remove(f.merged, "again/c")
	assert.Equal(t, []string{"removed again/c", "changed changed", "changed new/old/b/c"}, f.diff())
	f.commit(Options{})
	assert.Equal(t, tree(t, f.merged), tree(t, f.base))
}

func TestConflicts(t *testing.T) {
	f := newFork(t, "both=1", "gone/a=1", "moved/a=1", "removed=1", "same=1", "mine=1")
	f.make(f.merged, "both=2", "too=2", "mine=2", "removed=2")
	f.remove(f.merged, "gone")
	f.rename(f.merged, "moved", "to")
	f.make(f.base, "both=3", "gone/b=3", "moved/a=3", "too=3", "same=3")
	f.remove(f.base, "removed")
	want := []string{"changed both ! " + whyChanged, "removed gone ! " + whyChanged, "removed gone/a", "removed gone/b ! " + whyChanged,
		"changed mine", "added removed ! " + whyGone, "moved moved -> to ! " + whyChanged, "changed too ! " + whyNew}
	assert.Equal(t, want, f.diff())
	before := tree(t, f.base)
	r := f.commit(Options{})
	assert.Len(t, r.Conflicts, 6)
	assert.Equal(t, before, tree(t, f.base))

	r = f.commit(Options{Conflicts: Ours})
	assert.Equal(t, []string{"removed gone/a", "changed mine"}, texts(r.Taken))
	r = f.commit(Options{Conflicts: Theirs})
	assert.Empty(t, r.Conflicts)
	assert.Empty(t, f.diff())
	assert.Equal(t, []string{`-rw-r--r-- "both" "2"`, `-rw-r--r-- "mine" "2"`, `-rw-r--r-- "removed" "2"`, `-rw-r--r-- "same" "3"`,
		`drwxr-xr-x "to" ""`, `-rw-r--r-- "to/a" "3"`, `-rw-r--r-- "too" "2"`}, tree(t, f.base))
}

// TestReplaced: the host replaces a file that the branch has changed. It is no file that the branch has added.
func TestReplaced(t *testing.T) {
	f := newFork(t, "replaced=1")
	f.make(f.merged, "replaced=2")
	f.make(f.base, "new=3")
	require.NoError(t, os.Rename(f.base+"/new", f.base+"/replaced"))
	want := []string{"changed replaced ! " + whyChanged}
	assert.Equal(t, want, f.diff())
	f.again()
	assert.Equal(t, want, f.diff())
	_, _, err := f.Discard(t.Context(), nil, "")
	require.NoError(t, err)
	assert.Empty(t, f.diff())
	assert.Equal(t, tree(t, f.base), tree(t, f.merged))
}

// TestTakenRemoved: another branch removes what this one has committed. It is no change of this one.
func TestTakenRemoved(t *testing.T) {
	f := newFork(t, "d/old=1")
	f.make(f.merged, "made/deep/f=1", "other/deep/f=1", "d/old=2")
	f.commit(Options{})
	require.NoError(t, os.RemoveAll(f.base+"/made"))
	require.NoError(t, os.RemoveAll(f.base+"/other"))
	assert.Empty(t, f.diff())
	f.make(f.merged, "made/deep/f=2")
	want := []string{"added made", "added made/deep", "added made/deep/f"}
	assert.Equal(t, want, f.diff())
	r := f.commit(Options{Conflicts: Theirs})
	assert.Empty(t, r.Conflicts)
	assert.Empty(t, f.diff())
	assert.Equal(t, []string{`drwxr-xr-x "made" ""`, `drwxr-xr-x "made/deep" ""`, `-rw-r--r-- "made/deep/f" "2"`}, tree(t, f.base)[2:])
}

func TestPaths(t *testing.T) {
	f := newFork(t, "a/1=1", "a/2=2", "b=1", "c/d/e=1")
	f.make(f.merged, "new/deep/file=1", "new/other=1", "b=2", "a/1=11")
	f.rename(f.merged, "a/2", "new/moved")
	f.rename(f.merged, "c/d", "new/d")
	f.remove(f.merged, "c")
	assert.Equal(t, []string{"added new", "added new/deep", "added new/deep/file"}, f.diff("new/deep/file"))
	assert.Equal(t, []string{"removed c", "added new", "moved c/d -> new/d"}, f.diff("c"), "with what is in it")
	r := f.commit(Options{Paths: []string{"**/file", "b"}})
	assert.Equal(t, []string{"changed b", "added new", "added new/deep", "added new/deep/file"}, texts(r.Taken))
	assert.Equal(t, []string{"changed a/1", "removed c", "moved c/d -> new/d", "moved a/2 -> new/moved", "added new/other"}, f.diff())
	_, err := f.Diff(t.Context(), []string{"["}, false)
	assert.ErrorContains(t, err, "bracket")
	f.make(f.base, "new/host=1")
	assert.NotContains(t, f.diff(), "removed new/host", "the host's file in a directory that a commit has made")
}

func TestRules(t *testing.T) {
	f := newFork(t, "dir/.env=1", "dir/a=1", "b=1", "protected=1")
	f.rename(f.merged, "dir", "to")
	f.make(f.merged, "b=2", "protected=2", "to/new=1")
	may := func(rel string) error {
		if filepath.Base(rel) == ".env" || rel == "protected" {
			return fmt.Errorf("%s: read", rel)
		}
		return nil
	}
	before := tree(t, f.base)
	r := f.commit(Options{May: may})
	assert.Equal(t, []string{"changed protected ! protected: read", "moved dir -> to ! dir/.env: read"}, texts(r.Conflicts))
	assert.Equal(t, before, tree(t, f.base))
	set, err := f.Diff(t.Context(), nil, true)
	require.NoError(t, err)
	r = f.commit(Options{May: may, Conflicts: Theirs, Hash: set.Hash})
	assert.Equal(t, []string{"changed b"}, texts(r.Taken))
	assert.Contains(t, texts(r.Conflicts), "added to/new ! needs to")
}

func TestHash(t *testing.T) {
	f := newFork(t, "a=1", "b=1", "dir/x=1")
	f.make(f.merged, "a=2")
	f.rename(f.merged, "dir", "to")
	hash := func() string {
		s, err := f.Diff(t.Context(), nil, true)
		require.NoError(t, err)
		return s.Hash
	}
	approved := hash()
	assert.Equal(t, approved, hash())
	before := tree(t, f.base)
	f.make(f.merged, "a=3")
	_, err := f.Commit(t.Context(), Options{Hash: approved})
	require.ErrorIs(t, err, ErrChanged, "another content of the same size")
	f.make(f.merged, "a=2")
	require.NoError(t, os.Chmod(f.merged+"/a", 0o755))
	_, err = f.Commit(t.Context(), Options{Hash: approved})
	require.ErrorIs(t, err, ErrChanged)
	require.NoError(t, os.Chmod(f.merged+"/a", 0o644))
	require.NoError(t, unix.Setxattr(f.merged+"/a", "user.note", []byte("1"), 0))
	_, err = f.Commit(t.Context(), Options{Hash: approved})
	require.ErrorIs(t, err, ErrChanged)
	require.NoError(t, unix.Removexattr(f.merged+"/a", "user.note"))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = f.Commit(ended, Options{Hash: approved})
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, before, tree(t, f.base))
	assert.Len(t, f.commit(Options{Hash: approved}).Taken, 2)
}

// TestCannot takes neither sockets nor files that cannot be read, and says so.
func TestCannot(t *testing.T) {
	f := newFork(t, "a=1")
	require.NoError(t, unix.Mknod(f.merged+"/socket", unix.S_IFSOCK|0o600, 0))
	require.NoError(t, unix.Mknod(f.state+"/upper/device", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	f.make(f.merged, "a=2")
	want := []string{"changed a", "added device ! cannot be taken: a socket or device", "added socket ! cannot be taken: a socket or device"}
	assert.Equal(t, want, f.diff())
	assert.Len(t, f.commit(Options{}).Conflicts, 2)
	assert.Len(t, f.commit(Options{Conflicts: Theirs}).Taken, 1)
	assert.Equal(t, want[1:], f.diff())
}

// TestLinkStaged: the text that a commit would take is judged, though a client changes it after the rules have let the path change.
func TestLinkStaged(t *testing.T) {
	f := newFork(t)
	f.make(f.merged, "l->in", "a=1")
	f.Link = func(rel, text string) error {
		if text == "out" {
			return fmt.Errorf("%s: out", rel)
		}
		return nil
	}
	may := func(rel string) error {
		if rel == "l" {
			f.remove(f.state+"/upper", "l")
			f.make(f.state+"/upper", "l->out")
		}
		return nil
	}
	assert.Equal(t, []string{"added l ! l: out"}, texts(f.commit(Options{May: may}).Conflicts))
	assert.Empty(t, tree(t, f.base))
	assert.Equal(t, []string{"added a"}, texts(f.commit(Options{May: may, Conflicts: Theirs}).Taken))
	assert.Equal(t, []string{`-rw-r--r-- "a" "1"`}, tree(t, f.base))
}

// TestUnreadable commits as an ordinary user what that user has made unreadable or unwritable. It gets its mode back.
func TestUnreadable(t *testing.T) {
	if os.Getenv("BRANCH_OF") == "" {
		f := newFork(t, "ro/file=1", "ro/dir/file=1", "moved/file=1", "shut/old=1", "written=1", "mode=1")
		require.NoError(t, os.Chmod(f.base+"/ro", 0o500))
		require.NoError(t, os.Chmod(f.base+"/ro/dir", 0o500))
		require.NoError(t, os.Chmod(f.base+"/moved", 0o500))
		f.remove(f.merged, "ro")
		f.rename(f.merged, "moved", "to")
		f.make(f.merged, "new/file=1", "secret/file=1", "unreadable=1")
		require.NoError(t, os.Chmod(f.merged+"/new", 0o500))
		require.NoError(t, os.Chmod(f.merged+"/secret", 0))
		require.NoError(t, os.Chmod(f.merged+"/unreadable", 0))
		f.make(f.merged, "secret/in/file=1", "shut/new=1", "written=2")
		require.NoError(t, os.Chmod(f.merged+"/secret/in", 0))
		require.NoError(t, os.Chmod(f.merged+"/shut", 0o200))
		require.NoError(t, os.Chmod(f.merged+"/written", 0o200))
		require.NoError(t, os.Chmod(f.merged+"/mode", 0o200))
		chown(t, filepath.Dir(f.base))
		f.Close()
		child := exec.Command(os.Args[0], "-test.run=^TestUnreadable$")
		child.Env = append(os.Environ(), "BRANCH_OF="+filepath.Dir(f.base))
		out, err := child.CombinedOutput()
		require.NoError(t, err, "%s", out)
		f.frozen()()
		f.open()
		want := []string{
			`--w------- "mode" "1"`, `dr-x------ "new" ""`, `-rw-r--r-- "new/file" "1"`,
			`d--------- "secret" ""`, `-rw-r--r-- "secret/file" "1"`, `d--------- "secret/in" ""`, `-rw-r--r-- "secret/in/file" "1"`,
			`d-w------- "shut" ""`, `-rw-r--r-- "shut/new" "1"`, `-rw-r--r-- "shut/old" "1"`,
			`dr-x------ "to" ""`, `-rw-r--r-- "to/file" "1"`, `---------- "unreadable" "1"`, `--w------- "written" "2"`,
		}
		assert.Equal(t, want, tree(t, f.base))
		assert.Equal(t, want, tree(t, f.merged))
		return
	}
	b := childBranch(t)
	set, err := b.Diff(t.Context(), nil, true)
	require.NoError(t, err)
	assert.Len(t, set.Entries, 16)
	r, err := b.Commit(t.Context(), Options{Hash: set.Hash})
	require.NoError(t, err)
	assert.Empty(t, texts(r.Conflicts))
	set, err = b.Diff(t.Context(), nil, false)
	require.NoError(t, err)
	assert.Empty(t, texts(set.Entries))
}

// TestDiscardUnreadable discards as an ordinary user what that user has made unreadable.
func TestDiscardUnreadable(t *testing.T) {
	if os.Getenv("BRANCH_OF") == "" {
		f := newFork(t, "dir/in/file=1", "written=1", "host/file=1")
		f.make(f.merged, "dir/in/file=2", "dir/new=1", "written=2", "secret/in/file=1")
		require.NoError(t, os.Chmod(f.base+"/dir", 0o500))
		for _, name := range []string{"dir/in", "dir", "written", "secret/in", "secret"} {
			require.NoError(t, os.Chmod(f.merged+"/"+name, 0))
		}
		chown(t, filepath.Dir(f.base))
		before := tree(t, f.base)
		f.Close()
		child := exec.Command(os.Args[0], "-test.run=^TestDiscardUnreadable$")
		child.Env = append(os.Environ(), "BRANCH_OF="+filepath.Dir(f.base))
		out, err := child.CombinedOutput()
		require.NoError(t, err, "%s", out)
		f.frozen()()
		f.open()
		assert.Equal(t, before, tree(t, f.base))
		assert.Equal(t, before, tree(t, f.merged))
		return
	}
	b := childBranch(t)
	set, err := b.Diff(t.Context(), nil, true)
	require.NoError(t, err)
	_, _, err = b.Discard(t.Context(), nil, set.Hash)
	require.NoError(t, err)
}

// TestDiscardClosed: a directory that nobody may read, and one that is too deep to be compared, can be discarded.
func TestDiscardClosed(t *testing.T) {
	f := newFork(t, "a=1")
	f.make(f.merged, "closed/x/y=1")
	require.NoError(t, os.Mkdir(f.merged+"/deep", 0o755))
	at, err := os.OpenRoot(f.merged + "/deep")
	require.NoError(t, err)
	for range maxDepth + 20 {
		require.NoError(t, at.Mkdir("d", 0o755))
		next, err := at.OpenRoot("d")
		require.NoError(t, err)
		at.Close()
		at = next
	}
	at.Close()
	set, err := f.Diff(t.Context(), nil, false)
	require.NoError(t, err)
	require.Len(t, set.Entries, 3+1+maxDepth)
	assert.Contains(t, set.Entries[len(set.Entries)-1].Conflict, errDeep.Error())
	_, _, err = f.Discard(t.Context(), nil, "")
	require.NoError(t, err)
	assert.Empty(t, f.diff())
	assert.Equal(t, []string{`-rw-r--r-- "a" "1"`}, tree(t, f.merged))
}

// TestCommitOpen: a file that a client has open for writing or mapped stays in the branch after a commit, with what the client writes then.
// When nobody can write it, the next commit lets the branch show Base.
func TestCommitOpen(t *testing.T) {
	f := newFork(t, "open=1", "mapped=1")
	open, err := os.OpenFile(f.merged+"/open", os.O_RDWR, 0)
	require.NoError(t, err)
	defer open.Close()
	_, err = open.WriteAt([]byte("2"), 0)
	require.NoError(t, err)
	mapped, err := os.OpenFile(f.merged+"/mapped", os.O_RDWR, 0)
	require.NoError(t, err)
	memory, err := unix.Mmap(int(mapped.Fd()), 0, 1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	memory[0] = '2'
	require.NoError(t, mapped.Close())
	assert.Len(t, f.commit(Options{}).Taken, 2)
	assert.Equal(t, []string{`-rw-r--r-- "mapped" "2"`, `-rw-r--r-- "open" "2"`}, tree(t, f.base))
	assert.Empty(t, f.diff())

	_, err = open.WriteAt([]byte("3"), 0)
	require.NoError(t, err)
	memory[0] = '3'
	require.NoError(t, unix.Msync(memory, unix.MS_SYNC))
	want := []string{`-rw-r--r-- "mapped" "3"`, `-rw-r--r-- "open" "3"`}
	assert.Equal(t, want, tree(t, f.merged))
	assert.Equal(t, []string{"changed mapped", "changed open"}, f.diff())
	require.NoError(t, open.Close())
	require.NoError(t, unix.Munmap(memory))
	require.Eventually(t, func() bool {
		f.commit(Options{})
		left, err := os.ReadDir(f.state + "/upper")
		return err == nil && len(left) == 0
	}, time.Minute, 10*time.Millisecond, "the view closes a file after its last client")
	assert.Equal(t, want, tree(t, f.base))
	f.make(f.base, "open=host")
	require.Eventually(t, func() bool { return f.read(f.merged+"/open") == "host" }, time.Minute, time.Millisecond)
}

// TestCommitWithin: a client that works in a new directory goes on there after a commit, and sees what the host adds.
func TestCommitWithin(t *testing.T) {
	f := newFork(t)
	f.make(f.merged, "new/deep/f=1")
	within, err := os.OpenRoot(f.merged + "/new/deep")
	require.NoError(t, err)
	defer within.Close()
	f.commit(Options{})
	require.NoError(t, within.WriteFile("g", []byte("2"), 0o644))
	_, err = within.Stat(".")
	require.NoError(t, err)
	assert.Equal(t, []string{"added new/deep/g"}, f.diff())
	f.make(f.base, "new/deep/host=1")
	require.Eventually(t, func() bool { _, err := within.Stat("host"); return err == nil }, time.Minute, time.Millisecond)
}

// TestCommitMadeAnew: a directory that the client has removed and made anew stays when a commit takes something else.
func TestCommitMadeAnew(t *testing.T) {
	f := newFork(t, "d/f=1", "empty/e=1", "other=1")
	f.remove(f.base, "empty/e")
	f.remove(f.merged, "d", "empty")
	require.NoError(t, os.Mkdir(f.merged+"/d", 0o755))
	require.NoError(t, os.Mkdir(f.merged+"/empty", 0o755))
	f.make(f.merged, "other=2")
	assert.Equal(t, []string{"changed other"}, texts(f.commit(Options{Paths: []string{"other"}}).Taken))
	assert.Equal(t, []string{"removed d/f"}, f.diff())
	assert.DirExists(t, f.merged+"/d")
	assert.DirExists(t, f.merged+"/empty")
	f.commit(Options{})
	assert.Empty(t, f.diff())
	assert.Equal(t, tree(t, f.base), tree(t, f.merged))
}

// TestMadeAnew commits and discards directories that clients have made where others were: no record hides what Base has there then.
func TestMadeAnew(t *testing.T) {
	for name, c := range map[string]struct {
		base, moves []string // moves are "from > to", and directories that are made anew
		discard     []string
	}{
		"a file moves into the directory in its place": {[]string{"f=1"}, []string{"f > g", "f", "g > f/c"}, nil},
		"within a directory that moves":                {[]string{"d/", "e/a=1"}, []string{"e > d/b", "d/b/a > d/b/x", "d/b/a", "d/b/x > d/b/a/f"}, nil},
		"equal":                                        {[]string{"e/d/", "f=1"}, []string{"e/d", "f > g"}, nil},
		"another mode":                                 {[]string{"c/", "f=1"}, []string{"c", "f > g"}, []string{"c"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFork(t, c.base...)
			if len(c.discard) > 0 {
				require.NoError(t, os.Chmod(f.base+"/c", 0o711))
			}
			for _, move := range c.moves {
				if from, to, ok := strings.Cut(move, " > "); ok {
					f.rename(f.merged, from, to)
				} else {
					f.remove(f.merged, move)
					require.NoError(t, os.Mkdir(f.merged+"/"+move, 0o755))
				}
			}
			if len(c.discard) > 0 {
				want := tree(t, f.base)
				_, _, err := f.Discard(t.Context(), c.discard, "")
				require.NoError(t, err)
				assert.Equal(t, []string{"moved f -> g"}, f.diff())
				f.rename(f.merged, "g", "f")
				requireMerged(t, want, f.merged)
				return
			}
			want := tree(t, f.merged)
			require.Empty(t, texts(f.commit(Options{}).Conflicts))
			assert.Equal(t, want, tree(t, f.base))
			assert.Empty(t, f.diff())
			requireMerged(t, want, f.merged)
		})
	}
}
