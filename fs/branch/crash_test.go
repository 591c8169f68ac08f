package branch

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/internal/need"
)

// nobody owns what the child of TestKill commits: an ordinary user.
const nobody = 65534

// TestKill kills a process that commits, at random moments and before each step: the directory is as before
// then, or Resume makes it as the branch is.
func TestKill(t *testing.T) {
	need.Once(t)
	rounds, old := need.Rounds("SCOPEFS_TEST_BRANCH_KILLS", 30, 100), 0
	random := rand.New(rand.NewPCG(1, 2))
	longest := 50 * time.Millisecond
	resumed := 0
	for round := range rounds {
		f := newFork(t, "a/1=1", "a/b/2=2", "a/b/3=3", "gone/1=1", "gone/2/3=3", "c=1", "d=2", "e/1=1", "f=1")
		chown(t, filepath.Dir(f.base))
		f.rename(f.merged, "a", "new")
		f.make(f.merged, "new/b/2=22", "c=11", "x/y/z=1", "link->c")
		f.remove(f.merged, "gone", "new/b/3", "d")
		f.rename(f.merged, "e", "x/e")
		require.NoError(t, os.Chmod(f.merged+"/f", 0o600))
		for i := range 20 {
			f.make(f.merged, fmt.Sprintf("x/%d=%d", i, i))
		}
		chown(t, f.merged)
		before, want := tree(t, f.base), tree(t, f.merged)
		f.Close()

		child := exec.Command(os.Args[0], "-test.run=^TestKillChild$")
		child.Env = append(os.Environ(), "BRANCH_OF="+filepath.Dir(f.base))
		if round%2 == 1 {
			child.Env = append(child.Env, fmt.Sprint("BRANCH_STEP=", round/2))
		}
		child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		began := time.Now()
		require.NoError(t, child.Start())
		if round%2 == 0 {
			time.Sleep(time.Duration(random.Int64N(int64(longest)))) // at a random moment of its life
			_ = child.Process.Kill()
		}
		if err := child.Wait(); err == nil {
			longest = max(longest, time.Since(began))
		} else {
			require.Equal(t, "signal: killed", err.Error())
		}

		f.open()
		r, err := f.Resume()
		require.NoError(t, err)
		if r != nil {
			resumed++
			require.Empty(t, texts(r.Conflicts))
		}
		if now := tree(t, f.base); fmt.Sprint(now) == fmt.Sprint(before) {
			old++
			require.Empty(t, texts(f.commit(Options{}).Conflicts))
		}
		require.Equal(t, want, tree(t, f.base))
		f.again()
		require.Equal(t, want, tree(t, f.merged))
		require.Empty(t, f.diff())
	}
	t.Logf("%d of %d were killed before the intent, %d after", old, rounds, resumed)
}

// chown gives everything to nobody.
func chown(t *testing.T, dir string) {
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, nobody, nobody)
	}))
}

// TestKillChild is the process that TestKill kills.
func TestKillChild(t *testing.T) {
	if os.Getenv("BRANCH_OF") == "" {
		return
	}
	kill := func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }
	after, later := os.LookupEnv("BRANCH_AFTER")
	opt := Options{Progress: func(done, _ int) {
		if os.Getenv("BRANCH_STEP") == fmt.Sprint(done) {
			kill()
		}
		if wait, err := time.ParseDuration(after); later && err == nil {
			later = false
			time.AfterFunc(wait, kill)
		}
	}}
	if text, ok := os.LookupEnv("BRANCH_OPTIONS"); ok {
		layers := openLayers(t, os.Getenv("BRANCH_OF"))
		b, err := Open(Roots{Layers: layers})
		require.NoError(t, err)
		var o killedOptions
		require.NoError(t, json.Unmarshal([]byte(text), &o))
		opt.Paths, opt.Conflicts = o.Paths, o.Conflicts
		_, err = b.Commit(context.Background(), opt)
		require.NoError(t, err)
		return
	}
	result, err := childBranch(t).Commit(context.Background(), opt)
	require.NoError(t, err)
	require.Empty(t, texts(result.Conflicts))
}

// commitKilled is commit in a process that is killed before a step, or some time after the first one, and Resume.
func (f *fork) commitKilled(random *rand.Rand, opt Options) *Result {
	f.Helper()
	f.Close()
	f.tell("freeze")
	child := exec.Command(os.Args[0], "-test.run=^TestKillChild$")
	when := fmt.Sprint("BRANCH_STEP=", random.IntN(8))
	if random.IntN(2) == 0 {
		when = fmt.Sprint("BRANCH_AFTER=", time.Duration(random.IntN(4000))*time.Microsecond)
	}
	options, err := json.Marshal(killedOptions{opt.Paths, opt.Conflicts})
	require.NoError(f, err)
	child.Env = append(os.Environ(), "BRANCH_OF="+filepath.Dir(f.base), "BRANCH_OPTIONS="+string(options), when)
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if out, err := child.CombinedOutput(); err != nil {
		require.Equal(f, "signal: killed", err.Error(), "%s", out)
	}
	f.open()
	r, err := f.Branch.Resume()
	f.tell("thaw")
	require.NoError(f, err)
	if r == nil { // it has ended, or not begun
		r = f.commit(opt)
	}
	return r
}

