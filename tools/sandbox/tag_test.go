package sandbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// startTagged starts a script that stays, and returns when it has said so.
func startTagged(t *testing.T, s *Session, tag string, argv ...string) *Process {
	t.Helper()
	p, err := s.Exec(context.Background(), Command{Argv: argv, Tag: tag})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	_, err = p.Stdout.Read(make([]byte, 100))
	require.NoError(t, err)
	return p
}

// pidOf returns the host's number of the process with a command line, when
// there is one.
func pidOf(t *testing.T, words ...string) (pid int) {
	t.Helper()
	want := ""
	for _, w := range words {
		want += w + "\x00"
	}
	require.Eventually(t, func() bool {
		names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, name := range names {
			if text, _ := os.ReadFile(name); string(text) == want {
				pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(name)))
				return true
			}
		}
		return false
	}, 20*time.Second, 5*time.Millisecond, "%q", words)
	return pid
}

func TestTagOf(t *testing.T) {
	s := newTestSession(t)
	other, err := s.host.Start(context.Background(), s.spec)
	require.NoError(t, err)
	of := func(words ...string) string {
		tag, own, ours := s.TagOf(pidOf(t, words...))
		assert.False(t, own, "the shell that started it is: %q", words)
		if !ours {
			return "not ours"
		}
		return tag
	}
	plain := startTagged(t, s, "plain", "bash", "-c", "echo r; sleep "+seconds(7121)+"; true")
	startTagged(t, s, "deep", "bash", "-c", "set -m; (echo r; (sleep "+seconds(7122)+"; true) & wait); true")
	startTagged(t, s, "setsid", "bash", "-c", "setsid -w bash -c 'echo r; sleep "+seconds(7123)+"; true'; true")
	left := startTagged(t, s, "left", "bash", "-c", "(sleep "+seconds(7124)+" &); setsid -f sleep "+seconds(7125)+"; echo r")
	startTagged(t, s, "", "bash", "-c", "echo r; sleep "+seconds(7126)+"; true")
	startTagged(t, other, "other", "bash", "-c", "echo r; sleep "+seconds(7127)+"; true")
	_, err = left.Wait()
	require.NoError(t, err)

	assert.Equal(t, "plain", of("sleep", seconds(7121)))
	assert.Equal(t, "deep", of("sleep", seconds(7122)), "in a group of its own")
	assert.Equal(t, "setsid", of("sleep", seconds(7123)), "by its ancestors")
	assert.Equal(t, "left", of("sleep", seconds(7124)), "after the end")
	assert.Equal(t, "", of("sleep", seconds(7125)), "a session of its own, and no ancestor")
	assert.Equal(t, "", of("sleep", seconds(7126)), "no tag")
	assert.Equal(t, "not ours", of("sleep", seconds(7127)), "another session")
	for name, pid := range map[string]int{"we": os.Getpid(), "bwrap": s.bwrap.Process.Pid, "nobody": 1 << 22, "none": 0, "negative": -1, "1": 1} {
		_, _, ours := s.TagOf(pid)
		assert.False(t, ours, name)
	}
	_, _, ours := s.TagOf(s.PID())
	assert.True(t, ours, "init")

	require.NoError(t, plain.Signal(unix.SIGKILL))
	_, err = plain.Wait()
	require.NoError(t, err)
	pid := pidOf(t, "sleep", seconds(7126))
	require.NoError(t, s.Close())
	_, _, ours = s.TagOf(pid)
	assert.False(t, ours, "it has ended")
}

func TestTagOfThread(t *testing.T) {
	s := newTestSession(t)
	startTagged(t, s, "threads", FileWorker, "wait", seconds(60))
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pidOf(t, "scopefs-files", "wait", seconds(60))))
	require.NoError(t, err)
	require.Greater(t, len(tasks), 1)
	for _, task := range tasks {
		tid, _ := strconv.Atoi(filepath.Base(task))
		tag, own, ours := s.TagOf(tid)
		assert.True(t, ours && own)
		assert.Equal(t, "threads", tag)
	}
}

// TestTagOfVanishing asks while processes and their ancestors come and go.
func TestTagOfVanishing(t *testing.T) {
	s := newTestSession(t)
	startTagged(t, s, "storm", "bash", "-c", "echo r; while :; do (:; (:; (:)&)&); done")
	seen := map[string]int{}
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
		for _, pid := range children(s.PID()) {
			if tag, _, ours := s.TagOf(pid); ours {
				seen[tag]++
			}
		}
	}
	assert.NotZero(t, seen["storm"])
	assert.Len(t, seen, 1, "%v", seen)
}

