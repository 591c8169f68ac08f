package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// spooling is a host whose run directory is in memory, as /run is, with a view that records
// all operations. The options are those of the file system.
func spooling(t *testing.T, options string) *harness.Host {
	h := harness.LayOut(t, map[string]string{"a": "tools: [\"*\"]\nview: {record: all, paths: {\"ro/**\": read}}"})
	run := filepath.Join(h.Base, "run")
	require.NoError(t, os.Mkdir(run, 0o755))
	require.NoError(t, unix.Mount("none", run, "tmpfs", 0, options))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(run, unix.MNT_DETACH)) })
	require.NoError(t, os.Mkdir(h.Scope("a", "ro"), 0o755))
	return h
}

// spoolFiles returns the spools of a host.
func spoolFiles(h *harness.Host) []string {
	all, err := filepath.Glob(filepath.Join(h.Base, "run", "spool", "*"))
	require.NoError(h.T, err)
	return all
}

// made counts how often the log has each directory that a client could make.
func made(h *harness.Host) map[string]int {
	all := map[string]int{}
	for _, e := range h.Events("a") {
		if e.Op == "mkdir" && e.Verdict == audit.Allow {
			all[e.Path]++
		}
	}
	return all
}

// checkMade checks that the log has each directory of the scope once, and each name at most
// once.
func checkMade(h *harness.Host, want int) {
	h.T.Helper()
	recorded := made(h)
	entries, err := os.ReadDir(h.Scope("a"))
	require.NoError(h.T, err)
	assert.GreaterOrEqual(h.T, len(entries), want)
	for _, e := range entries {
		if e.Name() != "ro" && recorded[e.Name()] == 0 {
			h.T.Errorf("%s exists and is not recorded", e.Name())
		}
	}
	for name, n := range recorded {
		if n > 1 {
			h.T.Errorf("%s is recorded %d times", name, n)
		}
	}
}

// TestSpoolKilled: what a client did is in the log once, whichever process was killed.
// Rounds by SCOPEFS_TEST_ROUNDS.
func TestSpoolKilled(t *testing.T) {
	need.Once(t)
	for name, c := range map[string]crash{
		"view":            crashes["view killed"],
		"daemon":          crashes["daemon killed"],
		"daemon and view": crashes["daemon and view killed"],
		"logger": {kill: func(h *harness.Host) {
			for _, pid := range harness.ChildrenOf(h.Cmd.Process.Pid, "scopefs-log") {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := spooling(t, "")
			h.Start()
			var done atomic.Int64
			stop := make(chan struct{})
			var clients sync.WaitGroup
			for client := range 3 {
				clients.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						if os.Mkdir(h.View("a", fmt.Sprintf("%d-%d", client, i)), 0o755) == nil {
							done.Add(1)
						} else {
							time.Sleep(time.Millisecond)
						}
					}
				})
			}
			for range rounds(8) {
				before := done.Load()
				h.Eventually("clients work", func() bool { return done.Load() > before+50 })
				c.kill(h)
				if c.mend != nil {
					c.mend(h)
				}
			}
			close(stop)
			clients.Wait()
			h.Stop()
			if len(spoolFiles(h)) > 0 { // the log did not work at the end: the next daemon appends what is left
				h.Start()
				h.Stop()
			}
			checkMade(h, int(done.Load()))
			assert.Empty(t, spoolFiles(h))
			t.Logf("%d directories", done.Load())
		})
	}
}

// TestSpoolOrder: the log has the operations of a view in their order, with denials and
// calls between them, and all of them before the view is unmounted.
func TestSpoolOrder(t *testing.T) {
	t.Parallel()
	h := spooling(t, "")
	h.Start()
	u := h.Connect("a")
	var want []string
	for i := range 60 {
		for j := range 7 {
			name := fmt.Sprintf("%d-%d", i, j)
			require.NoError(t, os.Mkdir(h.View("a", name), 0o755))
			want = append(want, name)
		}
		name := fmt.Sprintf("ro/%d", i)
		if i%2 == 0 {
			require.ErrorIs(t, os.Mkdir(h.View("a", name), 0o755), syscall.EACCES)
		} else {
			u.Call("list_dir", args{"path": want[len(want)-1]})
			name = "call"
		}
		want = append(want, name)
	}
	require.Len(t, spoolFiles(h), 1)
	h.Must("down", "a")
	assert.Empty(t, spoolFiles(h))
	var got []string
	var last audit.Event
	for _, e := range h.Events("a") {
		switch {
		case e.Op == "mkdir":
			got = append(got, e.Path)
		case e.Event == audit.KindCall && e.Outcome == audit.OutcomeBegin:
			got = append(got, "call")
		}
		last = e
	}
	assert.Equal(t, want, got)
	assert.Equal(t, "unmounted", last.Outcome)
	h.Unbroken()
}

