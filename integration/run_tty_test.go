package integration

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// onTerminal starts run on a terminal of 90 by 30.
func onTerminal(t *testing.T, m *way, args ...string) (*exec.Cmd, *os.File, *talk) {
	t.Helper()
	cmd := m.scopefs(append([]string{"run"}, args...)...)
	cmd.Env = append(cmd.Env, "TERM=dumb", "PS1=PROMPT>")
	ptmx, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 30, Cols: 90})
	require.NoError(t, err)
	// Not a blocking file, so that reads have deadlines.
	fd, err := syscall.Dup(int(ptmx.Fd()))
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
	return cmd, ptmx, &talk{t: t, r: file}
}

func (k *talk) enter(text string) {
	k.t.Helper()
	_, err := k.r.WriteString(text)
	require.NoError(k.t, err)
}

func TestRunTerminal(t *testing.T) {
	inAllWays(t, map[string]string{"a": ""}, func(t *testing.T, m *way) {
		cmd, ptmx, k := onTerminal(t, m, "-t", "-e", "PS1=PROMPT>", "a", "--", "bash", "--norc", "-i")
		k.expect("PROMPT>")
		k.enter("tty; stty size; test -t 0 -a -t 1 -a -t 2 && echo 'is'tty\r")
		k.expect("/dev/pts/")
		k.expect("30 90")
		k.expect("istty")
		k.expect("PROMPT>")

		// The size follows ours.
		require.NoError(t, pty.Setsize(ptmx, &pty.Winsize{Rows: 40, Cols: 100}))
		m.eventually("the new size is there", func() bool {
			k.enter("stty size\r")
			return bytes.Contains([]byte(k.expect("PROMPT>")), []byte("40 100"))
		})

		// Ctrl-C ends what is in the foreground, and neither the shell nor run.
		k.enter("sleep 100.1; echo 'st'atus=$?\r")
		m.eventually("sleep runs", func() bool { return m.sandboxed("100.1") != 0 })
		k.enter("\x03")
		k.expect("PROMPT>")

		// Ctrl-Z stops it, fg takes it back.
		k.enter("sleep 100.2\r")
		m.eventually("sleep runs", func() bool { return m.sandboxed("100.2") != 0 })
		k.enter("\x1a")
		k.expect("Stopped")
		k.expect("PROMPT>")
		assert.EqualValues(t, 'T', state(m.sandboxed("100.2")))
		k.enter("fg\r")
		m.eventually("sleep goes on", func() bool { return state(m.sandboxed("100.2")) == 'S' })
		k.enter("\x03")
		k.expect("PROMPT>")
		k.enter("exit 9\r")
		assert.Equal(t, 9, await(t, cmd, &bytes.Buffer{}, &bytes.Buffer{}).code)
	})
}

// Our terminal is again as it was, also while run is stopped.
func TestRunTerminalRestored(t *testing.T) {
	m := &way{host: newHost(t, map[string]string{"a": ""}), tmp: t.TempDir()}
	cmd, ptmx, k := onTerminal(t, m, "a", "--", "sh", "-c", "echo ready; sleep 0.3; exec cat")
	k.expect("ready")
	echoes := func() bool { return localFlags(t, ptmx)&syscall.ECHO != 0 }
	m.eventually("raw", func() bool { return !echoes() })
	require.NoError(t, cmd.Process.Signal(syscall.SIGTSTP))
	m.eventually("stopped", func() bool { return state(cmd.Process.Pid) == 'T' })
	assert.True(t, echoes(), "stopped")
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	m.eventually("raw", func() bool { return !echoes() })
	k.enter("word\r\x04")
	k.expect("word")
	assert.Zero(t, await(t, cmd, &bytes.Buffer{}, &bytes.Buffer{}).code)
	assert.True(t, echoes(), "ended")
}

// With -t and no terminal of ours there is one all the same, and an end of input.
func TestRunTerminalOfNone(t *testing.T) {
	inAllWays(t, map[string]string{"a": ""}, func(t *testing.T, m *way) {
		cmd := m.scopefs("run", "-t", "a", "--", "sh", "-c", "test -t 0 && test -t 1 && stty size; cat")
		cmd.Stdin = bytes.NewReader([]byte("word\n"))
		o := finish(t, cmd)
		assert.Zero(t, o.code, o.stderr)
		assert.Contains(t, o.stdout, "24 80\r\n")
		assert.Equal(t, 2, strings.Count(o.stdout, "word\r\n"), "the echo, and cat: %q", o.stdout)
	})
}

// Without -t nothing in the sandbox is a terminal, though ours are.
func TestRunNoTerminal(t *testing.T) {
	m := &way{host: newHost(t, map[string]string{"a": ""}), tmp: t.TempDir()}
	cmd, _, k := onTerminal(t, m, "-T", "a", "--", "sh", "-c", "test -t 0 || test -t 1 || test -t 2 || echo none; tty || exit 4")
	k.expect("none")
	assert.Equal(t, 4, await(t, cmd, &bytes.Buffer{}, &bytes.Buffer{}).code)
}

func localFlags(t *testing.T, f *os.File) uint32 {
	t.Helper()
	termios, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	require.NoError(t, err)
	return termios.Lflag
}
