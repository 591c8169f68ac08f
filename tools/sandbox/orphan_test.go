package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

func init() {
	helpers["dying"] = dying
	helpers["killed starts"] = killedStarts
	helpers["sweep"] = func([]string) int {
		c, err := findCgroups()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		c.sweep()
		return 0
	}
}

// dying is a daemon that starts a sandbox. After args[1], it kills itself ("daemon") or bwrap alone ("bwrap"), or lets a command
// block init and then kills itself ("blocked").
func dying(args []string) int {
	after, err := time.ParseDuration(args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	h, err := Open(Config{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer h.Close()
	plan, err := newPlan(&Spec{Agent: "tester", UID: 65534, GID: 65534}, h.filter, &h.certificates)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer plan.close()
	s := newSession(h, Spec{Agent: "tester", UID: 65534, GID: 65534}, nil)
	argsIn, info, err := h.spawn(s, plan)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer info.Close()
	go s.wait()
	victim := s.bwrap.Process.Pid
	if args[0] == "daemon" {
		victim = os.Getpid()
	}
	if args[0] != "blocked" {
		time.AfterFunc(after, func() { unix.Kill(victim, unix.SIGKILL) })
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err = s.handshake(ctx, plan, argsIn, info) // most starts fail
	if args[0] == "blocked" {
		if err := errors.Join(err, blockInit(s)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	<-s.done
	return 0
}

// blockInit returns when a command has blocked init: it stops the child of another command before that executes.
func blockInit(s *Session) error {
	storm, err := s.Exec(context.Background(), Command{Argv: []string{"bash", "-c", "exec >/dev/null 2>&1 </dev/null; while :; do kill -STOP -1; done"}})
	if err != nil {
		return err
	}
	defer storm.Close()
	for {
		ended := make(chan error, 1)
		go func() {
			p, err := s.Exec(context.Background(), Command{Argv: []string{"true"}})
			if err == nil {
				p.Close()
			}
			ended <- err
		}()
		select {
		case err := <-ended:
			if err != nil {
				return err
			}
		case <-time.After(2 * time.Second):
			return nil
		}
	}
}

// killedStarts runs dying args[1] times, and fails if one leaves a process, which this process inherits.
func killedStarts(args []string) int {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	rounds, _ := strconv.Atoi(args[1])
	for i := range rounds {
		cmd := exec.Command("/proc/self/exe", "dying", args[0], (time.Duration(i) * 8 * time.Millisecond / time.Duration(rounds)).String())
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil && cmd.ProcessState.ExitCode() != -1 {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if err == unix.ECHILD {
				break
			}
			if pid == 0 && time.Now().After(end) {
				self := strconv.Itoa(os.Getpid())
				out, _ := exec.Command("ps", "--ppid", self, "-o", "pid,pgid,stat,wchan:20,args").Output()
				fmt.Fprintf(os.Stderr, "round %d left a process:\n%s", i, out)
				_ = exec.Command("pkill", "-KILL", "-P", self).Run()
				return 1
			}
		}
	}
	return 0
}

// TestStartKilled: a sandbox leaves no process behind when its daemon or its bwrap is killed while it starts, or its daemon
// while init is blocked.
func TestStartKilled(t *testing.T) {
	need.Long(t, "it takes seconds")
	needRoot(t, "sandboxes of another user")
	rounds := strconv.Itoa(need.Rounds("SCOPEFS_TEST_ROUNDS", 10, 60))
	for victim, rounds := range map[string]string{"daemon": rounds, "bwrap": rounds, "blocked": "1"} {
		t.Run(victim, func(t *testing.T) {
			out, err := exec.Command("/proc/self/exe", "killed starts", victim, rounds).CombinedOutput()
			assert.NoError(t, err, "%s", out)
		})
	}
}

// TestSweepElsewhere: a daemon in another pid namespace, as in a container, does not see us
// and leaves our groups alone.
func TestSweepElsewhere(t *testing.T) {
	needRoot(t, noGroups)
	c, err := findCgroups()
	require.NoError(t, err)
	g, err := c.newGroup("tester", Limits{PIDs: 100}, nil)
	require.NoError(t, err)
	defer func() { assert.NoError(t, g.remove()) }()
	for _, flags := range []uintptr{unix.CLONE_NEWPID, 0} {
		cmd := exec.Command("/proc/self/exe", "sweep")
		cmd.Stderr, cmd.SysProcAttr = os.Stderr, &syscall.SysProcAttr{Cloneflags: flags}
		require.NoError(t, cmd.Run())
		assert.DirExists(t, g.dirs[0])
	}
}

// moved, for evil, makes an init that does not begin on its main thread.
const moved = "moved"

func movedInit() int {
	const again = "SANDBOX_TEST_AGAIN"
	if os.Getenv(again) != "" {
		return pid1.Main()
	}
	os.Setenv(again, "1")
	runtime.LockOSThread() // the main thread
	status := make(chan int)
	go func() { status <- pid1.Main() }()
	return <-status
}

// TestInitMoved: an init that the scheduler has moved from its main thread takes no more
// threads than another.
func TestInitMoved(t *testing.T) {
	s := newTestSession(t, func(spec *Spec) { misbehave(t, spec, moved) })
	assert.Equal(t, "works\n", sh(t, s, "echo works"))
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", s.PID()))
	require.NoError(t, err)
	assert.Less(t, len(threads), extraPIDs)
}
