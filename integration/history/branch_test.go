package history

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/scope"
)

// held returns lines "KIND PATH" of what differs.
func (k *keeper) held(id scope.ID) []string { return k.differences(k.client.HistoryOf(id)) }

func (k *keeper) differences(h *api.History) (lines []string) {
	k.T.Helper()
	d, err := h.Diff(k.T.Context(), nil, false)
	require.NoError(k.T, err)
	for _, c := range d.List {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s", c.Kind, c.Path, c.Conflict)))
	}
	return lines
}

func (k *keeper) commit(id scope.ID, opt api.CommitOptions) *api.Committed {
	k.T.Helper()
	return k.committed(k.client.HistoryOf(id), opt)
}

func (k *keeper) committed(h *api.History, opt api.CommitOptions) *api.Committed {
	k.T.Helper()
	r, err := h.Commit(k.T.Context(), opt)
	require.NoError(k.T, err)
	return r
}

// run runs a shell command in the sandbox of an agent.
func (k *keeper) run(id scope.ID, command string) string {
	k.T.Helper()
	return k.Must("run", string(id), "--", "sh", "-ec", command)
}

// TestHeldLinkOut: no client makes a link that leads out in held changes, also by the move of a directory, and so a commit takes none. It
// takes what the agent has made unreadable.
func TestHeldLinkOut(t *testing.T) {
	k := started(harness.LayOut(t, map[string]string{"a": "view: {changes: held}"}))
	dir := k.Scope("a")
	k.run("a", "mkdir -p x/y/z; ln -s ../../../../etc/passwd x/y/z/l && exit 1; ln -s ../../../etc/passwd x/y/z/l; mv x/y/z z && exit 1; rm -r x; "+
		"mkdir z; ln -s ../f z/in; echo 1 >f; chmod 0200 f; mkdir shut; echo 1 >shut/g; chmod 0 shut")
	assert.Empty(t, k.commit("a", api.CommitOptions{}).Conflicts)
	text, err := os.Readlink(dir + "/z/in")
	require.NoError(t, err)
	assert.Equal(t, "../f", text)
	assert.FileExists(t, dir+"/shut/g")
	info, err := os.Stat(dir + "/f")
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o200), info.Mode())
}

