package history

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/integration/harness"
)

// TestUnlinked: a file without a name is what it is natively, though the history has it.
func TestUnlinked(t *testing.T) {
	k := keep(t, map[string]string{"a": "view: {changes: kept}"})
	twin := t.TempDir()
	p := newProgram(t, harness.Role("changes", k.View("a"), twin), 2)
	each := func(lines ...string) {
		for _, line := range lines {
			got := p.do(t, line)
			assert.Equal(t, got[1], got[0], line)
		}
	}
	each("create f text 30000", "link f g", "mkdir d")
	before := harness.Dumped(t, k.Scope("a"), harness.Times)
	k.checkpoint("a", "p")
	each("hold 1 f 2", "unlink f", "held 1 stat 0",
		"held 1 link again", "unlink g", "held 1 stat 0", "held 1 link again",
		"held 1 write 900", "held 1 truncate 70", "held 1 chmod 7", "held 1 reopen 10", "held 1 stat 0", "held 1 link d/again", "rmdir d", "create f new 5")
	problems := k.undo("a", "p") // while it is open
	assert.Empty(t, problems)
	harness.SameTrees(t, before, harness.Dumped(t, k.Scope("a"), harness.Times), "")
	harness.SameTrees(t, before, harness.Dumped(t, k.View("a"), harness.Times), "")
}

// TestReach: no client of a view comes to the history, neither by a path nor by a handle.
func TestReach(t *testing.T) {
	k := keep(t, map[string]string{"a": "view: {changes: kept}"})
	harness.Plant(t, k.Scope("a"), "f=secret")
	assert.Equal(t, []string{"ok", "ok"}, harness.HostOps(t, k.View("a"), "write f", "unlink f"))
	kept, err := filepath.Glob(k.Base + "/history/a/*/1")
	require.NoError(t, err)
	require.NotEmpty(t, kept)
	script := fmt.Sprintf(`for at in ../history ../../history /history %[1]s/history /proc/1/root%[1]s/history \
/proc/1/cwd /proc/self/cwd/../../history; do
ls "$at/a" "$at/../history" 2>/dev/null; done
find / -xdev -name '*.open' -path '*history*' 2>/dev/null; ls /proc/*/fd/*/journal 2>/dev/null; true`, k.Base)
	assert.Empty(t, k.Must("run", "-T", "a", "--", "sh", "-c", script))
	cmd := k.InSandbox("a", "ops")
	assert.Equal(t, []string{"ENOENT", "ENOTSUP"}, harness.DoOps(t, cmd, []string{"stat " + kept[0], "byhandle test-program ."}))
}

// TestRace: while undos run, the host and the agent put links in the place of directories. Nothing outside changes, and nothing
// of another agent.
func TestRace(t *testing.T) {
	k := keep(t, map[string]string{"a": "view: {changes: kept}", "b": ""})
	outside := k.Base + "/outside"
	harness.Plant(t, outside, "f=mine", "sub/f=mine")
	harness.Plant(t, k.Scope("b"), "f=its", "sub/f=its")
	host, other := harness.Dumped(t, outside, harness.Times|harness.Links), harness.Dumped(t, k.Scope("b"), harness.Times|harness.Links)
	view, scope := k.View("a"), k.Scope("a")
	for round := range rounds("SCOPEFS_TEST_HISTORY_RACES", 12) {
		require.NoError(t, os.RemoveAll(scope+"/d")) // RemoveAll follows no link
		k.Eventually("the view knows", func() bool { _, err := os.Lstat(view + "/d"); return os.IsNotExist(err) })
		harness.Plant(t, view, "d/f=one", "d/sub/f=one", "d/g", "d/h")
		name := fmt.Sprint("p", round)
		k.checkpoint("a", name)
		for i := range 40 {
			harness.Plant(t, view, fmt.Sprintf("d/n%d", i), fmt.Sprintf("d/sub/n%d", i))
		}
		harness.Plant(t, view, "d/f=two", "d/sub/f=two")
		require.NoError(t, os.Remove(view+"/d/g"))
		require.NoError(t, os.Chmod(view+"/d/h", 0o600))
		for _, link := range []string{"out", "in"} {
			require.NoError(t, os.RemoveAll(scope+"/"+link))
		}
		require.NoError(t, os.Symlink(outside, scope+"/out"))
		require.NoError(t, os.Symlink("../b", scope+"/in"))
		ended, swapped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(swapped)
			for n := 0; ; n++ {
				select {
				case <-ended:
					return
				default:
				}
				at, link := scope, []string{"out", "in"}[n%2]
				if round%2 == 1 {
					at = view
				}
				_ = harness.Exchange([]string{at + "/d", at + "/" + link})
				time.Sleep(time.Duration(n%5) * 100 * time.Microsecond)
				_ = harness.Exchange([]string{at + "/d", at + "/" + link})
			}
		}()
		_, err := k.ask("a", query.Request{Undo: &history.Selection{Checkpoint: name}})
		close(ended)
		<-swapped
		if err != nil {
			t.Log(err)
		}
		harness.SameTrees(t, host, harness.Dumped(t, outside, harness.Times|harness.Links), "outside")
		harness.SameTrees(t, other, harness.Dumped(t, k.Scope("b"), harness.Times|harness.Links), "of another agent")
	}
}

