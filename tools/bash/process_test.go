package bash

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// fake is a sandbox in which every Exec fails with err.
type fake struct {
	err error
	got []sandbox.Command
}

func (f *fake) Exec(_ context.Context, c sandbox.Command) (*sandbox.Process, error) {
	f.got = append(f.got, c)
	return nil, fmt.Errorf("exec: %w", f.err)
}

func TestStartErrors(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		cwd  string
		code tools.Code
		n    int // commands tried
	}{
		"no directory": {unix.ENOENT, "d", tools.NotFound, 2},
		"no shell":     {unix.ENOENT, "", "", 2},
		"loop":         {unix.ELOOP, "d", tools.Invalid, 1},
		"no processes": {unix.EAGAIN, "d", tools.RateLimited, 1},
		"unknown":      {unix.EIO, "d", "", 1},
		"ended":        {sandbox.ErrEnded, "d", tools.Unavailable, 1},
	} {
		t.Run(name, func(t *testing.T) {
			sandbox := &fake{err: c.err}
			s := NewShell(sandbox)
			_, err := s.run(context.Background(), env, runArgs{Command: "x", Cwd: c.cwd})
			var e *tools.Error
			if c.code == "" {
				assert.ErrorIs(t, err, c.err)
				assert.NotErrorAs(t, err, &e)
			} else {
				require.ErrorAs(t, err, &e)
				assert.Equal(t, c.code, e.Code)
			}
			assert.Len(t, sandbox.got, c.n)
			assert.NoError(t, s.Close())
		})
	}
}

func TestBackground(t *testing.T) {
	s, _ := newTestShell(t)
	id := background(t, s, "echo one; sleep 0.1; echo two >&2; sleep 0.05; echo three; exit 4")
	assert.Equal(t, "p1", id)
	assert.Equal(t, "p2", background(t, s, "cat >&2; sleep 1046"))
	r := read(t, s, readArgs{ID: id, WaitMS: 5000})
	all := r.Output
	for r.Running || r.More {
		r = read(t, s, readArgs{ID: id, WaitMS: 5000})
		all += r.Output
	}
	assert.Equal(t, "one\ntwo\nthree\n", all)
	assert.Equal(t, status{ExitCode: code(4)}, r.status)
	assert.Equal(t, "", read(t, s, readArgs{ID: id, WaitMS: 5000}).Output, "all was read, and it does not wait")
	assert.Equal(t, "one\nthree\n", read(t, s, readArgs{ID: id, Stream: "stdout"}).Output)
	assert.Equal(t, "two\n", read(t, s, readArgs{ID: id, Stream: "stderr"}).Output)
	whole := read(t, s, readArgs{ID: id, Offset: new(int64)})
	assert.Equal(t, "one\ntwo\nthree\nexit status 4\n", whole.Content()[0].Text)

	begin := time.Now()
	r = read(t, s, readArgs{ID: "p2", WaitMS: 100})
	assert.True(t, r.Running)
	assert.GreaterOrEqual(t, time.Since(begin), 100*time.Millisecond)
	_, err := s.read(context.Background(), env, readArgs{ID: "p3"})
	var e *tools.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, tools.NotFound, e.Code)
}

func TestBackgroundOutlivesTheCall(t *testing.T) {
	s, _ := newTestShell(t)
	ctx, cancel := context.WithCancel(context.Background())
	r, err := s.run(ctx, env, runArgs{Command: "read x; echo $x; sleep 0.1; echo done", Stdin: "in\n", Background: true})
	require.NoError(t, err)
	cancel()
	got := ""
	for out := read(t, s, readArgs{ID: r.ProcessID, WaitMS: 5000}); ; out = read(t, s, readArgs{ID: r.ProcessID, WaitMS: 5000}) {
		got += out.Output
		if !out.Running {
			break
		}
	}
	assert.Equal(t, "in\ndone\n", got)
}