// killedOptions are those of commitKilled.
type killedOptions struct {
	Paths     []string
	Conflicts Conflicts
}

// childBranch opens the branch that the environment names, as an ordinary user.
func childBranch(t *testing.T) *Branch {
	top := os.Getenv("BRANCH_OF")
	layers := openLayers(t, top)
	require.NoError(t, syscall.Setgroups(nil))
	require.NoError(t, syscall.Setgid(nobody))
	require.NoError(t, syscall.Setuid(nobody))
	b, err := Open(Roots{Layers: layers})
	require.NoError(t, err)
	return b
}

// TestHostMeanwhile changes Base after the plan, before the first step: nothing of it is lost.
func TestHostMeanwhile(t *testing.T) {
	f := newFork(t, "removed=1", "replaced=1", "changed=1", "dir/a=1", "moved/a=1", "full/a=1", "mode=1", "gone/a=1", "linked/a=1", "kept=1")
	f.remove(f.merged, "removed", "dir", "full")
	f.make(f.merged, "changed=2", "replaced=2", "added=2", "made/a=2", "gone/a=2", "linked/a=2", "kept=2", "own/a=2")
	f.rename(f.merged, "moved", "to")
	require.NoError(t, os.Chmod(f.merged+"/mode", 0o600))
	outside := t.TempDir()
	f.make(outside, "a=outside")
	r := f.commit(Options{Progress: func(done, total int) {
		if done > 0 {
			return
		}
		f.make(f.base, "removed=host", "changed=host", "new=host", "added=host", "full/host=host", "to/host=host", "made=host", "own/")
		f.rename(f.base, "new", "replaced")
		f.remove(f.base, "gone")
		f.rename(f.base, "linked", "elsewhere")
		f.make(f.base, "linked->"+outside)
	}})
	assert.ElementsMatch(t, []string{"removed removed ! " + whyChanged, "changed replaced ! " + whyChanged, "changed changed ! " + whyChanged,
		"removed full ! has files of others", "moved moved -> to ! " + whyToo, "added added ! " + whyToo, "added made ! " + whyToo,
		"added made/a ! needs made", "changed gone/a ! " + whyGone, "changed linked/a ! " + whyGone,
		"added own ! " + whyToo, "added own/a ! needs own"}, texts(r.Conflicts))
	assert.Equal(t, []string{`-rw-r--r-- "added" "host"`, `-rw-r--r-- "changed" "host"`, `drwxr-xr-x "elsewhere" ""`,
		`-rw-r--r-- "elsewhere/a" "1"`,
		`drwxr-xr-x "full" ""`, `-rw-r--r-- "full/host" "host"`, `-rw-r--r-- "kept" "2"`, fmt.Sprintf("Lrwxrwxrwx %q %q", "linked", outside),
		`-rw-r--r-- "made" "host"`, `-rw------- "mode" "1"`, `drwxr-xr-x "moved" ""`, `-rw-r--r-- "moved/a" "1"`, `drwxr-xr-x "own" ""`,
		`-rw-r--r-- "removed" "host"`,
		`-rw-r--r-- "replaced" "host"`, `drwxr-xr-x "to" ""`, `-rw-r--r-- "to/host" "host"`}, tree(t, f.base))
	assert.Equal(t, []string{`-rw-r--r-- "a" "outside"`}, tree(t, outside))
}

// TestRace replaces a file of Base all the time while commits take it: each version comes out again, but those that the
// commits have planned to replace. One that a commit has taken out by mistake may come out later than the next one, which is then beside.
func TestRace(t *testing.T) {
	f := newFork(t, "hot=x")
	hot, spare := f.base+"/hot", f.state+"/spare"
	stop, planned, lost := make(chan struct{}), make(chan map[int64]bool), make(chan map[int64]bool)
	go func() {
		missing := map[int64]bool{}
		defer func() { lost <- missing }()
		previous := int64(1)
		for n := int64(1000); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if os.WriteFile(spare, make([]byte, n), 0o644) != nil || exchange(spare, hot) != nil {
				continue
			}
			info, err := os.Stat(spare)
			if missing[previous] = true; err == nil {
				delete(missing, info.Size())
			}
			previous = n
			time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond) // now and then a commit finishes
		}
	}()
	go func() {
		taken := map[int64]bool{}
		defer func() { close(stop); planned <- taken }()
		for i := range 200 {
			if os.WriteFile(f.merged+"/hot", make([]byte, 1+i%7), 0o644) != nil {
				return
			}
			r, err := f.Commit(context.Background(), Options{Conflicts: Theirs})
			if err != nil {
				t.Error(err)
				return
			}
			for _, e := range r.Taken {
				taken[e.OldSize] = true
			}
		}
	}()
	missing := <-lost
	taken := <-planned
	beside, err := filepath.Glob(hot + ".newer*")
	require.NoError(t, err)
	for _, path := range beside {
		info, err := os.Stat(path)
		require.NoError(t, err)
		taken[info.Size()] = true
	}
	if info, err := os.Stat(hot); err == nil {
		taken[info.Size()] = true
	}
	for size := range missing {
		assert.True(t, taken[size], "the version of %d bytes is lost", size)
	}
	t.Logf("%d versions replaced by commits, %d of them beside", len(missing), len(beside))
}

