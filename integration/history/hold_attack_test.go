package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/need"
)

// answering returns the processes that answer about an agent's held changes. The host has one agent.
func (k *keeper) answering() []int {
	return slices.DeleteFunc(harness.ChildrenOf(k.Cmd.Process.Pid, "scopefs-view"), func(pid int) bool { return pid == k.ViewPID("a") })
}

// asking requests the held changes all the time, so that the process that answers is never idle.
func (k *keeper) asking() (end func()) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = k.client.HeldOf("a").Diff(context.Background(), nil, false)
			}
		}
	}()
	return func() {
		close(stop)
		<-ended
	}
}

// within calls f, which must return within a time.
func within(t *testing.T, most time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(most):
		require.Fail(t, what+" did not return")
	}
}

// TestHoldKilledCommit kills the process that commits, or the daemon, at random moments: each path of the directory is as
// before or as the agent had it, a repeated commit takes the rest, and then the agent sees what the host writes.
func TestHoldKilledCommit(t *testing.T) {
	need.Once(t)
	h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf(holdRules, "direct")})
	dir := h.Scope("a")
	for i := range 12 {
		harness.Plant(t, dir, fmt.Sprintf(".dot/f%d=old", i), fmt.Sprintf(".dot/gone%d=old", i))
	}
	k := started(h)
	r := rand.New(rand.NewPCG(uint64(rounds("SCOPEFS_TEST_HISTORY_FIRST", 0)), 11))
	finished := 0
	for round := range rounds("SCOPEFS_TEST_HISTORY_CRASHES", 6) {
		text := fmt.Sprint("new", round)
		k.run("a", fmt.Sprintf(`cd .dot; for i in $(seq 0 11); do echo -n %s >f$i; rm gone$i; done; mkdir -p d%d; echo -n %s >d%d/x`, text, round, text, round))
		want := harness.Dumped(t, k.View("a"), 0)
		done := make(chan error, 1)
		go func() {
			_, err := k.client.HeldOf("a").Commit(context.Background(), api.CommitOptions{})
			done <- err
		}()
		if round%3 == 2 {
			time.Sleep(time.Duration(r.IntN(120)) * time.Millisecond)
			k.Kill()
			<-done
			k.Start()
		} else {
			k.Eventually("a process commits", func() bool { return len(done) > 0 || len(k.answering()) > 0 })
			time.Sleep(time.Duration(r.IntN(60)) * time.Millisecond)
			for _, pid := range k.answering() {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			if <-done == nil {
				finished++
			}
		}
		for i := range 12 {
			assert.Contains(t, []string{"old", text, fmt.Sprint("new", round-1)}, read(t, fmt.Sprintf("%s/.dot/f%d", dir, i)))
		}
		k.take("a", api.CommitOptions{})
		harness.SameTrees(t, want, harness.Dumped(t, dir, 0), "the directory")
		assert.Empty(t, k.ruled("a"))
		for i := range 12 { // what is committed is the host's again
			harness.Plant(t, dir, fmt.Sprintf(".dot/gone%d=old", i))
		}
		require.NoError(t, os.WriteFile(dir+"/.dot/f0", []byte("old"), 0o644))
		k.Must("up", "a")
		k.Eventually("the view shows the host's files", func() bool {
			return read(t, k.View("a", ".dot/f0")) == "old" && len(picture(k.View("a", ".dot"))) == len(picture(dir+"/.dot"))
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d commits ended before the kill", finished)
}

func picture(dir string) []os.DirEntry {
	all, _ := os.ReadDir(dir)
	return all
}

// TestHoldStopped: the agent's user stops the process that answers the operator. The request ends with an error, the agent's
// programs go on, and the next request works.
func TestHoldStopped(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf(holdRules, "direct")})
	harness.Plant(t, h.Scope("a"), ".dot/f=old")
	k := started(h)
	k.run("a", "echo new >.dot/f")
	end := k.asking()
	k.Eventually("a process answers, and is stopped", func() bool {
		return slices.ContainsFunc(k.answering(), func(pid int) bool { return unix.Kill(pid, unix.SIGSTOP) == nil })
	})
	within(t, k.Timeout/2, "the request", end)
	within(t, k.Timeout/2, "the agent", func() { k.run("a", "echo newer >.dot/f") })
	assert.Empty(t, k.take("a", api.CommitOptions{}).Conflicts)
	assert.Equal(t, "newer\n", read(t, h.Scope("a", ".dot/f")))
}

// TestHoldFrozen: a process has the held versions open for the operator, and the agent's view is mounted meanwhile. The view does
// not change them.
func TestHoldFrozen(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf(holdRules, "direct")})
	harness.Plant(t, h.Scope("a"), ".dot/f=old")
	k := started(h)
	k.run("a", "echo new >.dot/f")
	made := func() error { return os.WriteFile(k.View("a", ".dot", "made"), nil, 0o644) }
	k.Must("down", "a")
	used, err := os.OpenFile(filepath.Join(h.Base, "history", "a", "hold", "used"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer used.Close()
	k.Eventually("the process of the view has ended", func() bool { // as fs/branch.Use does
		return unix.Flock(int(used.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	})
	k.Must("up", "a")
	assert.Error(t, made())
	assert.Equal(t, "old", read(t, h.Scope("a", ".dot/f")))
	require.NoError(t, used.Close())
	k.Must("down", "a")
	k.Must("up", "a")
	assert.NoError(t, made())
	assert.NoFileExists(t, h.Scope("a", ".dot", "made"))
}

// TestHoldStubborn: an agent makes directories that nobody may write to. Commits and discards work all the same.
func TestHoldStubborn(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf(holdRules, "direct")})
	dir := h.Scope("a")
	harness.Plant(t, dir, ".dot/f=old", ".dot/g=old")
	require.NoError(t, filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(name, 4711, 4711))
	}))
	k := started(h)
	k.run("a", `echo new >.dot/f; mkdir -p .dot/d/e; echo x >.dot/d/e/x; chmod 0 .dot/d/e/x; chmod 0555 .dot/d/e .dot/d .dot`)
	n, err := k.client.HeldOf("a").Discard(t.Context(), []string{".dot/d/**"}, "")
	assert.NoError(t, err)
	assert.Positive(t, n)
	k.run("a", `test "$(cat .dot/f)" = new; ! test -e .dot/d/e/x; chmod 755 .dot; mkdir -p .dot/closed/x; echo x >.dot/closed/x/x; chmod 0 .dot/closed/x .dot/closed`)
	assert.Len(t, k.ruled("a"), 4, "what its owner may not read is listed with its content")
	_, err = k.client.HeldOf("a").Discard(t.Context(), []string{".dot/closed"}, "")
	assert.NoError(t, err)
	k.run("a", "! test -e .dot/closed")
	assert.Empty(t, k.take("a", api.CommitOptions{}).Conflicts)
	assert.Equal(t, "new\n", read(t, dir+"/.dot/f"))
	assert.Empty(t, k.ruled("a"))
	require.NoError(t, os.WriteFile(dir+"/.dot/f", []byte("host"), 0))
	k.Eventually("the view shows the host's file", func() bool { return k.run("a", "cat .dot/f") == "host" })
}

