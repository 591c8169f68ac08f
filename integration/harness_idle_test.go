package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// idle waits until an agent's view has no request in flight and every thread of
// it sleeps. The kernel queues a RELEASE when a client closes a file or exits,
// and the view closes its descriptor after the answer.
func (h *host) idle(id string) {
	h.t.Helper()
	control, err := os.MkdirTemp("", tempPrefix)
	require.NoError(h.t, err)
	defer os.Remove(control)
	require.NoError(h.t, unix.Mount("none", control, "fusectl", 0, ""))
	defer unix.Unmount(control, unix.MNT_DETACH)
	var connection string // its number is the mount's minor device number
	for line := range strings.Lines(readAll(h.t, "/proc/self/mountinfo")) {
		if fields := strings.Fields(line); fields[4] == h.view(id) {
			_, connection, _ = strings.Cut(fields[2], ":")
		}
	}
	require.NotEmpty(h.t, connection, "%s is not mounted", id)
	pid := h.viewPID(id)
	require.NotZero(h.t, pid)
	h.eventually("no request is in flight", func() bool {
		return readAll(h.t, filepath.Join(control, connection, "waiting")) == "0\n" && asleep(h.t, pid)
	})
}

// asleep reports whether every thread of a process sleeps: proc_pid_stat(5).
func asleep(t *testing.T, pid int) bool {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	require.NoError(t, err)
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil { // the thread has ended
			return false
		}
		_, state, _ := strings.Cut(string(text), ") ")
		if !strings.HasPrefix(state, "S") {
			return false
		}
	}
	return len(tasks) > 0
}