// TestNewer: an undo leaves what the host has changed since, and what it has put where something was removed.
func TestNewer(t *testing.T) {
	k := keep(t, map[string]string{"a": "view: {changes: kept}"})
	harness.Plant(t, k.View("a"), "changed=one", "removed=one", "moved=one", "mine=one")
	k.checkpoint("a", "p")
	harness.Plant(t, k.View("a"), "changed=two", "mine=two", "new=two")
	require.NoError(t, os.Remove(k.View("a", "removed")))
	require.NoError(t, os.Rename(k.View("a", "moved"), k.View("a", "away")))
	time.Sleep(20 * time.Millisecond) // the file system's clock
	harness.Plant(t, k.Scope("a"), "changed=six", "removed=six", "new=six", "moved=six")
	problems := k.undo("a", "p")
	assert.Len(t, problems, 4, "%v", problems)
	for name, want := range map[string]string{"changed": "six", "removed": "six", "new": "six", "moved": "six", "away": "one", "mine": "one"} {
		assert.Equal(t, want, harness.ReadAll(t, k.Scope("a", name)), name)
		assert.Equal(t, want, harness.ReadAll(t, k.View("a", name)), name)
	}
}

// TestReused: an object that has the inode of one that is gone, and by a coarse clock its birth time, is taken for no
// other. Linux 6.13 gives ext4 a fine clock, and not ext3.
func TestReused(t *testing.T) {
	h := harness.LayOut(t, nil)
	harness.NewDiskOf(t, h.Base, "ext3")
	require.NoError(t, os.Chmod(h.Base, 0o755))
	h.Put("agents.d/.keep", "")
	h.Define("a", "view: {changes: kept}")
	require.NoError(t, os.MkdirAll(h.Scope("a"), 0o755))
	h.Start()
	k := keeperOf(h)
	before := harness.Dumped(t, k.Scope("a"), harness.Times)
	k.checkpoint("a", "p")
	for i := range 100 {
		require.NoError(t, os.WriteFile(k.View("a", "f"), []byte("one"), 0o644))
		require.NoError(t, os.Remove(k.View("a", "f")))
		require.NoError(t, os.Symlink("x", k.View("a", fmt.Sprint(i))))
	}
	assert.Empty(t, k.undo("a", "p"))
	harness.SameTrees(t, before, harness.Dumped(t, k.Scope("a"), harness.Times), "undone")
}

// TestBound: an agent that fills its history loses the oldest generations, not its work.
func TestBound(t *testing.T) {
	k := keep(t, map[string]string{"a": "view: {changes: kept}\nhistory: {size: 1MiB}"})
	for n := range 8 {
		require.NoError(t, os.WriteFile(k.View("a", "f"), make([]byte, 20<<20), 0o644))
		k.checkpoint("a", fmt.Sprint(n))
		require.NoError(t, os.Remove(k.View("a", "f")))
	}
	k.checkpoint("a", "last")
	used := func() (size int64) {
		_ = filepath.WalkDir(k.Base+"/history/a", func(name string, _ os.DirEntry, err error) error {
			var st unix.Stat_t
			if err == nil && unix.Lstat(name, &st) == nil {
				size += st.Blocks * 512
			}
			return nil
		})
		return size
	}
	k.Eventually("the history is within its bound", func() bool { return used() < 70<<20 }) // pruneBytes at a time
}
