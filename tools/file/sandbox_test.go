package file

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file/message"
	"github.com/scopefs/scopefs/tools/file/worker"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// workers are the file workers that we have started.
func workers(t *testing.T) (pids []int) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, name := range names {
		text, _ := os.ReadFile(name)
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		require.NoError(t, err)
		if string(text) == child.Files+"\x00"+sandbox.Workspace+"\x00" && below(pid, os.Getpid()) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// onlyWorker returns the only one, when its program has started.
func onlyWorker(t *testing.T) int {
	t.Helper()
	var pids []int
	require.Eventually(t, func() bool { pids = workers(t); return len(pids) == 1 }, 20*time.Second, 10*time.Millisecond)
	return pids[0]
}

// below reports whether a process has another among its ancestors.
func below(pid, ancestor int) bool {
	for pid > 1 && pid != ancestor {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return false
		}
		f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		pid, _ = strconv.Atoi(f[1])
	}
	return pid == ancestor
}

// A worker that is killed is started again by the next call; one under way that
// only reads is asked again.
func TestSandboxRestart(t *testing.T) {
	tr := newTree(t, map[string]string{"f": "text\n"})
	w, _ := newSandboxWorker(t, tr.root)
	for range 3 {
		r, err := do[ReadArgs, ReadResult](ctx(), w, "c", readOp, ReadArgs{Path: "/workspace/f"})
		require.NoError(t, err)
		assert.Equal(t, "text\n", r.Text)
		pids := workers(t)
		require.Len(t, pids, 1)
		require.NoError(t, unix.Kill(pids[0], unix.SIGKILL))
	}
	require.NoError(t, w.Close())
	_, err := w.Object(ctx(), "read_file", "f", false)
	assert.ErrorIs(t, err, sandbox.ErrEnded)
	assert.Eventually(t, func() bool { return len(workers(t)) == 0 }, 20*time.Second, 10*time.Millisecond)
}

// A worker that a command has stopped is replaced: a call that only reads has its
// answer, another an error that says what to do, and the next call works.
func TestSandboxStopped(t *testing.T) {
	need.Once(t)
	need.Long(t, "waits for a time limit")
	tr := newTree(t, map[string]string{"f": "text\n"})
	w, s := newSandboxWorker(t, tr.root)
	w.Beat = time.Second / 2
	first := onlyWorker(t)
	require.NoError(t, unix.Kill(first, unix.SIGKILL)) // the next has it
	require.Eventually(t, func() bool {                // its death is known
		require.NoError(t, w.Start(ctx()))
		now := workers(t)
		return len(now) == 1 && now[0] != first
	}, 20*time.Second, 10*time.Millisecond)
	stop := func() int {
		pid := onlyWorker(t)
		p, err := s.Exec(ctx(), sandbox.Command{Argv: []string{"sh", "-c", `for p in /proc/[0-9]*; do
			if tr '\0' ' ' <$p/cmdline | grep -q '^scopefs-files'; then kill -STOP ${p#/proc/}; fi; done`}})
		require.NoError(t, err)
		defer p.Close()
		p.Stdin.Close()
		_, err = p.Wait()
		require.NoError(t, err)
		return pid
	}
	first = stop()
	c, cancel := context.WithTimeout(ctx(), time.Minute)
	defer cancel()
	r, err := do[ReadArgs, ReadResult](c, w, "c", readOp, ReadArgs{Path: "f"})
	require.NoError(t, err)
	assert.Equal(t, "text\n", r.Text)
	second := stop()
	assert.NotEqual(t, first, second)
	begun := time.Now()
	_, err = do[WriteArgs, WriteResult](c, w, "c", operation{name: "write_file"}, WriteArgs{Path: "f", Content: "new\n"})
	e := asTold(t, err)
	assert.Equal(t, tools.Unavailable, e.Code)
	assert.NotEmpty(t, e.Hint)
	assert.ErrorIs(t, err, worker.ErrSilent, "for the log")
	assert.Less(t, time.Since(begun), 20*time.Second)
	_, err = do[WriteArgs, WriteResult](c, w, "c", operation{name: "write_file"}, WriteArgs{Path: "f", Content: "new\n"})
	require.NoError(t, err)
	assert.Equal(t, "new\n", tr.content(t, "f"))
	assert.Eventually(t, func() bool { return len(workers(t)) == 1 }, 20*time.Second, 10*time.Millisecond, "the others are gone")
}

