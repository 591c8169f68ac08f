package daemon

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/liveness"
	"github.com/scopefs/scopefs/internal/need"
)

func init() {
	// churn-names DIR NAME: creates, renames and removes files until it is killed, and
	// prints a line now and then: the longest operation since the last line, in
	// milliseconds.
	harness.Roles["churn-names"] = func(args []string) error {
		at, to := filepath.Join(args[0], args[1]), filepath.Join(args[0], args[1]+"-renamed")
		var longest time.Duration
		for told := time.Now(); ; {
			for _, op := range churn(at, to) {
				began := time.Now()
				err := op()
				longest = max(longest, time.Since(began))
				if err != nil {
					time.Sleep(time.Millisecond) // a dead mount answers at once
				}
			}
			time.Sleep(5 * time.Millisecond) // many of these processes run, and their own load is not what is tested
			if time.Since(told) > 20*time.Millisecond {
				if _, err := fmt.Println(longest.Milliseconds()); err != nil {
					return nil
				}
				told, longest = time.Now(), 0
			}
		}
	}
}

// churner is a client process that never stops.
type churner struct {
	cmd   *exec.Cmd
	lines atomic.Int64 // printed so far
	worst atomic.Int64 // of them, in milliseconds
}

func startChurners(t *testing.T, dir string, n int) (all []*churner) {
	for i := range n {
		c := &churner{cmd: harness.Role("churn-names", dir, "c"+strconv.Itoa(i))}
		out, err := c.cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.cmd.Start())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for in := bufio.NewScanner(out); in.Scan(); {
				ms, _ := strconv.ParseInt(in.Text(), 10, 64)
				c.worst.Store(max(c.worst.Load(), ms))
				c.lines.Add(1)
			}
			_ = c.cmd.Wait()
		}()
		t.Cleanup(func() {
			_ = c.cmd.Process.Kill()
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				t.Errorf("client %d cannot be killed: %s", c.cmd.Process.Pid, stacks(c.cmd.Process.Pid))
			}
		})
		all = append(all, c)
	}
	return all
}

// stacks tells where in the kernel the threads of a process are.
func stacks(pid int) string {
	var b strings.Builder
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks {
		stat, _ := os.ReadFile(task + "/stat")
		stack, _ := os.ReadFile(task + "/stack")
		_, after, _ := strings.Cut(string(stat), ") ")
		fmt.Fprintf(&b, "%s %.1s: %s", filepath.Base(task), after, strings.ReplaceAll(string(stack), "\n", "; "))
	}
	return b.String()
}

