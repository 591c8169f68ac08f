package sandbox

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/proc"
)

func TestExit(t *testing.T) {
	s := newTestSession(t)
	for name, c := range map[string]struct {
		script string
		want   Exit
		out    string
	}{
		"zero":          {"true", Exit{}, ""},
		"status":        {"exit 42", Exit{Code: 42}, ""},
		"signal":        {"kill -TERM $$", Exit{Code: -1, Signal: unix.SIGTERM}, ""},
		"streams":       {"echo out; echo err >&2", Exit{}, "out\nerr\n"},
		"ignored pipe":  {"trap", Exit{}, ""},
		"unknown":       {"no-such-program 2>/dev/null", Exit{Code: 127}, ""},
		"nested status": {"bash -c 'exit 7'", Exit{Code: 7}, ""},
		"shebang":       {"printf '#!/bin/sh\necho it\n' >/tmp/it; chmod +x /tmp/it; /tmp/it", Exit{}, "it\n"},
		"kill init":     {"kill -KILL 1; kill -TERM 1; kill -HUP 1; kill -USR1 1; kill -SEGV 1; echo alive", Exit{}, "alive\n"},
	} {
		t.Run(name, func(t *testing.T) {
			out, exit := run(t, s, "bash", "-c", c.script)
			assert.Equal(t, c.want, exit)
			assert.Equal(t, c.out, out)
		})
	}
}

func TestStartErrors(t *testing.T) {
	s := newTestSession(t)
	sh(t, s, "echo x >plain; mkdir sub")
	ctx := context.Background()
	for name, c := range map[string]struct {
		command Command
		want    error
	}{
		"no program":   {Command{Argv: []string{"no-such-program"}}, fs.ErrNotExist},
		"not runnable": {Command{Argv: []string{"./plain"}}, fs.ErrPermission},
		"no directory": {Command{Argv: []string{"true"}, Dir: "nowhere"}, fs.ErrNotExist},
		"a directory":  {Command{Argv: []string{"./sub"}}, fs.ErrPermission},
		"empty":        {Command{}, ErrInvalid},
		"NUL":          {Command{Argv: []string{"echo", "a\x00b"}}, ErrInvalid},
		"bad variable": {Command{Argv: []string{"true"}, Env: map[string]string{"A=B": ""}}, ErrInvalid},
		"too large":    {Command{Argv: []string{"true", strings.Repeat("x", 200<<10)}}, ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Exec(ctx, c.command)
			assert.ErrorIs(t, err, c.want)
		})
	}
	out, _ := run(t, s, "sh", "-c", "printf %s \"$1\" | wc -c", "sh", strings.Repeat("x", 120<<10))
	assert.Equal(t, "122880\n", out)
	out, _ = run(t, s, "printf", "%s", "a\xff\xfe b")
	assert.Equal(t, "a\xff\xfe b", out, "bytes that are no UTF-8")
}

func TestStreams(t *testing.T) {
	s := newTestSession(t)
	ctx := context.Background()

	t.Run("stdin ends", func(t *testing.T) {
		p, err := s.Exec(ctx, Command{Argv: []string{"wc", "-c"}})
		require.NoError(t, err)
		defer p.Close()
		go func() {
			io.CopyN(p.Stdin, zeros{}, 8<<20)
			p.Stdin.Close()
		}()
		out, err := io.ReadAll(p.Stdout)
		require.NoError(t, err)
		assert.Equal(t, "8388608\n", string(out))
	})
	t.Run("a pipe, with nobody in between", func(t *testing.T) {
		p, err := s.Exec(ctx, Command{Argv: []string{"readlink", "/proc/self/fd/1"}})
		require.NoError(t, err)
		defer p.Close()
		out, err := io.ReadAll(p.Stdout)
		require.NoError(t, err)
		var st unix.Stat_t
		require.NoError(t, unix.Fstat(int(p.Stdout.Fd()), &st))
		assert.Equal(t, fmt.Sprintf("pipe:[%d]\n", st.Ino), string(out))
	})
	t.Run("reader leaves", func(t *testing.T) {
		p, err := s.Exec(ctx, Command{Argv: []string{"yes"}})
		require.NoError(t, err)
		defer p.Close()
		_, err = io.ReadFull(p.Stdout, make([]byte, 4096))
		require.NoError(t, err)
		p.Stdout.Close()
		exit, err := p.Wait()
		require.NoError(t, err)
		assert.Equal(t, unix.SIGPIPE, exit.Signal)
	})
	t.Run("background keeps the pipe", func(t *testing.T) {
		p, err := s.Exec(ctx, Command{Argv: []string{"sh", "-c", "(sleep 0.3; echo late) & echo early"}})
		require.NoError(t, err)
		defer p.Close()
		exit, err := p.Wait()
		require.NoError(t, err)
		assert.Equal(t, Exit{}, exit)
		out, err := io.ReadAll(p.Stdout)
		require.NoError(t, err)
		assert.Equal(t, "early\nlate\n", string(out))
	})
}

