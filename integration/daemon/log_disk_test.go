package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools"
)

// FIFREEZE and FITHAW, linux/fs.h.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// freeze has everybody wait who writes to the disk, in state D, until thaw or the end of the test.
func (d *disk) freeze() (thaw func()) {
	d.t.Helper()
	f, err := os.Open(d.At)
	require.NoError(d.t, err)
	var st unix.Stat_t
	require.NoError(d.t, unix.Fstat(int(f.Fd()), &st))
	behind, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/loop/backing_file", unix.Major(st.Dev), unix.Minor(st.Dev)))
	require.NoError(d.t, err, "%s is not on a loop device", d.At)
	require.Equal(d.t, d.Image, strings.TrimSpace(string(behind)), "%s is on another disk", d.At)
	require.NoError(d.t, unix.IoctlSetInt(int(f.Fd()), fiFreeze, 0))
	thaw = sync.OnceFunc(func() {
		assert.NoError(d.t, unix.IoctlSetInt(int(f.Fd()), fiThaw, 0))
		f.Close()
	})
	time.AfterFunc(2*time.Minute, thaw) // also of a test that hangs
	d.t.Cleanup(thaw)
	return thaw
}

// onDisk is a host whose log is on a disk of its own.
func onDisk(t *testing.T) (*harness.Host, *disk) {
	h := harness.LayOut(t, map[string]string{"a": "tools: [\"*\"]\nview: {paths: {\"ro/**\": read}}"})
	state := filepath.Join(h.Base, "state")
	require.NoError(t, os.Mkdir(state, 0o700))
	d := newDisk(t, state)
	harness.Plant(t, h.Scope("a"), "f", "ro/f")
	h.Start()
	return h, d
}

// TestLogFrozenDisk: while the disk of the log is frozen calls and changes are refused after a time, and when it thaws all
// goes on by itself.
func TestLogFrozenDisk(t *testing.T) {
	need.Once(t)
	t.Parallel()
	h, d := onDisk(t)
	u := h.Connect("a")
	u.Call("read_file", args{"path": "f"})
	thaw := d.freeze()
	assert.Equal(t, tools.Unavailable, u.Fails("read_file", args{"path": "f"}).Code)
	began := time.Now()
	for range 10 {
		assert.Contains(t, u.Fails("read_file", args{"path": "f"}).Message, "cannot be recorded")
	}
	assert.Less(t, time.Since(began), 10*time.Second, "they wait for nothing: it is known")
	// The daemon notifies the view after it has answered the calls.
	h.Eventually("the view refuses changes", func() bool {
		err := os.Mkdir(h.View("a", "new"), 0o755)
		if err == nil {
			require.NoError(t, os.Remove(h.Scope("a", "new")))
		}
		return errors.Is(err, syscall.EIO)
	})
	assert.ErrorIs(t, os.Mkdir(h.View("a", "ro", "new"), 0o755), syscall.EIO, "a denial that is not recorded is not told")
	h.Must("ps")
	thaw()
	h.Eventually("changes work again", func() bool { return os.Mkdir(h.View("a", "new"), 0o755) == nil })
	u.Call("read_file", args{"path": "f"})
	assert.True(t, h.Recorded("", audit.Event{Outcome: audit.OutcomeRecovered}))
	h.Stop()
	assertUnique(h)
}

// TestLogFrozenDiskStop: a frozen disk does not keep the daemon from ending.
func TestLogFrozenDiskStop(t *testing.T) {
	need.Once(t)
	t.Parallel()
	h, d := onDisk(t)
	u := h.Connect("a")
	u.Call("read_file", args{"path": "f"})
	thaw := d.freeze()
	began := time.Now()
	require.NoError(t, h.Cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-h.Ended:
	case <-time.After(20 * time.Second):
		t.Error("the daemon waits for the disk")
	}
	assert.Less(t, time.Since(began), 15*time.Second, "5 s are promised")
	t.Logf("SIGTERM on a frozen disk: ended after %v", time.Since(began))
	thaw()
	h.Start()
	assertUnique(h)
}

// TestLogKilledWriter: the process that writes the log is replaced.
func TestLogKilledWriter(t *testing.T) {
	need.Once(t)
	h := harness.NewHost(t, map[string]string{"a": "tools: [\"*\"]"})
	harness.Plant(t, h.Scope("a"), "f")
	u := h.Connect("a")
	for range rounds(3) {
		u.Call("read_file", args{"path": "f"})
		pids := harness.ChildrenOf(h.Cmd.Process.Pid, "scopefs-log")
		require.Len(t, pids, 1)
		require.NoError(t, syscall.Kill(pids[0], syscall.SIGKILL))
		h.Eventually("calls run again", func() bool {
			r, err := u.Send(u.Soon(), "stat", args{"path": "f"})
			require.NoError(t, err)
			return !r.IsError && len(harness.ChildrenOf(h.Cmd.Process.Pid, "scopefs-log")) == 1
		})
	}
	h.Stop()
	h.Unbroken()
}

// TestLogPowerLoss: the next start records what a power loss took, and gives no number twice.
func TestLogPowerLoss(t *testing.T) {
	need.Once(t)
	h, d := onDisk(t)
	acknowledged := uint64(0)
	for range rounds(2) {
		u := h.Connect("a")
		for range 20 {
			u.Call("stat", args{"path": "f"})
		}
		for _, e := range assertUnique(h) {
			acknowledged = max(acknowledged, e.Seq)
		}
		d.Cut()
		_ = u.Session.Close()
		restartOn(h, d)
		events := assertUnique(h)
		last := events[len(events)-1]
		assert.Greater(t, last.Seq, acknowledged)
		assert.True(t, h.Recorded("", audit.Event{Outcome: audit.OutcomeUnclean}))
	}
}
