package sandbox

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// console is a terminal that a test types on.
type console struct {
	t    *testing.T
	p    *Process
	seen string
}

func newConsole(t *testing.T, s *Session, argv ...string) *console {
	t.Helper()
	p, err := s.Exec(context.Background(), Command{Argv: argv, TTY: &Size{Rows: 30, Cols: 90},
		Env: map[string]string{"PS1": "PROMPT>", "TERM": "dumb"}})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return &console{t: t, p: p}
}

func (c *console) enter(text string) {
	c.t.Helper()
	_, err := c.p.TTY.WriteString(text)
	require.NoError(c.t, err)
}

// expect reads until want appears, and forgets what came before it.
func (c *console) expect(want string) string {
	c.t.Helper()
	c.p.TTY.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 4096)
	for !strings.Contains(c.seen, want) {
		n, err := c.p.TTY.Read(buf)
		c.seen += string(buf[:n])
		require.NoError(c.t, err, "waiting for %q, saw %q", want, c.seen)
	}
	before, after, _ := strings.Cut(c.seen, want)
	c.seen = after
	return before
}

func TestTTY(t *testing.T) {
	s := newTestSession(t)
	c := newConsole(t, s, "bash", "--norc", "-i")
	c.expect("PROMPT>")
	c.enter("tty; stty size; test -t 0 -a -t 1 -a -t 2 && echo 'is'tty\n")
	c.expect("/dev/pts/")
	c.expect("30 90")
	c.expect("istty")
	c.expect("PROMPT>")

	c.enter("trap 'stty size' WINCH\n")
	c.expect("PROMPT>")
	require.NoError(t, control(c.p.TTY, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 100})
	}))
	c.enter("\n")
	c.expect("40 100")

	// Ctrl-C and signals meet the foreground alone: the shell goes on.
	c.enter("sleep 7107; echo status=$?\n")
	c.expect("echo status=$?\r\n")
	awaitSleep(t, s, "7107")
	c.enter("\x03")
	c.expect("PROMPT>")
	c.enter("sleep 7108; echo 'st'atus=$?\n")
	awaitSleep(t, s, "7108")
	require.NoError(t, c.p.Signal(unix.SIGTERM))
	c.expect("status=143")

	// Job control.
	c.enter("sleep 7109\n")
	awaitSleep(t, s, "7109")
	c.enter("\x1a")
	c.expect("Stopped")
	c.enter("bg; jobs; kill %1; echo 'do'ne\n")
	c.expect("Running")
	c.expect("done")
	c.enter("exit 9\n")
	exit, err := c.p.Wait()
	require.NoError(t, err)
	assert.Equal(t, Exit{Code: 9}, exit)
	buf := make([]byte, 4096)
	for err == nil {
		_, err = c.p.TTY.Read(buf)
	}
	assert.ErrorIs(t, err, unix.EIO)
}

func TestTTYHangup(t *testing.T) {
	s := newTestSession(t)
	c := newConsole(t, s, "bash", "-c", "echo ready; sleep 7110")
	c.expect("ready")
	c.p.TTY.Close() // the terminal is gone: SIGHUP to its session
	exit, err := c.p.Wait()
	require.NoError(t, err)
	assert.Equal(t, unix.SIGHUP, exit.Signal)
}

// awaitSleep waits until "sleep arg" runs in the session.
func awaitSleep(t *testing.T, s *Session, arg string) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, exit := run(t, s, "pgrep", "-fx", "sleep "+arg)
		return exit.Code == 0
	}, 10*time.Second, 20*time.Millisecond)
}
