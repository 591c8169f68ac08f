package sandbox

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/proc"
)

// stops waits until init reports a stop after a turn.
func (c *console) stops(turn uint64) {
	c.t.Helper()
	select {
	case got := <-c.p.Stopped():
		assert.Equal(c.t, turn, got)
	case <-time.After(10 * time.Second):
		require.Fail(c.t, "no stop", "saw %q", c.seen)
	}
}

// goes ends a stop.
func (c *console) goes(turn uint64) {
	c.t.Helper()
	require.NoError(c.t, c.p.Continue(turn))
}

// ends waits for the end of the command.
func (c *console) ends() Exit {
	c.t.Helper()
	late := time.AfterFunc(time.Minute, func() { _ = c.p.Signal(unix.SIGKILL) })
	defer late.Stop()
	exit, err := c.p.Wait()
	require.NoError(c.t, err)
	return exit
}

// TestTTYStops: Ctrl-Z stops a command on a terminal, and init reports it.
func TestTTYStops(t *testing.T) {
	s := newTestSession(t)
	t.Run("each time", func(t *testing.T) {
		c := newConsole(t, s, "cat")
		c.enter("begun\n")
		c.expect("begun")
		for turn := range uint64(3) {
			c.enter("\x1a")
			c.stops(turn)
			c.goes(turn + 1)
			c.enter("on\n")
			c.expect("on\r\non")
		}
		c.enter("\x03")
		assert.Equal(t, unix.SIGINT, c.ends().Signal)
	})
	t.Run("a pipeline", func(t *testing.T) {
		c := newConsole(t, s, "sh", "-c", "echo begun; sleep 7120 | cat; true")
		c.expect("begun")
		awaitSleep(t, s, "7120")
		c.enter("\x1a")
		c.stops(0)
		sh(t, s, "until ps -o stat= -p $(pgrep -fx 'sleep 7120') | grep -q T; do sleep .01; done") // it may take the signal later than sh
		c.goes(1)
		c.enter("\x03")
		assert.Equal(t, unix.SIGINT, c.ends().Signal)
	})
	t.Run("below a shell", func(t *testing.T) { // which has job control of its own
		c := newConsole(t, s, "bash", "--norc", "-i")
		c.expect("PROMPT>")
		c.enter("bash --norc -i\n")
		c.expect("PROMPT>")
		c.enter("sleep 7121\n")
		awaitSleep(t, s, "7121")
		c.enter("\x1a")
		c.expect("Stopped")
		c.enter("suspend\n") // the inner one
		c.expect("Stopped")
		assert.Empty(t, c.p.Stopped())
		c.enter("suspend\n")
		c.stops(0)
		c.goes(1)
		c.enter("fg\n")
		c.enter("echo in\"ner\"\n")
		c.expect("inner")
		c.expect("PROMPT>")
		c.enter("fg\n")
		left := sh(t, s, "for i in $(seq 6000); do ps -o stat= -p $(pgrep -fx 'sleep 7121') | grep -q '^S.*+' && exit; sleep .01; done; ps -ef")
		require.Empty(t, left, "it has the terminal, and goes on: saw %q", c.seen)
		c.enter("\x03")
		c.expect("PROMPT>")
		c.enter("kill -9 $$\n")
		c.expect("Killed")
		c.enter("exit 5\n")
		assert.Equal(t, Exit{Code: 5}, c.ends())
	})
	t.Run("ignored", func(t *testing.T) {
		c := newConsole(t, s, "sh", "-c", "trap '' TSTP; echo begun; read x; echo got $x; kill -STOP $$; exit 3")
		c.expect("begun")
		c.enter("\x1a")
		c.enter("word\n")
		c.expect("got word")
		c.stops(0) // of SIGSTOP
		c.goes(1)
		assert.Equal(t, Exit{Code: 3}, c.ends())
	})
	t.Run("from outside", func(t *testing.T) {
		c := newConsole(t, s, "bash", "--norc", "-i")
		c.expect("PROMPT>")
		c.enter("sleep 7122\n")
		awaitSleep(t, s, "7122")
		require.NoError(t, c.p.Signal(unix.SIGSTOP))
		c.stops(0)
		c.goes(1)
		c.enter("\x03")
		ended := make(chan struct{})
		go func() { // bash forgets what it has read when it gets SIGINT, and wants exit twice if it saw its job stopped
			for ; ; time.Sleep(100 * time.Millisecond) {
				select {
				case <-ended:
					return
				default:
					_, _ = io.WriteString(c.p.TTY, "exit 6\n")
				}
			}
		}()
		assert.Equal(t, Exit{Code: 6}, c.ends())
		close(ended)
	})
	t.Run("not once more", func(t *testing.T) {
		c := newConsole(t, s, "sh", "-c", "echo begun; kill -STOP $$; read x; exit 7")
		c.expect("begun")
		c.stops(0)
		sh(t, s, `for i in 1 2 3 4 5; do pkill -CONT -x 'scopefs-init'; pkill -STOP -x 'scopefs-init'; done; true`)
		assert.Empty(t, c.p.Stopped())
		c.goes(1)
		c.enter("x\n")
		assert.Equal(t, Exit{Code: 7}, c.ends())
	})
}