// answered waits until each client has finished an operation that began after
// now, at most for a time, and returns how long that took.
func answered(t *testing.T, clients []*churner, most time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	before := make([]int64, len(clients))
	for i, c := range clients {
		before[i] = c.lines.Load()
	}
	for {
		waits := slices.IndexFunc(clients, func(c *churner) bool {
			return c.lines.Load() < before[slices.Index(clients, c)]+2
		})
		if waits < 0 {
			return time.Since(began)
		}
		if time.Since(began) > most {
			pid := clients[waits].cmd.Process.Pid
			t.Fatalf("a client had no answer for %v: %s", time.Since(began), stacks(pid))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// crash is one way in which something dies, and how it is mended.
type crash struct {
	kill func(h *harness.Host)
	mend func(h *harness.Host)
}

var crashes = map[string]crash{
	"view killed":  {kill: func(h *harness.Host) { signalView(h, syscall.SIGKILL) }},
	"view stopped": {kill: func(h *harness.Host) { signalView(h, syscall.SIGSTOP) }},
	"daemon killed": {
		kill: func(h *harness.Host) { h.Kill() },
		mend: func(h *harness.Host) { h.Start() },
	},
	"daemon and view killed": {
		kill: func(h *harness.Host) {
			view := h.Agent("a").ViewPID
			_ = h.Cmd.Process.Kill()
			_ = syscall.Kill(view, syscall.SIGKILL)
			<-h.Ended
		},
		mend: func(h *harness.Host) { h.Start() },
	},
	"daemon stopped": {
		kill: func(h *harness.Host) { _ = h.Cmd.Process.Signal(syscall.SIGSTOP) },
		mend: func(h *harness.Host) { _ = h.Cmd.Process.Signal(syscall.SIGCONT) },
	},
	"daemon ended": {
		kill: func(h *harness.Host) { h.Stop() },
		mend: func(h *harness.Host) { h.Start() },
	},
	"down": {
		kill: func(h *harness.Host) { h.Must("down", "a") },
		mend: func(h *harness.Host) { h.Must("up", "a") },
	},
}

// signalView sends a signal to the process that serves a's view, once it is there.
func signalView(h *harness.Host, sig syscall.Signal) {
	h.Eventually("it is mounted", func() bool {
		pid := h.Agent("a").ViewPID
		return pid > 1 && syscall.Kill(pid, sig) == nil
	})
}

func crashRounds() int { return need.Rounds("SCOPEFS_CRASH_ROUNDS", 1, 20) }

// TestCrash: whatever dies, whoever uses a view has an answer or an error
// soon, and the view is back. Rounds by SCOPEFS_CRASH_ROUNDS; with
// SCOPEFS_CRASH_QUIET=1 the host changes nothing meanwhile.
func TestCrash(t *testing.T) {
	need.Once(t)
	rounds := crashRounds()
	for name, c := range crashes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := harness.LayOut(t, map[string]string{"a": ""})
			h.Timeout += time.Duration(rounds) * 10 * time.Second
			dir := h.Scope("a", "dir")
			require.NoError(t, os.Mkdir(dir, 0o755))
			h.Start()
			if os.Getenv("SCOPEFS_CRASH_QUIET") == "" { // else the host changes nothing below
				makeBusy(h, dir)
			}
			clients := startChurners(t, h.View("a", "dir"), 6)
			var waits, backs []time.Duration
			for range rounds {
				// Where many processes want a processor, the group of a view gets as much as one of them, and six clients
				// wait for each other with one directory.
				before := answered(t, clients, time.Minute)
				began := time.Now()
				c.kill(h)
				waits = append(waits, answered(t, clients, 10*time.Second+20*before))
				if c.mend != nil {
					began = time.Now()
					c.mend(h)
				}
				h.Eventually("the view is back", func() bool {
					_, err := os.Stat(h.View("a", "dir"))
					return err == nil && h.Agent("a").State == "mounted"
				})
				backs = append(backs, time.Since(began))
			}
			var worst int64
			for _, c := range clients {
				worst = max(worst, c.worst.Load())
			}
			slices.Sort(waits)
			slices.Sort(backs)
			t.Logf("%d rounds: answered after p50 %v, max %v; back after p50 %v, max %v; longest operation %d ms",
				rounds, waits[rounds/2], waits[rounds-1], backs[rounds/2], backs[rounds-1], worst)
		})
	}
}

// makeBusy changes the directory below a view until the test ends.
func makeBusy(h *harness.Host, dir string) {
	stop := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			at := filepath.Join(dir, fmt.Sprintf("c%d", i%6))
			_ = os.WriteFile(at, nil, 0o644)
			_ = os.Rename(at, filepath.Join(dir, fmt.Sprintf("h%d", i%7)))
			_ = os.Remove(filepath.Join(dir, fmt.Sprintf("c%d-renamed", (i+3)%6)))
		}
	})
	h.T.Cleanup(func() { close(stop); done.Wait() })
}

// TestCrashInit: a killed process 1 of a sandbox ends its command, and no other.
func TestCrashInit(t *testing.T) {
	need.Once(t)
	h := harness.NewHost(t, map[string]string{"a": ""})
	require.NoError(t, os.Mkdir(h.Scope("a", "dir"), 0o755))
	makeBusy(h, h.Scope("a", "dir"))
	for range crashRounds() {
		cmd := h.InSandbox("a", "churn-names", "/workspace/dir", "c1")
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		in := bufio.NewReader(out)
		_, err = in.ReadString('\n')
		require.NoError(t, err)
		boxes := h.Agent("a").Sandboxes
		require.Len(t, boxes, 1)
		require.NoError(t, syscall.Kill(boxes[0], syscall.SIGKILL))
		ended := make(chan error, 1)
		go func() {
			_, _ = io.Copy(io.Discard, in)
			ended <- cmd.Wait()
		}()
		select {
		case <-ended:
			assert.Equal(t, 125, cmd.ProcessState.ExitCode())
		case <-time.After(10 * time.Second):
			t.Fatalf("the command did not end: %s", stacks(boxes[0]))
		}
	}
	h.Must("run", "a", "--", "true")
}