// TestHoldForged: what the agent's user puts in the place of the held versions makes root's daemon change nothing outside, and
// ends no daemon.
func TestHoldForged(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf(holdRules, "direct")})
	dir := h.Scope("a")
	harness.Plant(t, dir, ".dot/f=old")
	harness.Plant(t, h.Base, "outside/secret=secret", "outside/d/x=x")
	require.NoError(t, os.Chmod(h.Base+"/outside", 0o711))
	for _, name := range []string{"", "/.dot", "/.dot/f"} {
		require.NoError(t, os.Lchown(dir+name, 4711, 4711))
	}
	before := harness.Dumped(t, h.Base+"/outside", harness.Times)
	k := started(h)
	held := k.Base + "/history/a/hold"
	for _, name := range []string{"upper", "work", "merged", "stage", "stamp", "taken", "bases", "used", "intent", ""} {
		for kind, forge := range map[string]string{
			"link": "ln -s %[2]s/secret %[1]s",
			"file": "echo '{\"steps\":[{\"do\":\"take\",\"path\":\"Li4vLi4vb3V0c2lkZS9zZWNyZXQ=\",\"stage\":\"r0\"}]}' >%[1]s",
		} {
			k.run("a", "echo new >.dot/f")
			k.Must("down", "a")
			k.Eventually("nobody has it open", func() bool { return len(k.answering()) == 0 })
			at := strings.TrimSuffix(held+"/"+name, "/")
			cmd := harness.Setpriv(4711, "sh", "-c", fmt.Sprintf("rm -rf %[1]s; "+forge, at, k.Base+"/outside"))
			_, _ = exec.Command(cmd[0], cmd[1:]...).CombinedOutput()
			within(t, k.Timeout/3, "diff of "+name+" "+kind, func() { _, _ = k.client.HeldOf("a").Diff(t.Context(), nil, false) })
			within(t, k.Timeout/3, "commit of "+name+" "+kind, func() { _, _ = k.client.HeldOf("a").Commit(t.Context(), api.CommitOptions{}) })
			within(t, k.Timeout/3, "up of "+name+" "+kind, func() { _, _, _ = k.Try("run", "a", "--", "sh", "-c", "echo newer >.dot/f") })
			assert.Equal(t, before, harness.Dumped(t, h.Base+"/outside", harness.Times), "%s %s", name, kind)
			_, _, _ = k.Try("down", "a")
			require.NoError(t, os.RemoveAll(held))
		}
	}
	k.run("a", "echo last >.dot/f")
	assert.Equal(t, []string{"changed .dot/f"}, k.ruled("a"))
}

