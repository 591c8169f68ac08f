package daemon

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// manager is a service manager, as far as sd_notify(3) goes.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
}

// newManager listens where the daemons that are started from now on notify.
func newManager(t *testing.T, name string) manager {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	return manager{t, conn}
}

// told waits for a message that has a line with this start.
func (m manager) told(start string) string {
	m.t.Helper()
	require.NoError(m.t, m.conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	for {
		buf := make([]byte, 4096)
		n, err := m.conn.Read(buf)
		require.NoError(m.t, err, "waiting for %s", start)
		for line := range strings.Lines(string(buf[:n])) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, start) {
				return line
			}
		}
	}
}

// forget drops what was told up to now.
func (m manager) forget() {
	buf := make([]byte, 4096)
	for m.conn.SetReadDeadline(time.Now().Add(time.Millisecond)) == nil {
		if _, err := m.conn.Read(buf); err != nil {
			return
		}
	}
}

// sd_notify(3): more time to start, ready, how far it is, and that it stops.
func TestDaemonNotify(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "", "b": ""})
	for _, name := range []string{filepath.Join(h.Base, "notify"), "@scopefs-test-" + filepath.Base(h.Base)} {
		m := newManager(t, name)
		h.Start()
		m.told("EXTEND_TIMEOUT_USEC=")
		assert.Equal(t, "READY=1", m.told("READY=1"))
		m.told("STATUS=views mounted: 2 of 2")
		h.Stop()
		m.told("STOPPING=1")
		m.told("STATUS=views unmounted: 2 of 2")
		m.conn.Close()
	}
}

// The watchdog hears of a daemon that answers, and nothing of one whose socket
// does not answer any more, although it runs.
func TestDaemonWatchdog(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": ""})
	m := newManager(t, filepath.Join(h.Base, "notify"))
	t.Setenv("WATCHDOG_USEC", "900000")
	said, err := os.Create(filepath.Join(h.Base, "said"))
	require.NoError(t, err)
	defer said.Close()
	h.Stderr = said
	h.Start()
	for range 3 {
		m.told("WATCHDOG=1")
	}
	socket := filepath.Join(h.Base, "run", "control.sock")
	require.NoError(t, os.Rename(socket, socket+".away"))
	failures := func() int {
		text, err := os.ReadFile(said.Name())
		require.NoError(t, err)
		return strings.Count(string(text), "not healthy")
	}
	h.Eventually("it knows that it is not healthy", func() bool { return failures() > 0 })
	m.forget()
	before := failures()
	h.Eventually("it asked itself again", func() bool { return failures() > before+2 })
	require.NoError(t, m.conn.SetReadDeadline(time.Now().Add(time.Millisecond)))
	_, err = m.conn.Read(make([]byte, 100))
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, os.Rename(socket+".away", socket))
	m.told("WATCHDOG=1")
}

// One daemon a base: what it serves, another with a run directory elsewhere does not
// touch. The lock of one that was killed is gone; what scopefs run starts for
// itself needs none.
func TestDaemonBaseTaken(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	link := filepath.Join(t.TempDir(), "base")
	require.NoError(t, os.Symlink(h.Base, link))
	before := h.Agent("a").ViewPID
	for _, base := range []string{h.Base, link} {
		elsewhere := filepath.Join(t.TempDir(), "run")
		_, errs, code := h.Try("daemon", "--base", base, "--run", elsewhere)
		assert.Equal(t, 1, code)
		assert.Equal(t, fmt.Sprintf("scopefs: base %q: another daemon serves it, with another --run: stop that one, or give this one another --base\n", base), errs)
		out, errs, code := h.Try("run", "--run", elsewhere, "a", "--", "echo", "alone")
		assert.Equal(t, "alone\n", out, errs)
		assert.Zero(t, code)
	}
	assert.Equal(t, before, h.Agent("a").ViewPID)
	h.Kill()
	h.Start("--run", filepath.Join(h.Base, "run"))
	h.Must("run", "a", "--", "true")
}

// What the unit spares when memory runs out is the daemon alone: its children do not
// inherit its score. The daemon's score is 300 here: to lower it takes CAP_SYS_RESOURCE.
func TestDaemonSparedAlone(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	file := func(pid int) string { return fmt.Sprintf("/proc/%d/oom_score_adj", pid) }
	require.NoError(t, os.WriteFile(file(h.Cmd.Process.Pid), []byte("300"), 0))
	h.Must("down", "a")
	h.Must("up", "a")
	score := harness.ReadAll(t, file(h.Agent("a").ViewPID))
	assert.Contains(t, []string{"0\n", "-900\n"}, score, "in the group of its agent the view is killed last, where the kernel permits it")
	assert.Equal(t, "0\n", h.Must("run", "a", "--", "cat", "/proc/self/oom_score_adj"))
	assert.Equal(t, "300\n", harness.ReadAll(t, file(h.Cmd.Process.Pid)))
}
