package cli

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

	"github.com/scopefs/scopefs/integration/harness"
)

// onTerminal starts run on a terminal of 90 by 30.
func onTerminal(t *testing.T, m *harness.Way, args ...string) (*exec.Cmd, *os.File, *harness.Talk) {
	t.Helper()
	cmd := m.Command(append([]string{"run"}, args...)...)
	cmd.Env = append(cmd.Env, "TERM=dumb", "PS1=PROMPT>")
	ptmx, k := harness.OnTerminal(t, cmd, 30, 90)
	return cmd, ptmx, k
}

func enter(k *harness.Talk, text string) {
	k.T.Helper()
	_, err := k.R.WriteString(text)
	require.NoError(k.T, err)
}

func TestRunTerminal(t *testing.T) {
	inAllWays(t, map[string]string{"a": ""}, func(t *testing.T, m *harness.Way) {
		cmd, ptmx, k := onTerminal(t, m, "-t", "-e", "PS1=PROMPT>", "a", "--", "bash", "--norc", "-i")
		k.Expect("PROMPT>")
		enter(k, "tty; stty size; test -t 0 -a -t 1 -a -t 2 && echo 'is'tty\r")
		k.Expect("/dev/pts/")
		k.Expect("30 90")
		k.Expect("istty")
		k.Expect("PROMPT>")

		// The size follows ours.
		require.NoError(t, pty.Setsize(ptmx, &pty.Winsize{Rows: 40, Cols: 100}))
		m.Eventually("the new size is there", func() bool {
			enter(k, "stty size\r")
			return bytes.Contains([]byte(k.Expect("PROMPT>")), []byte("40 100"))
		})

		// Ctrl-C ends what is in the foreground, and neither the shell nor run.
		first, second := harness.Seconds(2), harness.Seconds(3)
		enter(k, "sleep "+first+"; echo 'st'atus=$?\r")
		m.Eventually("sleep runs", func() bool { return m.Sandboxed(first) != 0 })
		enter(k, "\x03")
		k.Expect("PROMPT>")

		// Ctrl-Z stops it, fg takes it back.
		enter(k, "sleep "+second+"\r")
		m.Eventually("sleep runs", func() bool { return m.Sandboxed(second) != 0 })
		enter(k, "\x1a")
		k.Expect("Stopped")
		k.Expect("PROMPT>")
		assert.EqualValues(t, 'T', harness.StateOf(m.Sandboxed(second)))
		enter(k, "fg\r")
		m.Eventually("sleep goes on", func() bool { return harness.StateOf(m.Sandboxed(second)) == 'S' })
		enter(k, "\x03")
		k.Expect("PROMPT>")
		enter(k, "exit 9\r")
		assert.Equal(t, 9, harness.Await(t, cmd, &bytes.Buffer{}, &bytes.Buffer{}).Code)
	})
}

// Our terminal is again as it was. TestRunStops looks at it while run is stopped.
func TestRunTerminalRestored(t *testing.T) {
	m := &harness.Way{Host: harness.NewHost(t, map[string]string{"a": ""}), Tmp: t.TempDir()}
	cmd, ptmx, k := onTerminal(t, m, "a", "--", "sh", "-c", "echo ready; sleep 0.3; exec cat")
	k.Expect("ready")
	echoes := func() bool { return localFlags(t, ptmx)&syscall.ECHO != 0 }
	m.Eventually("raw", func() bool { return !echoes() })
	enter(k, "word\r\x04")
	k.Expect("word")
	assert.Zero(t, harness.Await(t, cmd, &bytes.Buffer{}, &bytes.Buffer{}).Code)
	assert.True(t, echoes(), "ended")
}

// With -t and no terminal of ours there is one all the same, and an end of input.
func TestRunTerminalOfNone(t *testing.T) {
	inAllWays(t, map[string]string{"a": ""}, func(t *testing.T, m *harness.Way) {
		cmd := m.Command("run", "-t", "a", "--", "sh", "-c", "test -t 0 && test -t 1 && stty size; cat")
		cmd.Stdin = bytes.NewReader([]byte("word\n"))
		o := harness.Finish(t, cmd)
		assert.Zero(t, o.Code, o.Stderr)
		assert.Contains(t, o.Stdout, "24 80\r\n")
		assert.Equal(t, 2, strings.Count(o.Stdout, "word\r\n"), "the echo, and cat: %q", o.Stdout)
	})
}

// Without -t nothing in the sandbox is a terminal, though ours are.
func TestRunNoTerminal(t *testing.T) {
	m := &harness.Way{Host: harness.NewHost(t, map[string]string{"a": ""}), Tmp: t.TempDir()}
	cmd, _, k := onTerminal(t, m, "-T", "a", "--", "sh", "-c", "test -t 0 || test -t 1 || test -t 2 || echo none; tty || exit 4")
	k.Expect("none")
	assert.Equal(t, 4, harness.Await(t, cmd, &bytes.Buffer{}, &bytes.Buffer{}).Code)
}

func localFlags(t *testing.T, f *os.File) uint32 {
	t.Helper()
	termios, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	require.NoError(t, err)
	return termios.Lflag
}