// TestHoldReloadOpen: rules begin and cease to hold paths while programs have them open, in all orders. No content of a time in
// which a path was held comes to the directory.
func TestHoldReloadOpen(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": `view: {data: mediated, paths: {"other": hold}}`})
	dir := h.Scope("a")
	harness.Plant(t, dir, "sub/f=old", "sub/g=old")
	k := started(h)
	k.Must("up", "a")
	view := k.View("a")
	rule := func(holds bool) {
		front := `view: {data: mediated, paths: {"other": hold}}`
		if holds {
			front = `view: {data: mediated, paths: {"other": hold, "sub": hold}}`
		}
		h.Define("a", front)
		k.Must("reload")
	}
	opened := func(name string) *os.File {
		f, err := os.OpenFile(view+"/"+name, os.O_RDWR|os.O_APPEND, 0)
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	before := opened("sub/f")
	at, err := os.Open(view + "/sub")
	require.NoError(t, err)
	defer at.Close()
	rule(true)
	_, err = before.WriteString("evil")
	assert.Error(t, err)
	held := opened("sub/f")
	_, err = held.WriteString("+held")
	require.NoError(t, err)
	for _, name := range []string{"made", "g"} { // by a directory that was open before
		fd, err := unix.Openat(int(at.Fd()), name, unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC, 0o644)
		require.NoError(t, err)
		_, err = unix.Write(fd, []byte("evil"))
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
	}
	unchanged := func() {
		t.Helper()
		assert.Equal(t, "old", read(t, dir+"/sub/f"))
		assert.Equal(t, "old", read(t, dir+"/sub/g"))
		assert.NoFileExists(t, dir+"/sub/made")
	}
	unchanged()
	rule(false)
	_, _ = held.WriteString("+later")
	_, _ = before.WriteString("")
	unchanged()
	assert.Equal(t, "old", read(t, view+"/sub/f"))
	assert.NoFileExists(t, view+"/sub/made")
	rule(true)
	assert.Equal(t, "evil", read(t, view+"/sub/made"))
	assert.ElementsMatch(t, []string{"changed sub/f", "changed sub/g", "added sub/made"}, k.ruled("a"))
	n, err := k.client.HeldOf("a").Discard(t.Context(), nil, "")
	require.NoError(t, err)
	assert.Equal(t, 3, n)
	_, _ = held.WriteString("+after")
	unchanged()
	assert.Equal(t, "old", read(t, view+"/sub/f"))
}

// TestHoldUndo: undo and redo of what an agent did around held paths, also after directories above them have moved, bring nothing
// of the agent's to a held path of the directory.
func TestHoldUndo(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf(holdRules, "kept")})
	dir := h.Scope("a")
	harness.Plant(t, dir, "sub/.dot/x=x", "sub/pack.json=p", "sub/f=f", "held/y=y")
	k := started(h)
	k.Must("up", "a")
	k.checkpoint("a", "first")
	before := harness.Dumped(t, dir, 0)
	k.run("a", `echo evil >evil; cp evil sub/.dot/x; cp evil sub/pack.json; mv evil sub/.dot/moved; mv sub to; echo evil >to/f
		rm -r to/.dot to/pack.json; mkdir to/.dot; echo evil >to/.dot/x; echo evil >held/y; ln -s ../held/y to/l; mkdir new; echo evil >new/x; mkdir new/.dot; echo evil >new/.dot/x`)
	assert.Empty(t, k.undo("a", "first"))
	harness.SameTrees(t, before, harness.Dumped(t, dir, 0), "undo")
	_, _, code := k.Try("redo", "a")
	assert.Zero(t, code)
	for name, want := range map[string]string{"to/.dot/x": "x", "to/pack.json": "p", "held/y": "y"} {
		assert.Equal(t, want, read(t, dir+"/"+name))
	}
	assert.NoDirExists(t, dir+"/new/.dot")
	h.Define("a", strings.Replace(fmt.Sprintf(holdRules, "kept"), `"held": hold`, `"held": hold, "to": hold, "sub": hold, "new": hold`, 1))
	k.Must("reload")
	state := harness.Dumped(t, dir, 0)
	_, _ = k.ask("a", query.Request{Undo: &history.Selection{Checkpoint: "first"}}) // the paths are held now
	harness.SameTrees(t, state, harness.Dumped(t, dir, 0), "undo of what is held now")
}