// TestHeld: what programs change reaches the directory with the commit, all of it. Two agents are branches of one directory.
func TestHeld(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "protect: [\"*\"]\nview: {changes: held}"})
	dir := h.Scope("a")
	harness.Plant(t, dir, ".gitignore=sub/\n", "f=one\n", "gone=gone\n", "src/a.go=package a\n", "src/deep/b.go=package b\n", "l => f")
	git := func(at string, words ...string) string {
		own := []string{"-C", at, "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "safe.directory=*"}
		cmd := exec.Command("git", append(own, words...)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	git(dir, "init", "-q")
	git(dir, "add", ".")
	git(dir, "commit", "-qm", "first")
	k := started(h)
	before, err := harness.Dump(dir, harness.Times|harness.Links)
	require.NoError(t, err)

	k.run("a", "echo two >>f; rm gone; mv src lib; chmod 700 lib/deep/b.go; "+
		"ln -s lib/a.go m; mkdir -p new/d; echo n >new/d/n; echo t >t; rm t")
	k.run("a", "git config user.name a; git config user.email a@example.org; git add -A; git commit -qm second; "+
		"git gc -q; git init -q sub; cd sub; echo s >s; git add s; git commit -qm third")
	now := harness.Dumped(t, dir, harness.Times|harness.Links)
	require.NoError(t, err)
	require.Equal(t, before, now, "the directory has changed")
	assert.Empty(t, k.run("a", "git status --short"))

	lines := k.held("a")
	for _, want := range []string{"changed f", "removed gone", "moved lib", "mode lib/deep/b.go",
		"added m", "added new", "added new/d", "added new/d/n"} {
		assert.Contains(t, lines, want)
	}
	assert.NotContains(t, strings.Join(lines, "\n"), "added t")
	want, err := harness.Dump(k.View("a"), 0)
	require.NoError(t, err)
	r := k.commit("a", api.CommitOptions{})
	assert.Empty(t, r.Conflicts)
	assert.Len(t, r.Taken, len(lines))
	got, err := harness.Dump(dir, 0)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	git(dir, "fsck", "--strict")
	assert.Empty(t, git(dir, "status", "--short"))
	assert.Empty(t, k.held("a"))

	// The agent goes on, on the same mount and on the next one.
	assert.Equal(t, "one\ntwo\n", k.run("a", "cat f; echo three >>f; cat lib/deep/b.go >/dev/null"))
	assert.Equal(t, []string{"changed f"}, k.held("a"))
	assert.Empty(t, k.commit("a", api.CommitOptions{Paths: []string{"f"}}).Conflicts)
	k.Must("down", "a")
	assert.Empty(t, k.held("a"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte("of the host\n"), 0o644))
	k.Must("up", "a")
	assert.Equal(t, "of the host\n", k.run("a", "cat f; ls lib/deep >/dev/null; echo 4 >>f"), "a branch without changes begins again")
	assert.Equal(t, []string{"changed f"}, k.held("a"))
}

// TestHeldConflicts: what the directory changed since the fork is not overwritten unless the operator says so.
func TestHeldConflicts(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "view: {changes: held}"})
	dir := h.Scope("a")
	harness.Plant(t, dir, "both=1", "mine=1", "gone=1")
	k := started(h)
	k.run("a", "echo agent >both; echo agent >mine; rm gone; echo agent >too")
	harness.Plant(t, dir, "both=host", "gone=host", "too=host")
	r := k.commit("a", api.CommitOptions{})
	assert.Empty(t, r.Taken)
	assert.Len(t, r.Conflicts, 3)
	assert.Equal(t, "1", read(t, dir+"/mine"), "something was taken")
	r = k.commit("a", api.CommitOptions{Ours: true})
	assert.Len(t, r.Taken, 1)
	assert.Equal(t, "agent\n", read(t, dir+"/mine"))
	assert.Equal(t, "host", read(t, dir+"/both"))
	r = k.commit("a", api.CommitOptions{Theirs: true})
	assert.Empty(t, r.Conflicts)
	assert.Equal(t, "agent\n", read(t, dir+"/both"))
	assert.Equal(t, "agent\n", read(t, dir+"/too"))
	assert.NoFileExists(t, dir+"/gone")

	// The hash binds a commit to what was looked at.
	k.run("a", "echo looked >mine")
	d, err := k.client.HistoryOf("a").Diff(t.Context(), nil, true)
	require.NoError(t, err)
	require.NotEmpty(t, d.Hash)
	k.run("a", "echo other >mine")
	_, err = k.client.HistoryOf("a").Commit(t.Context(), api.CommitOptions{Hash: d.Hash})
	assert.ErrorContains(t, err, "nothing was done")
	assert.Equal(t, "agent\n", read(t, dir+"/mine"))
	k.run("a", "echo looked >mine")
	assert.Empty(t, k.commit("a", api.CommitOptions{Hash: d.Hash}).Conflicts)
	assert.Equal(t, "looked\n", read(t, dir+"/mine"))

	events := k.Events("a")
	assert.True(t, slices.ContainsFunc(events, func(e audit.Event) bool {
		return e.Event == audit.KindHistory && e.Op == "commit" && e.Outcome == "done"
	}))
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// TestHeldEscapes: no way of changing a file of the view changes the directory, and none reaches what holds the changes.
func TestHeldEscapes(t *testing.T) {
	k := keep(t, map[string]string{"a": "view: {changes: held, xattrs: true}", "m": "view: {changes: held, data: mediated}"})
	for _, id := range []scope.ID{"a", "m"} {
		dir, view := k.Scope(string(id)), k.View(string(id))
		harness.Plant(t, dir, "mapped="+strings.Repeat("x", 8192), "open=1", "copied=1",
			"punched="+strings.Repeat("y", 1<<16), "linked=1", "d/e/f=1")
		before, err := harness.Dump(dir, harness.Times|harness.Links)
		require.NoError(t, err)

		mapped, err := os.OpenFile(view+"/mapped", os.O_RDWR, 0)
		require.NoError(t, err)
		memory, err := unix.Mmap(int(mapped.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.NoError(t, err)
		reads, err := os.Open(view + "/open") // before its first change
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(view+"/open", []byte("2"), 0))
		copy(memory, "changed")
		require.NoError(t, unix.Msync(memory, unix.MS_SYNC))
		require.NoError(t, unix.Munmap(memory))
		require.NoError(t, mapped.Close())
		one := make([]byte, 1)
		_, err = reads.ReadAt(one, 0)
		require.NoError(t, err)
		assert.Equal(t, "1", string(one), "who reads goes on with the old content")
		reads.Close()
		assert.Equal(t, "2", read(t, view+"/open"))
		from, err := os.Open(view + "/punched")
		require.NoError(t, err)
		to, err := os.OpenFile(view+"/copied", os.O_RDWR, 0)
		require.NoError(t, err)
		_, err = unix.CopyFileRange(int(from.Fd()), nil, int(to.Fd()), nil, 4096, 0)
		require.NoError(t, err)
		punched, err := os.OpenFile(view+"/punched", os.O_RDWR, 0)
		require.NoError(t, err)
		if err := unix.Fallocate(int(punched.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096); err != unix.EOPNOTSUPP {
			require.NoError(t, err)
		}
		from.Close()
		to.Close()
		punched.Close()
		require.NoError(t, os.Link(view+"/linked", view+"/d/linked"))
		require.NoError(t, os.WriteFile(view+"/d/linked", []byte("2"), 0))
		require.NoError(t, os.Truncate(view+"/linked", 0))
		require.NoError(t, os.Chtimes(view+"/d/e/f", time.Unix(1, 0), time.Unix(1, 0)))
		require.NoError(t, os.Rename(view+"/d", view+"/moved"))
		require.NoError(t, os.RemoveAll(view+"/moved/e"))
		for _, name := range []string{"user.overlay.redirect", "trusted.overlay.redirect", "trusted.overlay.opaque",
			"trusted.overlay.metacopy", "user.overlay.whiteout"} {
			_ = unix.Setxattr(view+"/moved", name, []byte("/../.."), 0)
		}
		assert.Error(t, unix.Mknod(view+"/white", unix.S_IFCHR, 0), "a whiteout is a device")
		for _, name := range []string{"upper", "layer", "stamp", "../upper", ".upper", "../../history"} {
			assert.NoFileExists(t, view+"/"+name)
		}
		now := harness.Dumped(t, dir, harness.Times|harness.Links)
		require.NoError(t, err)
		assert.Equal(t, before, now, "%s: the directory has changed", id)

	}
}

// TestHeldTwoNames: the kernel knows several names of a file of the directory. Its first change succeeds under the name that the client
// uses, and the other names keep the directory's file. Several clients at once may be the first.
func TestHeldTwoNames(t *testing.T) {
	k := keep(t, map[string]string{"a": "view: {changes: held}", "m": "view: {changes: held, data: mediated}"})
	ways := map[string]func(name string) error{
		"write": func(name string) error { return os.WriteFile(name, []byte("22"), 0) },
		"append": func(name string) error {
			f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
			return cmp.Or(err, f.Close())
		},
		"size": func(name string) error { return os.Truncate(name, 0) },
		"mode": func(name string) error { return os.Chmod(name, 0o600) },
		"time": func(name string) error { return os.Chtimes(name, time.Unix(1, 0), time.Unix(1, 0)) },
		"link": func(name string) error { return os.Link(name, name+"-linked") },
	}
	for _, id := range []scope.ID{"a", "m"} {
		dir, view := k.Scope(string(id)), k.View(string(id))
		for way := range ways {
			harness.Plant(t, dir, way+"/0=1")
			for i := range 4 {
				require.NoError(t, os.Link(dir+"/"+way+"/0", fmt.Sprintf("%s/%s/%d", dir, way, i+1)))
			}
		}
		for way, do := range ways {
			list, err := os.ReadDir(view + "/" + way)
			require.NoError(t, err)
			for _, e := range list {
				_, err := e.Info()
				require.NoError(t, err)
			}
			assert.NoError(t, do(view+"/"+way+"/0"), "%s: %s", id, way)
			var all sync.WaitGroup
			for i := range 3 {
				all.Go(func() { assert.NoError(t, do(fmt.Sprintf("%s/%s/%d", view, way, i+1)), "%s: %s %d", id, way, i+1) })
			}
			all.Wait()
			assert.Equal(t, "1", read(t, fmt.Sprintf("%s/%s/4", view, way)), "%s: %s", id, way)
			assert.Equal(t, "1", read(t, dir+"/"+way+"/0"), "%s: %s", id, way)
			for i := range 4 {
				st, err := os.Stat(fmt.Sprintf("%s/%s/%d", view, way, i))
				require.NoError(t, err)
				if way == "write" {
					assert.EqualValues(t, 2, st.Size())
				}
			}
		}
	}
}

// TestHeldKilled: the daemon is killed while a client writes. The held changes are there afterwards.
func TestHeldKilled(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "view: {changes: held}"})
	harness.Plant(t, h.Scope("a"), "f=1")
	k := started(h)
	k.run("a", "echo 2 >f; echo n >n")
	for range 3 {
		k.Kill()
		k.Start()
		assert.Equal(t, []string{"changed f", "added n"}, k.held("a"))
		assert.Equal(t, "2\n", k.run("a", "cat f"))
	}
	// A commit that was interrupted is finished before clients see the branch.
	k.Must("down", "a")
	intent := k.Base + "/history/a/intent"
	require.NoError(t, os.WriteFile(intent, []byte("{}"), 0o600))
	k.Must("up", "a")
	assert.NoFileExists(t, intent)
	assert.Equal(t, "2\n", k.run("a", "cat f"))
	k.Stop()
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	assert.NotContains(t, string(mounts), k.Base)
}