func TestManyAtOnce(t *testing.T) {
	s := newTestSession(t)
	ctx := context.Background()
	done := make(chan string)
	for range 20 {
		go func() {
			p, err := s.Exec(ctx, Command{Argv: []string{"sh", "-c", "read x; echo $x"}})
			if err != nil {
				done <- err.Error()
				return
			}
			defer p.Close()
			io.WriteString(p.Stdin, "hello\n")
			out, _ := io.ReadAll(p.Stdout)
			p.Wait()
			done <- string(out)
		}()
	}
	for range 20 {
		assert.Equal(t, "hello\n", <-done)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestEnvironmentAndDirectory(t *testing.T) {
	t.Setenv("SECRET_OF_THE_DAEMON", "x")
	s := newTestSession(t, func(spec *Spec) { spec.Env = map[string]string{"OPERATOR": "1", "BOTH": "spec"} })
	p, err := s.Exec(context.Background(), Command{Argv: []string{"env"}, Dir: "/tmp",
		Env: map[string]string{"BOTH": "command", "TERM": "xterm"}})
	require.NoError(t, err)
	defer p.Close()
	out, err := io.ReadAll(p.Stdout)
	require.NoError(t, err)
	assert.ElementsMatch(t, []string{
		"PATH=" + DefaultPath, "HOME=/tmp/home", "USER=agent",
		"LOGNAME=agent", "DOCKER_HOST=" + noDocker, "SHELL=/bin/sh", "LANG=C.UTF-8", "TERM=xterm", "TMPDIR=/tmp", "OPERATOR=1", "BOTH=command",
	}, strings.Fields(string(out)))
	assert.Equal(t, "/workspace\n", sh(t, s, "pwd -P"))
	assert.Equal(t, "tester\n", sh(t, s, "hostname"))
	assert.Equal(t, "700 agent\n", sh(t, s, "stat -c '%a %U' $HOME"))
	assert.Equal(t, "0022\n", sh(t, s, "umask"))
}

func TestSignals(t *testing.T) {
	s := newTestSession(t, func(spec *Spec) { spec.Limits.Timeout = 500 * time.Millisecond })
	ctx, cancel := context.WithCancel(context.Background())
	start := func(ctx context.Context, script string) *Process {
		p, err := s.Exec(ctx, Command{Argv: []string{"bash", "-c", script}})
		require.NoError(t, err)
		t.Cleanup(func() { p.Close() })
		_, err = p.Stdout.Read(make([]byte, 100)) // it says that it is ready
		require.NoError(t, err)
		return p
	}
	t.Run("group", func(t *testing.T) {
		p := start(ctx, "trap 'echo got; exit 5' INT; echo ready; sleep 999 & wait")
		require.NoError(t, p.Signal(unix.SIGINT))
		exit, err := p.Wait()
		require.NoError(t, err)
		assert.Equal(t, Exit{Code: 5}, exit)
		assert.ErrorIs(t, p.Signal(unix.SIGINT), os.ErrProcessDone)
		assert.ErrorIs(t, p.Signal(0), os.ErrProcessDone)
	})
	t.Run("context", func(t *testing.T) {
		p := start(ctx, "echo ready; sleep "+seconds(7101))
		cancel()
		exit, err := p.Wait()
		require.NoError(t, err)
		assert.Equal(t, Exit{Code: -1, Signal: unix.SIGKILL}, exit)
		_, err = s.Exec(ctx, Command{Argv: []string{"true"}})
		assert.ErrorIs(t, err, context.Canceled)
	})
	t.Run("timeout kills every group and descendant of the command", func(t *testing.T) {
		p := start(context.Background(), "set -m; sleep "+seconds(7102)+" & (sleep "+seconds(7103)+") & setsid -w sh -c 'setsid -w sleep "+seconds(7105)+"; true' & echo ready; sleep "+seconds(7104))
		exit, err := p.Wait()
		require.NoError(t, err)
		assert.Equal(t, Exit{Code: -1, Signal: unix.SIGKILL, TimedOut: true}, exit)
		assert.NotContains(t, sh(t, s, "ps ax"), "sleep 100")
	})
}

func TestEnd(t *testing.T) {
	t.Run("close kills what runs in the background", func(t *testing.T) {
		s := newTestSession(t)
		p, err := s.Exec(context.Background(), Command{Argv: []string{"sh", "-c", "setsid -f sleep " + seconds(7105) + "; exec sleep " + seconds(7106)}})
		require.NoError(t, err)
		defer p.Close()
		require.NoError(t, s.Close())
		_, err = p.Wait()
		assert.ErrorIs(t, err, ErrEnded)
		_, err = s.Exec(context.Background(), Command{Argv: []string{"true"}})
		assert.ErrorIs(t, err, ErrEnded)
		assert.NoError(t, s.Err())
		assert.NoError(t, s.Close(), "again")
		assert.Empty(t, sleeping(t))
	})
	t.Run("init is killed", func(t *testing.T) {
		s := newTestSession(t)
		require.NoError(t, unix.Kill(s.PID(), unix.SIGKILL))
		<-s.Done()
		assert.Error(t, s.Err())
	})
	t.Run("bwrap is killed", func(t *testing.T) {
		s := newTestSession(t)
		require.NoError(t, s.bwrap.Process.Kill())
		<-s.Done()
		assert.Error(t, s.Err())
		stat, err := proc.ReadStat(s.PID()) // the host's init may not have buried it yet
		assert.True(t, err != nil || stat.State == 'Z', "%v", stat)
	})
	t.Run("cancelled start", func(t *testing.T) {
		h := newHost(t)
		spec := newSpec(t)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := h.Start(ctx, spec)
		assert.ErrorIs(t, err, context.Canceled)
	})
	t.Run("closed host", func(t *testing.T) {
		h := newHost(t)
		require.NoError(t, h.Close())
		_, err := h.Start(context.Background(), newSpec(t))
		assert.ErrorIs(t, err, os.ErrClosed)
	})
}
