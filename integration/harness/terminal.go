package harness

import (
	"cmp"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
)

// Talk is the output of a command that runs.
type Talk struct {
	T    testing.TB
	R    *os.File
	Wait time.Duration // of Expect; 0: 30 s
	seen string
}

// Expect reads until want appears, drops the output up to its end and returns what came
// before it.
func (k *Talk) Expect(want string) string {
	k.T.Helper()
	_ = k.R.SetReadDeadline(time.Now().Add(cmp.Or(k.Wait, 30*time.Second)))
	buf := make([]byte, 4096)
	for !strings.Contains(k.seen, want) {
		n, err := k.R.Read(buf)
		k.seen += string(buf[:n])
		if err != nil {
			require.Contains(k.T, k.seen, want, err)
		}
	}
	before, after, _ := strings.Cut(k.seen, want)
	k.seen = after
	return before
}

// OnTerminal starts a command on a terminal of a size. It returns the terminal's other
// end, and the talk on it. The test's end kills the command.
func OnTerminal(t testing.TB, cmd *exec.Cmd, rows, cols uint16) (*os.File, *Talk) {
	t.Helper()
	ptmx, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: rows, Cols: cols})
	require.NoError(t, err)
	fd, err := syscall.Dup(int(ptmx.Fd())) // not a blocking file, so that reads have deadlines
	require.NoError(t, err)
	require.NoError(t, syscall.SetNonblock(fd, true))
	file := os.NewFile(uintptr(fd), "ptmx")
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		file.Close()
		ptmx.Close()
	})
	return ptmx, &Talk{T: t, R: file}
}

// Drain drops all output from now on. The buffer of a terminal is small: a program that nobody reads from does not end.
func (k *Talk) Drain() {
	_ = k.R.SetReadDeadline(time.Time{})
	go func() { _, _ = io.Copy(io.Discard, k.R) }() // until the end of the test
}

// Forget drops the output so far.
func (k *Talk) Forget() {
	buf := make([]byte, 1<<16)
	_ = k.R.SetReadDeadline(time.Now().Add(time.Millisecond))
	for {
		if _, err := k.R.Read(buf); err != nil {
			break
		}
	}
	k.seen = ""
}

// StartTalking starts a shell of agent a; run itself is the process, without a
// shell or setpriv before it, by the time it talks.
func StartTalking(t testing.TB, m *Way, script string) (*exec.Cmd, *Talk) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	t.Cleanup(func() { r.Close() })
	cmd := m.Command("run", "a", "--", "sh", "-c", script)
	cmd.Stdout = w
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true // a job of its own: run stops with its job, and one without a parent outside cannot stop
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd, &Talk{T: t, R: r}
}

// Saw reports whether a text is in the output that has come and is not expected yet. It drops nothing.
func (k *Talk) Saw(text string) bool {
	buf := make([]byte, 4096)
	_ = k.R.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	for {
		n, err := k.R.Read(buf)
		k.seen += string(buf[:n])
		if err != nil {
			return strings.Contains(k.seen, text)
		}
	}
}
