package contextfs_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/internal/contextfs"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// TestProcess looks at the process while it serves: it is the agent's user and can do nothing else. The daemon has no
// /dev/fuse.
func TestProcess(t *testing.T) {
	b := newBox(t)
	defer b.show("a", map[string]string{"state.json": "x"})()
	require.Equal(t, "x", b.run("a", "cat", "/context/state.json"))
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.mount.PID()))
	require.NoError(t, err)
	for _, line := range []string{
		"Uid:\t1000\t1000\t1000\t1000\n", "Gid:\t1000\t1000\t1000\t1000\n", "Groups:\t \n",
		"NSpid:\t" + fmt.Sprint(b.mount.PID()) + "\t1\n",
		"CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapAmb:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n",
	} {
		assert.Contains(t, string(text), line)
	}
	fds, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, fd := range fds {
		to, _ := os.Readlink(fd)
		assert.NotEqual(t, "/dev/fuse", to)
	}
}

// TestDies kills and stops the process while a client reads, again and again: the client gets an error within seconds, the
// sandbox goes on, and nothing is left.
func TestDies(t *testing.T) {
	need.Long(t, "it waits for processes that do not answer")
	for signal, want := range map[syscall.Signal]string{syscall.SIGKILL: "signal: killed", syscall.SIGSTOP: "slept or was stopped"} {
		for round := range need.Rounds("SCOPEFS_TEST_ROUNDS", 4, 20) {
			t.Run(fmt.Sprint(signal, " ", round), func(t *testing.T) {
				b := newBox(t)
				defer b.show("a", map[string]string{"state.json": strings.Repeat("x", 1<<20)})()
				p := b.start("a", "bash", "-c", `cat /context/state.json | wc -c
					while cat /context/state.json >/dev/null; do :; done; ls /context; echo over`)
				line := make([]byte, 8)
				_, err := io.ReadFull(p.Stdout, line)
				require.NoError(t, err)
				require.Equal(t, "1048576\n", string(line))
				began, pid := time.Now(), b.mount.PID()
				require.NoError(t, syscall.Kill(pid, signal))
				rest, err := io.ReadAll(p.Stdout)
				require.NoError(t, err)
				assert.Equal(t, "over\n", string(rest))
				assert.Less(t, time.Since(began), 5*time.Second)
				said, err := io.ReadAll(p.Stderr)
				require.NoError(t, err)
				assert.Regexp(t, "cat: .*(not connected|abort)", string(said))
				assert.ErrorContains(t, <-b.died, want)
				assert.Equal(t, "on\n", b.run("a", "echo", "on"))
				require.NoError(t, b.session.Close())
				b.mount.Close()
				assert.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
			})
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	assert.NotContains(t, string(mounts), "scopefs-context")
}

// TestDropped: the process drops the content of a call that has ended, also when no client sends a request. Buffers of
// replies keep pieces of it, and now and then the runtime does not return a run of free pages, of 2.5 MiB for instance.
func TestDropped(t *testing.T) {
	b := newBox(t)
	const size = 8 << 20
	hide := b.show("a", map[string]string{"state.json": strings.Repeat(secret+"\n", size/(len(secret)+1))})
	require.Contains(t, b.run("a", "head", "-n", "1", "/context/state.json"), secret)
	held := func() (bytesHeld int) {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", b.mount.PID()))
		require.NoError(t, err)
		mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", b.mount.PID()))
		require.NoError(t, err)
		defer mem.Close()
		for line := range strings.Lines(string(maps)) {
			var from, to int64
			if _, err := fmt.Sscanf(line, "%x-%x rw", &from, &to); err == nil {
				text := make([]byte, to-from)
				_, _ = mem.ReadAt(text, from)
				bytesHeld += bytes.Count(text, []byte(secret)) * len(secret)
			}
		}
		return bytesHeld
	}
	assert.Greater(t, held(), size*9/10)
	hide()
	require.Eventually(t, func() bool { return held() < size/2 }, 20*time.Second, 100*time.Millisecond)
}

// TestEnds: the process ends with its mount, and that is no death.
func TestEnds(t *testing.T) {
	b := newBox(t)
	require.Empty(t, b.run("a", "ls", "-A", "/context"))
	pid := b.mount.PID()
	require.NoError(t, b.session.Close())
	require.Eventually(t, func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH }, 20*time.Second, time.Millisecond)
	b.mount.Close()
	assert.Empty(t, b.died)
}

// frames returns messages as the process sends them.
func frames(t *testing.T, messages ...string) []byte {
	var out bytes.Buffer
	for _, m := range messages {
		require.NoError(t, peer.NewWriter(&out, 1<<20, 0).Write([]byte(m), nil))
	}
	return out.Bytes()
}

// TestHostile has a process that an agent has taken over: it sends what it wants.
func TestHostile(t *testing.T) {
	need.Root(t, "it mounts")
	const ready = `{"ready":["x"]}`
	flood := []string{ready}
	for i := range 20_000 {
		text, err := json.Marshal(map[string]any{"id": i + 1, "tid": i})
		require.NoError(t, err)
		flood = append(flood, string(text))
	}
	for name, test := range map[string]struct {
		sent []byte
		want string // "": it is not ended
	}{
		"too large":        {[]byte("\xff\xff\xff\xff\x00\x00\x00\x00"), "frame too large"},
		"large content":    {[]byte("\x02\x00\x00\x00\x00\x10\x00\x00{}"), "frame too large"},
		"no message":       {frames(t, "nonsense"), "invalid character"},
		"unknown field":    {frames(t, `{"ready":["x"],"files":1}`), "unknown field"},
		"refuses":          {frames(t, `{"failed":"no"}`), "it refuses to serve: no"},
		"ready twice":      {frames(t, ready, ready), "no request"},
		"thread too large": {frames(t, ready, `{"id":1,"tid":4294967296}`), "cannot unmarshal"},
		"ids again":        {frames(t, ready, `{"id":1,"tid":1}`, `{"id":1,"tid":1,"refused":true}`), ""},
		"flood":            {frames(t, flood...), ""},
		"reads nothing":    {frames(t, append([]string{ready}, slices.Repeat(flood[1:], 3)...)...), "file already closed"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, reader := t.TempDir(), "cat <&4 >/dev/null &"
			if name == "reads nothing" {
				need.Long(t, "it waits for a process that reads nothing")
				reader = ""
			}
			sent, script := filepath.Join(dir, "sent"), filepath.Join(dir, "script")
			require.NoError(t, os.WriteFile(sent, test.sent, 0o644))
			text := fmt.Sprintf("#!/bin/sh\nwhile printf p; do sleep 0.1; done >&5 &\n%s cat %s >&4\n: >%[2]s.taken\nexec sleep 1000\n",
				reader, sent)
			require.NoError(t, os.WriteFile(script, []byte(text), 0o755))
			var asked atomic.Int64
			began := time.Now()
			died := make(chan error, 1)
			m, err := contextfs.Open(contextfs.Options{
				Program: script, Control: fusemount.Control{}, Logger: slog.New(slog.DiscardHandler),
				Refused: func(uint32) { asked.Add(1) }, Ready: func(int) {}, Died: func(_ *sandbox.Session, why error) { died <- why },
			})
			require.NoError(t, err)
			m.Answer(func(uint32) *contextfs.Files { asked.Add(1); return nil })
			if test.want != "" {
				assert.ErrorContains(t, <-died, test.want)
			} else {
				taken := func() bool { _, err := os.Stat(sent + ".taken"); return err == nil }
				require.Eventually(t, taken, 20*time.Second, time.Millisecond)
				require.Eventually(t, func() bool { return asked.Load() > 0 }, 20*time.Second, time.Millisecond)
				assert.Empty(t, died)
			}
			assert.LessOrEqual(t, asked.Load(), int64(8000*(1+time.Since(began).Seconds())))
			m.Close()
			assert.Less(t, time.Since(began), 20*time.Second)
		})
	}
}
