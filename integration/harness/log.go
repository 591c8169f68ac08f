package harness

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
)

// Events returns the events of an agent in the log, or all for "".
func (h *Host) Events(agent string) []audit.Event {
	h.T.Helper()
	var list []audit.Event
	for e, err := range audit.Read(context.Background(), filepath.Join(h.Base, "state", "audit"), audit.Filter{Agent: agent}, false) {
		require.NoError(h.T, err)
		list = append(list, e)
	}
	return list
}

// Recorded reports whether an event of an agent has the fields of want that are not empty.
func (h *Host) Recorded(agent string, want audit.Event) bool {
	for _, e := range h.Events(agent) {
		if (want.Event == "" || e.Event == want.Event) && (want.Op == "" || e.Op == want.Op) && (want.Path == "" || e.Path == want.Path) &&
			(want.Target == "" || e.Target == want.Target) && (want.Verdict == "" || e.Verdict == want.Verdict) &&
			(want.Outcome == "" || e.Outcome == want.Outcome) && (want.Rule == "" || e.Rule == want.Rule) &&
			(want.Chain == "" || e.Chain == want.Chain) {
			return true
		}
	}
	return false
}

// Calls returns the events of calls of an agent's tool, in their order.
func (h *Host) Calls(agent, tool string) (list []audit.Event) {
	for _, e := range h.Events(agent) {
		if e.Event == audit.KindCall && e.Op == tool {
			list = append(list, e)
		}
	}
	return list
}

// Last returns the last event of calls of a tool.
func (h *Host) Last(agent, tool string) audit.Event {
	h.T.Helper()
	list := h.Calls(agent, tool)
	require.NotEmpty(h.T, list, "no call of %s is recorded", tool)
	return list[len(list)-1]
}

// Unbroken checks that no event is missing in the log.
func (h *Host) Unbroken() {
	h.T.Helper()
	for i, e := range h.Events("") {
		assert.EqualValues(h.T, i+1, e.Seq)
	}
}

// SmallState puts the state directory on a file system of a megabyte.
func SmallState(t testing.TB, h *Host) (dir string) {
	t.Helper()
	dir = filepath.Join(h.Base, "state")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, unix.Mount("none", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// Fill takes all space of a directory, down to the last byte that the log could
// use for the line it is in.
func Fill(t testing.TB, h *Host, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "full")
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	for _, size := range []int{1 << 12, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	return func() { require.NoError(t, os.Remove(name)) }
}