// TestCrashRecorder: what must be recorded is answered with an error while the
// daemon is stopped, and as ever when it goes on.
func TestCrashRecorder(t *testing.T) {
	need.Once(t)
	t.Parallel()
	h := harness.NewHost(t, map[string]string{"a": "view: {paths: {\"sealed/**\": read}}"})
	require.NoError(t, os.MkdirAll(h.Scope("a", "sealed"), 0o755))
	denied := func() error { return os.WriteFile(h.View("a", "sealed", "f"), nil, 0o644) }
	require.ErrorIs(t, denied(), syscall.EACCES)
	require.NoError(t, h.Cmd.Process.Signal(syscall.SIGSTOP))
	h.Eventually("it is stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.Cmd.Process.Pid))
		return err == nil && strings.Contains(string(stat), ") T ")
	})
	began := time.Now()
	err := denied()
	require.NoError(t, h.Cmd.Process.Signal(syscall.SIGCONT))
	assert.ErrorIs(t, err, syscall.EIO)
	assert.Less(t, time.Since(began), 6*time.Second)
	h.Eventually("the daemon goes on", func() bool { return errors.Is(denied(), syscall.EACCES) })
}

// TestCrashIdle: a view that nobody uses is asked nothing: it may be stopped for as long as nobody does. The first client has
// an answer or an error within two seconds, beside what the daemon waits for a processor, and another process serves the view. See
// liveness.TestWatchIdle for ten minutes, and for the time by the watch's own clock.
func TestCrashIdle(t *testing.T) {
	need.Once(t)
	t.Parallel()
	h := harness.NewHost(t, map[string]string{"a": "", "b": ""})
	before, other := h.Agent("a").ViewPID, h.Agent("b").ViewPID
	for _, pid := range []int{before, other} {
		view := liveness.Process{PID: pid}
		h.Eventually("the view has done what its start asks of it", func() bool {
			was := view.Spent()
			time.Sleep(200 * time.Millisecond)
			return view.Spent() == was
		})
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	}
	time.Sleep(3 * time.Second) // longer than the daemon takes to end a view that it asks
	assert.Equal(t, before, h.Agent("a").ViewPID, "it harms nobody")

	began, waited := time.Now(), waitedOf(t, h.Cmd.Process.Pid)
	_, err := os.Stat(h.View("a", "asked-for-first"))
	took := time.Since(began)
	assert.Less(t, took-(waitedOf(t, h.Cmd.Process.Pid)-waited), 2*time.Second, "of %v", took)
	assert.Error(t, err)
	h.Eventually("another process serves the view", func() bool {
		now := h.Agent("a")
		return now.ViewPID != before && now.ViewPID > 1 && now.State == "mounted"
	})
	died := false
	for _, e := range h.Events("a") {
		died = died || e.Outcome == "died" && strings.Contains(e.Detail, "does not answer")
	}
	assert.True(t, died)

	assert.Equal(t, other, h.Agent("b").ViewPID, "nobody uses it")
	require.NoError(t, syscall.Kill(other, syscall.SIGCONT))
	_, err = os.Stat(h.View("b", "asked-for-first"))
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.Equal(t, other, h.Agent("b").ViewPID)
}

// waitedOf returns how long the threads of a process have waited for a processor; proc_pid_schedstat in the kernel's sched-stats.rst.
func waitedOf(t *testing.T, pid int) (waited time.Duration) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	require.NoError(t, err)
	for _, name := range tasks {
		text, _ := os.ReadFile(name)
		if fields := strings.Fields(string(text)); len(fields) > 1 {
			ns, _ := strconv.ParseInt(fields[1], 10, 64)
			waited += time.Duration(ns)
		}
	}
	return waited
}

// churn returns operations that create, rename, look up and remove a file.
func churn(at, to string) []func() error {
	return []func() error{
		func() error { return os.WriteFile(at, []byte("x"), 0o644) },
		func() error { return os.Rename(at, to) },
		func() error { _, err := os.Stat(to); return err },
		func() error { return os.Remove(to) },
	}
}