func TestTagsAreBounded(t *testing.T) {
	tags := tags{commands: map[int]*tagged{}}
	lives := tags.started(2, "lives")
	first := tags.started(3, "first")
	tags.exited(first)
	again := tags.started(3, "again") // the number passes on
	for i := range 3 * maxEnded {
		tags.exited(tags.started(100+i, "x"))
	}
	assert.Len(t, tags.commands, maxEnded+2)
	assert.LessOrEqual(t, cap(tags.ended), 4*maxEnded)
	assert.Equal(t, lives, tags.commands[2])
	assert.Equal(t, again, tags.commands[3])
	assert.Nil(t, tags.commands[100])
	assert.Equal(t, "x", tags.commands[100+3*maxEnded-1].tag)
}

// TestOnlyTag: a command is the only one while no other has a process.
func TestOnlyTag(t *testing.T) {
	s := newTestSession(t)
	only := func() string { return s.OnlyTag("tools") }
	end := func(p *Process) {
		p.Stdin.Close()
		_, err := p.Wait()
		require.NoError(t, err)
	}
	assert.Equal(t, "", only(), "no process")
	startTagged(t, s, "tools", "bash", "-c", "echo r; sleep "+seconds(7131)+"; true")
	assert.Equal(t, "", only(), "excepted")
	one := startTagged(t, s, "one", "bash", "-c", "(sleep "+seconds(7132)+" &) >/dev/null 2>&1; echo r; read x")
	pidOf(t, "sleep", seconds(7132))
	assert.Equal(t, "one", only(), "with an orphan of its own")
	two := startTagged(t, s, "two", "bash", "-c", "echo r; read x")
	assert.Equal(t, "", only(), "two commands")
	end(two)
	assert.Equal(t, "one", only())
	end(one)
	assert.Equal(t, "one", only(), "what it has left behind")
	plain := startTagged(t, s, "", "bash", "-c", "echo r; read x")
	assert.Equal(t, "", only(), "a command without a tag")
	end(plain)
	assert.Equal(t, "one", only())
	startTagged(t, s, "one", "bash", "-c", "for i in {1.."+strconv.Itoa(maxChildren)+"}; do (sleep "+seconds(7135)+" &) >/dev/null 2>&1; done; echo r; read x")
	assert.Equal(t, "", only(), "a bounded number")
	require.NoError(t, s.Close())
	assert.Equal(t, "", only(), "the session has ended")
}

// TestOnlyTagChain: a command whose processes fork and end all the time is there, too.
func TestOnlyTagChain(t *testing.T) {
	need.Long(t, "it takes seconds")
	s := newTestSession(t)
	one := startTagged(t, s, "one", "python3", "-c", `
import os, time
if os.fork() == 0:
    os.close(1)
    os.close(2)
    while True:
        time.sleep(0.0003)
        if os.fork():
            os._exit(0)
os.write(1, b"r")
`)
	_, err := one.Wait()
	require.NoError(t, err)
	startTagged(t, s, "two", "bash", "-c", "echo r; read x")
	for range 2000 {
		require.Contains(t, []string{"", "one"}, s.OnlyTag("tools"))
	}
}

// BenchmarkOnlyTag asks about one command beside another that is excepted.
func BenchmarkOnlyTag(b *testing.B) {
	h, err := Open(Config{})
	require.NoError(b, err)
	defer h.Close()
	s, err := h.Start(context.Background(), newSpec(b))
	require.NoError(b, err)
	for _, tag := range []string{"tools", "t"} {
		p, err := s.Exec(context.Background(), Command{Tag: tag, Argv: []string{"bash", "-c", "read x; true"}})
		require.NoError(b, err)
		defer p.Close()
	}
	for b.Loop() {
		if s.OnlyTag("tools") != "t" {
			b.Fatal("not found")
		}
	}
}

// BenchmarkTagOf asks about a process five generations below init.
func BenchmarkTagOf(b *testing.B) {
	h, err := Open(Config{})
	require.NoError(b, err)
	defer h.Close()
	s, err := h.Start(context.Background(), newSpec(b))
	require.NoError(b, err)
	p, err := s.Exec(context.Background(), Command{Tag: "t", Argv: []string{"bash", "-c", "((((read x; true); true); true); true)"}})
	require.NoError(b, err)
	defer p.Close()
	pid := 0
	require.Eventually(b, func() bool {
		deepest := s.PID()
		depth := 0
		for next := children(deepest); len(next) > 0; next = children(deepest) {
			deepest, depth = next[0], depth+1
		}
		pid = deepest
		return depth == 5
	}, 20*time.Second, 10*time.Millisecond)
	for b.Loop() {
		if tag, _, ours := s.TagOf(pid); tag != "t" || !ours {
			b.Fatal(tag, ours)
		}
	}
}