// TestTTYEnds: a command on a terminal ends as it would without a leader of its session.
func TestTTYEnds(t *testing.T) {
	s := newTestSession(t)
	for name, want := range map[string]Exit{
		"exit 0":                  {},
		"exit 255":                {Code: 255},
		"kill -SEGV $$":           {Code: -1, Signal: unix.SIGSEGV},
		"kill -KILL $$":           {Code: -1, Signal: unix.SIGKILL},
		"kill -PIPE $$":           {Code: -1, Signal: unix.SIGPIPE},
		"kill -64 $$":             {Code: -1, Signal: 64},
		"sleep .1; kill -9 $PPID": {Code: -1, Signal: unix.SIGKILL}, // the leader
		"kill -HUP $$":            {Code: -1, Signal: unix.SIGHUP},
		"kill -15 $PPID":          {},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, want, newConsole(t, s, "sh", "-c", name).ends())
		})
	}
	t.Run("not found", func(t *testing.T) {
		_, err := s.Exec(context.Background(), Command{Argv: []string{"no-such-program"}, TTY: &Size{Rows: 3, Cols: 3}})
		assert.ErrorIs(t, err, unix.ENOENT)
		_, err = s.Exec(context.Background(), Command{Argv: []string{"/etc/passwd"}, TTY: &Size{Rows: 3, Cols: 3}})
		assert.ErrorIs(t, err, unix.EACCES)
		_, err = s.Exec(context.Background(), Command{Argv: []string{"true"}, Dir: "/no", TTY: &Size{Rows: 3, Cols: 3}})
		assert.ErrorIs(t, err, unix.ENOENT)
	})
	t.Run("hung up while stopped", func(t *testing.T) {
		c := newConsole(t, s, "sh", "-c", "echo begun; sleep 7123 | cat")
		c.expect("begun")
		c.enter("\x1a")
		c.stops(0)
		c.p.TTY.Close()
		c.goes(1)
		assert.Equal(t, unix.SIGHUP, c.ends().Signal)
	})
	t.Run("killed while stopped", func(t *testing.T) {
		c := newConsole(t, s, "sh", "-c", "echo begun; sleep 7124 | cat")
		c.expect("begun")
		c.enter("\x1a")
		c.stops(0)
		require.NoError(t, c.p.Signal(unix.SIGKILL))
		assert.Equal(t, unix.SIGKILL, c.ends().Signal)
		assert.Empty(t, c.p.Stopped())
	})
	assert.Empty(t, sh(t, s, "pgrep -x scopefs-init | grep -vx 1; pgrep sleep; true"), "nothing is left")
}

// TestTTYSignals: what a command on a terminal inherits is that of any.
func TestTTYSignals(t *testing.T) {
	s := newTestSession(t)
	c := newConsole(t, s, "sh", "-c", "grep -E '^Sig(Ign|Blk|Cgt)' /proc/self/status; env; ls -l /proc/self/fd; ps -o pid,pgid,sid,tpgid -p $$; echo end")
	seen := c.expect("end")
	for _, want := range []string{"SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000"} {
		assert.Contains(t, seen, want)
	}
	assert.NotContains(t, seen, "GOMAXPROCS")
	assert.NotContains(t, seen, "socket:")
}

// TestTTYTypes: a command types nothing into its terminal, which its other commands read: ioctl_tty(2), TIOCSTI.
func TestTTYTypes(t *testing.T) {
	need.Program(t, "python3")
	s := newTestSession(t)
	c := newConsole(t, s, "bash", "-c", `python3 -c '
import fcntl, termios
for request in termios.TIOCSTI, termios.TIOCLINUX:
    try:
        fcntl.ioctl(0, request, b"x\n")
        print("typed")
    except OSError as e:
        print("errno", e.errno)
'; read -t 1 x; echo "got <$x>"`)
	c.expect("errno 1\r\nerrno 1\r\n") // not 5, by which a kernel without TIOCSTI refuses it: sysctl dev.tty.legacy_tiocsti
	c.expect("got <>")
}

// TestTTYStopsWithoutDaemon: the next daemon learns of a stop that no daemon was there for.
func TestTTYStopsWithoutDaemon(t *testing.T) {
	s := newTestSession(t)
	c := newConsole(t, s, "cat")
	c.enter("begun\n")
	c.expect("begun\r\nbegun")
	o, files, err := s.Outlive(c.p)
	require.NoError(t, err)
	defer descriptors.Close(files)
	s.Leave()
	c.enter("\x1a")
	require.Eventually(t, func() bool {
		for _, pid := range childrenOf(s.PID()) { // the leader
			if stat, err := proc.ReadStat(pid); err == nil && stat.State == 'T' {
				return true
			}
		}
		return false
	}, 10*time.Second, time.Millisecond)
	next, all, err := s.host.Adopt("tester", o, files, nil, nil)
	require.NoError(t, err)
	defer next.Close()
	tty := c.p.TTY
	c.p = all[0]
	c.stops(0)
	c.goes(1)
	c.p.TTY = tty
	c.enter("\x03")
	assert.Equal(t, unix.SIGINT, c.ends().Signal)
}