// TestSpoolFull: without space for the spool, operations are recorded as without a spool.
func TestSpoolFull(t *testing.T) {
	t.Parallel()
	h := spooling(t, "size=1m")
	h.Start()
	require.NoError(t, os.Mkdir(h.View("a", "first"), 0o755))
	require.NoError(t, os.Mkdir(h.View("a", "second"), 0o755))
	f, err := os.Create(filepath.Join(h.Base, "run", "full"))
	require.NoError(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	require.NoError(t, f.Close())
	require.ErrorIs(t, err, syscall.ENOSPC)
	n := 0
	mkdirs := func() {
		for range 200 { // more than the rest of a page
			require.NoError(t, os.Mkdir(h.View("a", strings.Repeat("x", 200)+fmt.Sprint(n)), 0o755))
			n++
		}
	}
	mkdirs()
	require.NoError(t, os.Remove(f.Name()))
	mkdirs() // the spool may end with a part of an event
	h.Stop()
	checkMade(h, n)
}

// TestSpoolFrozenLog: while the disk of the log is frozen, no operation waits for it, and no
// more is done than the spool holds. When it thaws, all that was done is recorded.
func TestSpoolFrozenLog(t *testing.T) {
	need.Once(t)
	t.Parallel()
	h := spooling(t, "")
	state := filepath.Join(h.Base, "state")
	require.NoError(t, os.Mkdir(state, 0o700))
	d := newDisk(t, state)
	h.Start()
	n, longest := 0, time.Duration(0)
	mkdir := func() error {
		began := time.Now()
		err := os.Mkdir(h.View("a", strings.Repeat("x", 200)+fmt.Sprint(n)), 0o755)
		if longest = max(longest, time.Since(began)); err == nil {
			n++
		}
		return err
	}
	for range 100 {
		require.NoError(t, mkdir())
	}
	thaw := d.freeze()
	h.Eventually("changes are refused", func() bool { return errors.Is(mkdir(), syscall.EIO) })
	for range 10 {
		assert.ErrorIs(t, mkdir(), syscall.EIO)
	}
	assert.Less(t, longest, 10*time.Second, "an append is given up after 5 s")
	assert.Less(t, n, 100+2*(256<<10)/200)
	thaw()
	h.Eventually("changes work again", func() bool { return mkdir() == nil })
	for range 100 {
		require.NoError(t, mkdir())
	}
	h.Stop()
	checkMade(h, n)
	assert.Empty(t, spoolFiles(h))
}

// TestSpoolStopped: while the daemon is stopped, no more is done than the spool holds, and all of it is recorded later.
func TestSpoolStopped(t *testing.T) {
	need.Once(t)
	t.Parallel()
	h := spooling(t, "")
	h.Start()
	require.NoError(t, os.Mkdir(h.View("a", "first"), 0o755))
	require.NoError(t, h.Cmd.Process.Signal(syscall.SIGSTOP))
	n, longest := 0, time.Duration(0)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); n++ {
		began := time.Now()
		err := os.Mkdir(h.View("a", strings.Repeat("x", 200)+fmt.Sprint(n)), 0o755)
		longest = max(longest, time.Since(began))
		if err != nil {
			assert.ErrorIs(t, err, syscall.EIO)
			break
		}
	}
	assert.ErrorIs(t, os.Mkdir(h.View("a", "refused"), 0o755), syscall.EIO)
	require.NoError(t, h.Cmd.Process.Signal(syscall.SIGCONT))
	assert.Less(t, longest, 6*time.Second)
	h.Eventually("the daemon goes on", func() bool { return os.Mkdir(h.View("a", "last"), 0o755) == nil })
	h.Stop()
	checkMade(h, n)
}

// TestSpoolPattern: in a base whose name is a pattern of path.Match, the next daemon records
// what is left of a spool, and removes what else a killed daemon has left.
func TestSpoolPattern(t *testing.T) {
	h := spooling(t, "")
	top := h.Base
	t.Cleanup(func() { h.Base = top }) // which is removed
	h.Base = filepath.Join(top, "run", `[a]*?{b,c}\ é`)
	require.NoError(t, os.MkdirAll(h.Scope("a"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(h.Base, "agents.d"), 0o755))
	h.Define("a", "view: {record: all}")
	h.Put("scopefs.yaml", "grace: 0s\n") // else the view lives on, and its spool is not left
	h.Start()
	require.NoError(t, os.Mkdir(h.View("a", "first"), 0o755))
	require.NoError(t, h.Cmd.Process.Signal(syscall.SIGSTOP))
	for i := range 100 {
		require.NoError(t, os.Mkdir(h.View("a", fmt.Sprint(i)), 0o755))
	}
	h.Kill()
	left := filepath.Join(h.Base, "run", "mcp", "task.x.sock")
	require.NoError(t, os.WriteFile(left, nil, 0o600))
	h.Start()
	assert.NoFileExists(t, left)
	recorded := func() bool { return len(made(h)) == 101 }
	h.Eventually("what is left of the spool is recorded", recorded)
	h.Stop()
	checkMade(h, 101)
}

// TestSpoolForged: a view whose spool has what no view writes is ended, though it says nothing
// to the daemon. What it recorded before is in the log.
func TestSpoolForged(t *testing.T) {
	t.Parallel()
	for name, forged := range map[string]string{"nonsense": strings.Repeat("nonsense", 10), "much": strings.Repeat("\x00", 1<<20)} {
		t.Run(name, func(t *testing.T) {
			h := spooling(t, "")
			h.Start()
			for i := range 10 {
				require.NoError(t, os.Mkdir(h.View("a", fmt.Sprint(i)), 0o755))
			}
			pid, spools := h.ViewPID("a"), spoolFiles(h)
			require.Len(t, spools, 1)
			h.Eventually("the view has nothing to say", func() bool { info, err := os.Stat(spools[0]); return err == nil && info.Size() == 0 })
			f, err := os.OpenFile(spools[0], os.O_WRONLY|os.O_APPEND, 0)
			require.NoError(t, err)
			_, err = f.WriteString(forged)
			require.NoError(t, err)
			require.NoError(t, f.Close())
			h.Eventually("another view serves", func() bool {
				now := h.Agent("a")
				return now.ViewPID > 1 && now.ViewPID != pid && now.State == "mounted"
			})
			assert.NoFileExists(t, spools[0])
			assert.NoError(t, os.Mkdir(h.View("a", "last"), 0o755))
			h.Stop()
			assert.Contains(t, h.Log.String(), "the spool of the view is damaged")
			checkMade(h, 11)
		})
	}
}