// TestHoldMany: an agent makes very many names, and very deep ones. The daemon of root, and others' agents, go on.
func TestHoldMany(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf(holdRules, "direct"), "b": ""})
	k := started(h)
	k.run("a", `mkdir -p held/many; cd held/many; seq 2000 | xargs touch; cd ..; i=0; while test $i -lt 100; do mkdir d; cd d; i=$((i+1)); done; echo x >x`)
	within(t, k.Timeout/2, "diff", func() {
		d, err := k.client.HeldOf("a").Diff(t.Context(), []string{"held/d/**"}, false)
		require.NoError(t, err)
		assert.Len(t, d.List, 100+2)
	})
	assert.Equal(t, "1\n", k.run("b", "echo 1 >g; cat g"))
	within(t, k.Timeout/2, "discard", func() {
		_, err := k.client.HeldOf("a").Discard(t.Context(), nil, "")
		assert.NoError(t, err)
	})
	k.run("a", "! test -e held")
}

// TestHoldPowerLoss cuts the power while an agent changes held files and while the operator commits them. Each path of the directory
// has its old content or the agent's; a version that the agent only opened, or that it synced before a rename, is whole; and a
// commit takes the rest.
func TestHoldPowerLoss(t *testing.T) {
	need.Long(t, "it mounts a disk many times")
	need.Once(t)
	h := harness.LayOut(t, nil)
	d := harness.NewDisk(t, h.Base)
	require.NoError(t, os.Chmod(h.Base, 0o755))
	h.Put("agents.d/.keep", "")
	h.Define("a", fmt.Sprintf(holdRules, "direct"))
	dir := h.Scope("a")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	cuts := rounds("SCOPEFS_TEST_HISTORY_CUTS", 4)
	h.Timeout = time.Duration(2+cuts) * time.Minute
	old := strings.Repeat("old ", 5000)
	const files = 20
	reset := func() {
		for i := range files {
			for _, name := range []string{"opened", "renamed", "written", "removed"} {
				harness.Plant(t, dir, fmt.Sprintf(".dot/%s%d=%s", name, i, old))
			}
		}
	}
	reset()
	h.Start()
	k := keeperOf(h)
	random := rand.New(rand.NewPCG(uint64(rounds("SCOPEFS_TEST_HISTORY_FIRST", 0)), 13))
	for round := range cuts {
		k.Must("up", "a")
		view, text := k.View("a"), strings.Repeat(fmt.Sprint("new", round, " "), 5000)
		syncAll(t, h.Base)
		done := make(chan struct{})
		go func() { // errors are of the cut
			defer close(done)
			for i := range files {
				at := func(name string) string { return fmt.Sprintf("%s/.dot/%s%d", view, name, i) }
				if f, err := os.OpenFile(at("opened"), os.O_RDWR, 0); err == nil {
					f.Close()
				}
				if f, err := os.Create(view + "/tmp"); err == nil {
					_, err = f.WriteString(text)
					if errors.Join(err, f.Sync(), f.Close()) == nil {
						_ = os.Rename(view+"/tmp", at("renamed"))
					}
				}
				_ = os.WriteFile(at("written"), []byte(text), 0o644)
				_ = os.Remove(at("removed"))
			}
		}()
		commits := round%2 == 1
		if commits {
			<-done
			go func() { _, _ = k.client.HeldOf("a").Commit(context.Background(), api.CommitOptions{}) }()
			time.Sleep(time.Duration(random.IntN(250)) * time.Millisecond)
		} else {
			time.Sleep(time.Duration(20+random.IntN(400)) * time.Millisecond)
		}
		d.Cut()
		h.Abort()
		<-done
		_ = unix.Unmount(h.View("a"), unix.MNT_DETACH)                     // the daemon may have, and had no time to mount another
		_ = unix.Unmount(h.Base+"/history/a/hold/merged", unix.MNT_DETACH) // of the process that commits
		d.Unmount()
		d.Mount()
		h.Start()
		k.Must("up", "a")
		for i := range files {
			for _, name := range []string{"opened", "renamed", "written", "removed"} {
				rel := fmt.Sprintf(".dot/%s%d", name, i)
				now, err := os.ReadFile(filepath.Join(dir, rel))
				whole := err == nil && (string(now) == old || name != "removed" && string(now) == text)
				assert.True(t, whole || commits && (name == "removed" && os.IsNotExist(err) || name == "written" && err == nil),
					"round %d: the directory's %s has %d bytes, %v", round, rel, len(now), err)
				if now, err = os.ReadFile(filepath.Join(view, rel)); name == "opened" || name == "renamed" {
					assert.True(t, err == nil && (string(now) == old || name == "renamed" && string(now) == text),
						"round %d: the view's %s has %d bytes, %v", round, rel, len(now), err)
				}
			}
		}
		assert.Empty(t, k.take("a", api.CommitOptions{Theirs: true}).Conflicts) // notes of versions may be lost
		assert.Empty(t, k.ruled("a"))
		harness.SameTrees(t, harness.Dumped(t, view, 0), harness.Dumped(t, dir, 0), "after the commit")
		if t.Failed() {
			return
		}
		reset()
	}
}