// TestPutBack resumes commits that were killed right after they had taken a version out that is not the one of the plan.
func TestPutBack(t *testing.T) {
	for name, occupied := range map[string]bool{"free": false, "occupied": true} {
		t.Run(name, func(t *testing.T) {
			f := newFork(t, "removed=1", "changed=1")
			f.remove(f.merged, "removed")
			f.make(f.merged, "changed=2")
			require.NoError(f, f.layers.Load())
			d, err := f.differ(t.Context())
			require.NoError(t, err)
			staged, err := f.stageAll(t.Context(), d.entries, make([]bool, 2), false)
			require.NoError(t, err)
			in := d.intent(d.entries, make([]bool, 2), staged)
			x, err := f.intend(t.Context(), in, d.entries)
			require.NoError(t, err)
			x.j.Close()
			f.make(f.base, "removed=host", "changed=host")
			for _, s := range in.steps {
				from, to := filepath.Join(f.base, s.Path()), filepath.Join(f.state, s.To.Rel())
				if s.Do == plan.Exchange {
					require.NoError(t, exchange(from, to))
				} else {
					require.NoError(t, os.Rename(from, to))
				}
			}
			want := []string{`-rw-r--r-- "changed" "host"`, `-rw-r--r-- "removed" "host"`}
			if occupied {
				f.make(f.base, "newest=newest", "removed=newest")
				f.rename(f.base, "newest", "changed")
				want = []string{`-rw-r--r-- "changed" "host"`, `-rw-r--r-- "changed.newer1" "newest"`, `-rw-r--r-- "removed" "newest"`,
					`-rw-r--r-- "removed.newer1" "host"`}
			}
			f.Close()
			f.open()
			r, err := f.Resume()
			require.NoError(t, err)
			assert.Len(t, r.Conflicts, 2)
			assert.Equal(t, want, tree(t, f.base))
		})
	}
}

// TestKillUnlinked: a process is killed after it has unlinked what a commit took out, and before it has noted that this changed another name
// of the file: that is no change by the host.
func TestKillUnlinked(t *testing.T) {
	f := newFork(t, "a=1", "d/b=2")
	require.NoError(t, os.Link(f.base+"/a", f.base+"/d/other"))
	thaw := f.frozen()
	require.NoError(t, f.renew())
	thaw()
	f.remove(f.merged, "a")
	f.rename(f.merged, "d", "e")
	thaw = f.frozen()
	defer thaw()
	d, err := f.differ(t.Context())
	require.NoError(t, err)
	left := []bool{false, true} // removed a, moved d
	staged, err := f.stageAll(t.Context(), d.entries, left, false)
	require.NoError(t, err)
	x, err := f.intend(t.Context(), d.intent(d.entries, left, staged), d.entries)
	require.NoError(t, err)
	require.NoError(t, x.j.Run(t.Context(), plan.Runner{Tree: f.Base, Stage: f.State, Fatal: fatal}))
	_, err = x.unlinkOld()
	require.NoError(t, err)
	x.j.Close()
	f.Close()
	f.open()
	r, err := f.Branch.Resume()
	require.NoError(t, err)
	require.Equal(t, []string{"changed a"}, texts(r.Taken)) // what Resume knows of it
	s, err := f.Branch.Diff(t.Context(), nil, false)
	require.NoError(t, err)
	require.Equal(t, []string{"moved d -> e"}, texts(s.Entries))
}

// TestResumeHostMeanwhile: the host changes what a commit has brought, after the commit was interrupted and before Resume. That is a change
// since the fork: the branch's version does not replace it unasked.
func TestResumeHostMeanwhile(t *testing.T) {
	for name, test := range map[string]struct{ before, branch string }{
		"replaced": {"a=1", "a=22"},
		"added":    {"other=1", "a=22"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFork(t, test.before)
			f.make(f.merged, test.branch)
			f.Close()
			f.tell("freeze")
			child := exec.Command(os.Args[0], "-test.run=^TestKillChild$")
			child.Env = append(os.Environ(), "BRANCH_OF="+filepath.Dir(f.base), "BRANCH_OPTIONS={}", "BRANCH_STEP=1")
			out, err := child.CombinedOutput()
			require.ErrorContains(t, err, "signal: killed", "%s", out)
			require.Equal(t, "22", read(t, f.base+"/a"), "the step is done, and the commit has not ended")
			f.make(f.base, "a=of the host")
			f.open()
			_, err = f.Branch.Resume()
			f.tell("thaw")
			require.NoError(t, err)
			r := f.commit(Options{})
			assert.NotEmpty(t, texts(r.Conflicts))
			assert.Equal(t, "of the host", read(t, f.base+"/a"))
		})
	}
}
