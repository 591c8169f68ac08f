package daemon

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

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
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

func beginThin(h *harness.Host, args ...string) *started {
	h.T.Helper()
	s := &started{Cmd: exec.Command(harness.Program, append([]string{"--base", h.Base}, args...)...), ended: make(chan error, 1)}
	out, err := os.CreateTemp(h.Base, "out-")
	require.NoError(h.T, err)
	defer out.Close()
	s.out, s.Stdout, s.Stderr = out.Name(), out, &s.errs
	require.NoError(h.T, s.Start())
	go func() { s.ended <- s.Wait() }()
	return s
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// endThin waits for a command that must not wait for the daemon, and returns its
// exit status and what it said.
func endThin(h *harness.Host, s *started) (code int, errs string) {
	h.T.Helper()
	began := time.Now()
	select {
	case <-s.ended:
	case <-time.After(30 * time.Second):
		_ = s.Process.Kill()
		<-s.ended
		h.T.Fatalf("%q hangs", s.Args)
	}
	assert.Less(h.T, time.Since(began), thinWait, "%q: %s", s.Args, &s.errs)
	return s.ProcessState.ExitCode(), s.errs.String()
}

// TestRestartThinStopped: nobody waits for a daemon that is stopped.
func TestRestartThinStopped(t *testing.T) {
	need.Once(t)
	t.Parallel()
	h := harness.NewHost(t, map[string]string{"a": ""})
	running := beginThin(h, "run", "a", "--", "sh", "-c", "echo here; sleep 100")
	calling := beginThin(h, "call", "--agent", "a", "bash", "command=echo x >called; sleep 100")
	h.Eventually("both run", func() bool { return len(harness.ReadAll(t, running.out)) > 0 && exists(h.Scope("a", "called")) })
	require.NoError(t, h.Cmd.Process.Signal(syscall.SIGSTOP))
	defer h.Cmd.Process.Signal(syscall.SIGCONT)
	code, errs := endThin(h, running)
	assert.Equal(t, 125, code)
	assert.Regexp(t, `^scopefs: the daemon \(process \d+\) is stopped: kill -CONT \d+; the command may still be running\n$`, errs)
	code, errs = endThin(h, calling)
	assert.Equal(t, 1, code)
	assert.Regexp(t, `is stopped: kill -CONT \d+; whether the call had an effect is unknown\n$`, errs)
	var all []*started
	for _, args := range [][]string{{"ps"}, {"up", "a"}, {"down", "a"}, {"reload"}, {"approvals"}, {"run", "a", "--", "true"}, {"call", "--agent", "a", "stat", "path=."}, {"call", "--agent", "a", "--list"}} {
		all = append(all, beginThin(h, args...))
	}
	for _, s := range all {
		code, errs := endThin(h, s)
		assert.NotZero(t, code, "%q", s.Args)
		assert.Contains(t, errs, "is stopped: kill -CONT", "%q", s.Args)
	}
	require.NoError(t, h.Cmd.Process.Signal(syscall.SIGCONT))
	h.Must("up", "a")
	h.Must("run", "a", "--", "true")
	h.Eventually("the sandboxes of those who have gone end", func() bool { return len(h.PS()[0].Sandboxes) == 0 })
}

// TestRestartThinKilled: nor for one that dies.
func TestRestartThinKilled(t *testing.T) {
	need.Once(t)
	for name, end := range map[string]func(*harness.Host){"SIGTERM": (*harness.Host).Terminate, "SIGKILL": (*harness.Host).Kill} {
		t.Run(name, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"a": ""})
			h.Put("scopefs.yaml", "grace: 0s\n") // else the run lives on: TestTakeOverRun
			h.Start()
			running := beginThin(h, "run", "a", "--", "sh", "-c", "echo here; sleep 100")
			calling := beginThin(h, "call", "--agent", "a", "bash", "command=echo x >called; sleep 100")
			h.Eventually("both run", func() bool { return len(harness.ReadAll(t, running.out)) > 0 && exists(h.Scope("a", "called")) })
			end(h)
			code, errs := endThin(h, running)
			if name == "SIGKILL" {
				assert.Equal(t, 125, code)
				assert.Equal(t, "scopefs: the daemon is gone, and the sandbox with it\n", errs)
			} else {
				assert.NotZero(t, code)
			}
			code, errs = endThin(h, calling)
			assert.Equal(t, 1, code)
			if name == "SIGKILL" {
				assert.Contains(t, errs, "whether the call had an effect is unknown")
			}
			h.Start() // which takes down what the other left
		})
	}
}

// TestRestartBridgeEmbedded: scopefs mcp that has started a daemon for itself
// starts another when that dies.
func TestRestartBridgeEmbedded(t *testing.T) {
	need.Once(t)
	m := harness.Embed(t, 0, map[string]string{"a": ""})
	t.Setenv("TMPDIR", m.Tmp)
	c := startBridge(m.Host, "a")
	c.says(harness.Hello)
	require.Nil(t, c.answer("hello").Error)
	pid := 0
	m.Eventually("there is a daemon", func() bool {
		pid = childOf(c.cmd.Process.Pid)
		return pid > 0
	})
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	c.says(harness.Request(1, "stat", `{"path":"."}`))
	m1 := c.answer(1) // it may have gone to the dying one
	c.log("notice")
	if m1.Error != nil {
		assert.Equal(t, "unknown", m1.Error.Data.Effect)
		c.says(harness.Request(2, "stat", `{"path":"."}`))
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
		if len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			return pid
		}
	}
	return 0
}