// TestHoldKilledView kills the view again and again while a client makes files, moves them to held names, and replaces, moves and
// removes them there: no held name of the directory has anything of the client's, and nothing that was moved is lost.
func TestHoldKilledView(t *testing.T) {
	need.Once(t)
	h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf(holdRules, "direct")})
	dir := h.Scope("a")
	harness.Plant(t, dir, ".dot/f=host", ".dot/d/g=host", "sub/.dot/x=host", "sub/pack.json=host")
	k := started(h)
	k.Must("up", "a")
	at := func(name string) string { return k.View("a", name) }
	moved := map[string]bool{}
	n := 0
	for range rounds("SCOPEFS_TEST_HISTORY_CRASHES", 5) {
		stop, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for ; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				tmp, to := fmt.Sprint("tmp", n), fmt.Sprint(".dot/made", n)
				if os.WriteFile(at(tmp), []byte("evil"), 0o644) == nil && os.Rename(at(tmp), at(to)) == nil {
					moved[to] = true
				}
				_ = os.WriteFile(at(tmp), []byte("evil"), 0o644)
				_ = os.Rename(at(tmp), at(".dot/f"))
				_ = os.WriteFile(at("sub/.dot/x"), []byte("evil"), 0o644)
				_ = os.Rename(at("sub"), at("to"))
				_ = os.WriteFile(at("to/pack.json"), []byte("evil"), 0o644)
				_ = os.Remove(at("to/.dot/x"))
				_ = os.Rename(at("to"), at("sub"))
				_ = os.Rename(at(".dot/f"), at(".dot/h"))
				_ = os.RemoveAll(at(".dot/d"))
				_ = os.Mkdir(at(".dot/d"), 0o755)
			}
		}()
		time.Sleep(100 * time.Millisecond)
		k.crash(k.killView)
		close(stop)
		<-ended
		require.NoError(t, filepath.WalkDir(dir, func(name string, e os.DirEntry, err error) error {
			rel, _ := filepath.Rel(dir, name)
			parts := strings.Split(rel, "/")
			if err != nil || !e.Type().IsRegular() || !slices.Contains(parts, ".dot") && !slices.Contains(parts, "pack.json") {
				return err
			}
			assert.Equal(t, "host", read(t, name), rel)
			assert.NotContains(t, rel, "made")
			return nil
		}))
		for name := range moved {
			assert.Equal(t, "evil", read(t, at(name)), name)
		}
	}
	assert.NotEmpty(t, moved)
	assert.FileExists(t, dir+"/.dot/d/g")
	assert.FileExists(t, dir+"/.dot/f")
}

