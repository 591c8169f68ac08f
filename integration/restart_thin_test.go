package integration

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// thinWait is how long a client may wait for a daemon that is dead or stopped:
// 2 s are promised, on a machine that has nothing else to do.
const thinWait = 6 * time.Second

// started runs the command line beside the test.
type started struct {
	*exec.Cmd
	out   string // file of its standard output
	errs  bytes.Buffer
	ended chan error
}

func (h *host) begin(args ...string) *started {
	h.t.Helper()
	s := &started{Cmd: exec.Command(program, append([]string{"--base", h.base}, args...)...), ended: make(chan error, 1)}
	out, err := os.CreateTemp(h.base, "out-")
	require.NoError(h.t, err)
	defer out.Close()
	s.out, s.Stdout, s.Stderr = out.Name(), out, &s.errs
	require.NoError(h.t, s.Start())
	go func() { s.ended <- s.Wait() }()
	return s
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// ends waits for a command that must not wait for the daemon, and returns its
// exit status and what it said.
func (h *host) ends(s *started) (code int, errs string) {
	h.t.Helper()
	began := time.Now()
	select {
	case <-s.ended:
	case <-time.After(30 * time.Second):
		_ = s.Process.Kill()
		<-s.ended
		h.t.Fatalf("%q hangs", s.Args)
	}
	assert.Less(h.t, time.Since(began), thinWait, "%q: %s", s.Args, &s.errs)
	return s.ProcessState.ExitCode(), s.errs.String()
}

// TestRestartThinStopped: nobody waits for a daemon that is stopped.
func TestRestartThinStopped(t *testing.T) {
	t.Parallel()
	h := newHost(t, map[string]string{"a": ""})
	running := h.begin("run", "a", "--", "sh", "-c", "echo here; sleep 100")
	calling := h.begin("call", "--agent", "a", "bash", "command=echo x >called; sleep 100")
	h.eventually("both run", func() bool { return len(readAll(t, running.out)) > 0 && exists(h.scope("a", "called")) })
	require.NoError(t, h.cmd.Process.Signal(syscall.SIGSTOP))
	defer h.cmd.Process.Signal(syscall.SIGCONT)
	code, errs := h.ends(running)
	assert.Equal(t, 125, code)
	assert.Regexp(t, `^scopefs: the daemon \(process \d+\) is stopped: kill -CONT \d+; the command may still be running\n$`, errs)
	code, errs = h.ends(calling)
	assert.Equal(t, 1, code)
	assert.Regexp(t, `is stopped: kill -CONT \d+; whether the call had an effect is unknown\n$`, errs)
	var all []*started
	for _, args := range [][]string{{"ps"}, {"up", "a"}, {"down", "a"}, {"reload"}, {"approvals"}, {"run", "a", "--", "true"}, {"call", "--agent", "a", "stat", "path=."}, {"call", "--agent", "a", "--list"}} {
		all = append(all, h.begin(args...))
	}
	for _, s := range all {
		code, errs := h.ends(s)
		assert.NotZero(t, code, "%q", s.Args)
		assert.Contains(t, errs, "is stopped: kill -CONT", "%q", s.Args)
	}
	require.NoError(t, h.cmd.Process.Signal(syscall.SIGCONT))
	h.must("up", "a")
	h.must("run", "a", "--", "true")
	h.eventually("the sandboxes of those who have gone end", func() bool { return len(h.ps()[0].Sandboxes) == 0 })
}

// TestRestartThinKilled: nor for one that dies.
func TestRestartThinKilled(t *testing.T) {
	for name, end := range map[string]func(*host){"SIGTERM": (*host).stop, "SIGKILL": (*host).kill} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, map[string]string{"a": ""})
			running := h.begin("run", "a", "--", "sh", "-c", "echo here; sleep 100")
			calling := h.begin("call", "--agent", "a", "bash", "command=echo x >called; sleep 100")
			h.eventually("both run", func() bool { return len(readAll(t, running.out)) > 0 && exists(h.scope("a", "called")) })
			end(h)
			code, errs := h.ends(running)
			if name == "SIGKILL" {
				assert.Equal(t, 125, code)
				assert.Equal(t, "scopefs: the daemon is gone, and the sandbox with it\n", errs)
			} else {
				assert.NotZero(t, code)
			}
			code, errs = h.ends(calling)
			assert.Equal(t, 1, code)
			if name == "SIGKILL" {
				assert.Contains(t, errs, "whether the call had an effect is unknown")
			}
			h.start() // which takes down what the other left
		})
	}
}

// TestRestartBridgeEmbedded: scopefs mcp that has started a daemon for itself
// starts another when that dies.
func TestRestartBridgeEmbedded(t *testing.T) {
	m := embed(t, 0, map[string]string{"a": ""})
	t.Setenv("TMPDIR", m.tmp)
	c := m.host.bridge("a")
	c.says(hello)
	require.Nil(t, c.answer("hello").Error)
	pid := 0
	m.eventually("there is a daemon", func() bool {
		pid = childOf(c.cmd.Process.Pid)
		return pid > 0
	})
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	c.says(request(1, "stat", `{"path":"."}`))
	m1 := c.answer(1) // it may have gone to the dying one
	c.log("notice")
	if m1.Error != nil {
		assert.Equal(t, "unknown", m1.Error.Data.Effect)
		c.says(request(2, "stat", `{"path":"."}`))
		m1 = c.answer(2)
	}
	require.NotNil(t, m1.Result, "%+v", m1.Error)
}

// childOf returns a process that another has started, 0 when there is none.
func childOf(parent int) int {
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range names {
		text, _ := os.ReadFile(name)
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) > 1 && fields[1] == itoa(parent) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			return pid
		}
	}
	return 0
}
