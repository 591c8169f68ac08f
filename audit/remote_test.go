package audit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/segment"
	"github.com/scopefs/scopefs/internal/descriptors"
)

// childServe is a child that serves a log on descriptors 3 and 4.
func childServe(string) error {
	if err := syscall.SetNonblock(4, true); err != nil {
		return err
	}
	return Serve(os.NewFile(3, "conn"), os.NewFile(4, "control"))
}

// writer is the process that writes a log, for Start.
type writer struct {
	*os.File
	cmd *exec.Cmd
}

func (w writer) Close() error {
	err := w.File.Close()
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
	return err
}

// writers returns a function that starts writers, and a pointer to the last one.
func writers(t testing.TB) (start func() (Process, error), last *writer) {
	last = &writer{}
	return func() (Process, error) {
		ours, theirs, err := descriptors.Pair(unix.SOCK_STREAM)
		require.NoError(t, err)
		defer theirs.Close()
		control, channels, err := descriptors.Pair(unix.SOCK_SEQPACKET)
		require.NoError(t, err)
		defer channels.Close()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"=serve")
		cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{theirs, channels}
		require.NoError(t, cmd.Start())
		*last = writer{ours, cmd}
		return Process{*last, control}, nil
	}, last
}

func TestRemote(t *testing.T) {
	dir := t.TempDir()
	start, process := writers(t)
	notices := make(chan Event, 10)
	l, err := Start(start, dir, Options{SegmentBytes: 10 << 10, Sync: 10 * time.Millisecond, Retry: 10 * time.Millisecond, Notice: func(e Event) { notices <- e }})
	require.NoError(t, err)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() { add(t, l, 50) })
	}
	group.Wait()
	assert.Len(t, all(t, dir), 400)

	require.NoError(t, os.Remove(filepath.Join(dir, segment.Name(lastNumber(t, dir)))))
	assert.Equal(t, OutcomeLost, (<-notices).Outcome)
	before := add(t, l, 1)

	require.NoError(t, process.cmd.Process.Kill())
	require.Eventually(t, func() bool {
		_, err := l.Append(noCtx, Event{Event: KindDaemon, Detail: "after"})
		return err == nil
	}, 10*time.Second, time.Millisecond)
	assert.Greater(t, add(t, l, 1), before+1)
	require.NoError(t, l.Close())
	outcomes, _ := about(t, dir)
	assert.Contains(t, outcomes, OutcomeLost)
}

func lastNumber(t *testing.T, dir string) int {
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	all, err := segment.List(root)
	require.NoError(t, err)
	return last(all)
}

// stopped reports whether SIGSTOP has reached each thread: until the thread that takes the signal runs, the others go on.
func stopped(t *testing.T, pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	require.NoError(t, err)
	return !slices.ContainsFunc(threads, func(name string) bool {
		text, _ := os.ReadFile(name)
		_, rest, _ := strings.Cut(string(text), ") ") // proc_pid_stat(5)
		return !strings.HasPrefix(rest, "T")
	})
}

// TestRemoteTimesOut checks that appends fail after the timeout if the process does not respond, that later appends
// fail at once, and that a late response ends the failure.
func TestRemoteTimesOut(t *testing.T) {
	dir := t.TempDir()
	start, process := writers(t)
	l, err := Start(start, dir, Options{Timeout: 50 * time.Millisecond, Retry: 10 * time.Millisecond})
	require.NoError(t, err)
	add(t, l, 1)
	pid := process.cmd.Process.Pid
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	require.Eventually(t, func() bool { return stopped(t, pid) }, 10*time.Second, time.Millisecond)
	_, err = l.Append(noCtx, Event{Event: KindFile})
	require.ErrorIs(t, err, ErrTimeout)
	require.ErrorIs(t, l.Err(), ErrTimeout)
	_, err = l.Append(noCtx, Event{Event: KindFile})
	require.ErrorIs(t, err, ErrTimeout)
	require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	require.Eventually(t, func() bool { return l.Err() == nil }, 10*time.Second, time.Millisecond)
	add(t, l, 1)
	require.NoError(t, l.Close())
	events := all(t, dir)
	assert.Len(t, events, 4)
	assert.Equal(t, OutcomeRecovered, events[2].Outcome)
}

func BenchmarkRemote(b *testing.B) {
	start, _ := writers(b)
	l, err := Start(start, b.TempDir(), Options{})
	require.NoError(b, err)
	defer l.Close()
	e := Event{Event: KindFile, Agent: "research-01", Op: "open", Path: "reference/notes/today.md", Verdict: Deny, Rule: "view.paths"}
	for b.Loop() {
		if _, err := l.Append(noCtx, e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkChannel(b *testing.B) {
	start, _ := writers(b)
	l, err := Start(start, b.TempDir(), Options{})
	require.NoError(b, err)
	defer l.Close()
	c := l.Channel("research-01")
	e := Event{Event: KindFile, Agent: "research-01", Op: "open", Path: "reference/notes/today.md", Verdict: Deny, Rule: "view.paths"}
	for b.Loop() {
		if _, err := c.Append(noCtx, e); err != nil {
			b.Fatal(err)
		}
	}
}