// TestHoldHash: a program changes a file through a mapping, which leaves its times as they are, while the operator commits what a
// diff has shown, by its hash. The directory gets that content or none.
func TestHoldHash(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf(holdRules, "direct")})
	dir := h.Scope("a")
	harness.Plant(t, dir, ".dot/f=old")
	k := started(h)
	k.Must("up", "a")
	const size = 64 << 10
	shown, other := strings.Repeat("A", size), strings.Repeat("B", size)
	require.NoError(t, os.WriteFile(k.View("a", ".dot/f"), []byte(shown), 0o644))
	f, err := os.OpenFile(k.View("a", ".dot/f"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	page, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	copy(page, shown)
	d, err := k.client.HeldOf("a").Diff(t.Context(), nil, true)
	require.NoError(t, err)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				copy(page, shown)
				return
			default:
			}
			copy(page, other)
			copy(page, shown)
		}
	}()
	taken := false
	for range 15 {
		r, err := k.client.HeldOf("a").Commit(t.Context(), api.CommitOptions{Hash: d.Hash})
		now := read(t, dir+"/.dot/f")
		if taken = err == nil && len(r.Taken) > 0; taken {
			assert.Equal(t, shown, now)
			break
		}
		require.Equal(t, "old", now)
	}
	close(stop)
	<-ended
	require.NoError(t, unix.Munmap(page))
	if !taken {
		assert.Len(t, k.take("a", api.CommitOptions{Hash: d.Hash}).Taken, 1)
	}
	assert.Equal(t, shown, read(t, dir+"/.dot/f"))
}