// The other processes of a sandbox, of the same user, cannot look into a worker.
func TestSandboxCannotTouchWorker(t *testing.T) {
	tr := newTree(t, nil)
	_, s := newSandboxWorker(t, tr.root)
	require.Eventually(t, func() bool { return len(workers(t)) == 1 }, 20*time.Second, 10*time.Millisecond)
	p, err := s.Exec(ctx(), sandbox.Command{Argv: []string{"sh", "-c", `for p in /proc/[0-9]*; do
		if tr '\0' ' ' <$p/cmdline | grep -q '^scopefs-files'; then
			for x in mem environ maps fd/0 exe cwd; do if cat $p/$x >/dev/null 2>&1 || ls $p/$x/ >/dev/null 2>&1; then echo "read $x"; fi; done
			for fd in 0 1; do if (: >$p/fd/$fd) 2>/dev/null; then echo "wrote $fd"; fi; done
			echo seen
		fi; done`}})
	require.NoError(t, err)
	defer p.Close()
	p.Stdin.Close()
	out, err := io.ReadAll(p.Stdout)
	require.NoError(t, err)
	assert.Equal(t, "seen\n", string(out))
}

// While a call's work is done the thread has its name, and so do those that help.
func TestSandboxThreadNames(t *testing.T) {
	need.Long(t, "it takes seconds")
	need.Root(t, "looks into another user's process")
	require.Zero(t, os.Geteuid(), "looks into another user's process")
	tr := newTree(t, nil)
	for n := range 300 {
		require.NoError(t, os.WriteFile(fmt.Sprintf("%s/%d", tr.root, n), bytes.Repeat([]byte("aaaaaaaab"), 100_000), 0o644))
	}
	w, _ := newSandboxWorker(t, tr.root)
	pid := onlyWorker(t)
	named := func() (n int) {
		names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
		for _, name := range names {
			if text, _ := os.ReadFile(name); string(text) == "call-12345-abcd\n" {
				n++
			}
		}
		return n
	}
	c, cancel := context.WithCancel(ctx())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := do[GrepArgs, GrepResult](c, w, "call-12345-abcd", operation{"grep", true}, GrepArgs{Pattern: "(a|aa)+$", Output: OutputCount})
		done <- err
	}()
	assert.Eventually(t, func() bool { return named() >= 2 }, 20*time.Second, time.Millisecond)
	cancel()
	assert.Error(t, <-done)
	assert.Eventually(t, func() bool { return named() == 0 }, 20*time.Second, time.Millisecond)
}

// A worker whose pipes end takes back what it has half done.
func TestServeEndsCleanly(t *testing.T) {
	need.Long(t, "it takes seconds")
	tr := newTree(t, map[string]string{"d/": ""})
	for n := range 200 {
		require.NoError(t, os.WriteFile(fmt.Sprintf("%s/d/%d", tr.root, n), []byte(strings.Repeat("x", 1<<20)), 0o644))
	}
	w := newLink(t, tr) // whose end sees that serve returns
	done := make(chan error, 1)
	go func() {
		_, err := do[copyArgs, message.CopyResult](ctx(), w, "c", operation{name: "copy"}, copyArgs{From: "d", To: "e", Recursive: true})
		done <- err
	}()
	require.Eventually(t, func() bool { _, err := os.Stat(tr.root + "/e"); return err == nil }, 20*time.Second, time.Millisecond)
	require.NoError(t, w.Close())
	assert.Error(t, <-done)
}