// TestLeftBehind runs a command that exits while its child holds the streams open.
func TestLeftBehind(t *testing.T) {
	s, _ := newTestShell(t)
	r := bash(t, s, "echo early; (until [ -e gate ]; do sleep 0.01; done; echo late) & exit 5")
	assert.Equal(t, status{ExitCode: code(5)}, r.status)
	assert.Equal(t, "early\n", r.Stdout)
	require.Equal(t, "p1", r.ProcessID)
	bash(t, s, "touch gate")
	got := read(t, s, readArgs{ID: "p1", Offset: ptr(6), WaitMS: 5000})
	assert.Equal(t, "late\n", got.Output)
	assert.False(t, got.Running)

	begin := time.Now()
	r = bash(t, s, "yes | { head -c 200000; touch writes; exec cat; } & until [ -e writes ]; do sleep 0.01; done; exit 0")
	assert.Less(t, time.Since(begin), maxSettle+10*time.Second, "a child that never stops writing")
	assert.True(t, r.Truncated)
}

func TestStop(t *testing.T) {
	s, _ := newTestShell(t)
	for name, c := range map[string]struct {
		command, signal string
		want            status
		atLeast         time.Duration
	}{
		"TERM": {"echo r; sleep " + seconds(1047), "", status{ExitCode: code(143), Signal: "SIGTERM"}, 0},
		// Without a child: bash forgets a SIGINT that comes just when its child exits.
		"INT":     {"trap 'exit 6' INT; echo r; while :; do :; done", "INT", status{ExitCode: code(6)}, 0},
		"ignored": {"trap '' TERM; echo r; sleep " + seconds(1047) + "; sleep " + seconds(1047), "TERM", status{ExitCode: code(137), Signal: "SIGKILL"}, stopGrace},
		"KILL":    {"trap 'exit 8' TERM; echo r; while :; do sleep 0.01; done", "KILL", status{ExitCode: code(137), Signal: "SIGKILL"}, 0},
		"ended":   {"echo r; exit 7", "KILL", status{ExitCode: code(7)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "ignored" {
				need.Long(t, "waits for the grace period")
			}
			id := background(t, s, c.command)
			require.Equal(t, "r\n", read(t, s, readArgs{ID: id, WaitMS: 5000}).Output)
			if name == "ended" {
				read(t, s, readArgs{ID: id, WaitMS: 5000})
			}
			begin := time.Now()
			got, err := s.stop(context.Background(), env, stopArgs{ID: id, Signal: c.signal})
			require.NoError(t, err)
			assert.Equal(t, stopResult{ID: id, status: c.want}, got)
			assert.GreaterOrEqual(t, time.Since(begin), c.atLeast)
		})
	}
	assert.Eventually(t, func() bool { return runs(t, "sleep", seconds(1047)) == 0 }, 20*time.Second, time.Millisecond)
}

func TestClose(t *testing.T) {
	s, _ := newTestShell(t)
	background(t, s, "sleep "+seconds(1048)+" & sleep "+seconds(1048))
	bash(t, s, "setsid -f sleep 1049") // holds the streams open
	ended := make(chan error)
	go func() {
		_, err := s.run(context.Background(), env, runArgs{Command: "sleep " + seconds(1048) + "; true"})
		ended <- err
	}()
	require.Eventually(t, func() bool { return runs(t, "sleep", seconds(1048)) == 3 }, 20*time.Second, time.Millisecond)
	require.NoError(t, s.Close())
	assert.NoError(t, <-ended) // the result of a killed command is no error
	assert.Zero(t, runs(t, "sleep", seconds(1048)))
	_, err := s.run(context.Background(), env, runArgs{Command: "true"})
	assert.Equal(t, errEnded(), err)
	assert.NoError(t, s.Close())
}

func TestBounds(t *testing.T) {
	s, _ := newTestShell(t)
	for i := range maxRunning {
		require.Equal(t, fmt.Sprintf("p%d", i+1), background(t, s, "read x; sleep 1050"))
	}
	_, err := s.run(context.Background(), env, runArgs{Command: "true"})
	var e *tools.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, tools.RateLimited, e.Code)
	for i := range maxRunning {
		_, err := s.stop(context.Background(), env, stopArgs{ID: fmt.Sprintf("p%d", i+1), Signal: "KILL"})
		require.NoError(t, err)
	}
	held := bash(t, s, "sleep 1051 & exit 0").ProcessID // its streams stay open
	for range maxEnded {
		id := background(t, s, "true")
		read(t, s, readArgs{ID: id, WaitMS: 5000})
	}
	bash(t, s, "true") // evicts
	assert.LessOrEqual(t, len(s.jobs), maxEnded)
	_, err = s.find(held)
	assert.NoError(t, err)
	_, err = s.find("p1")
	assert.Error(t, err)
}
