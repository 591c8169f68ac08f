package sandbox

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/proc"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

func init() {
	helpers["orphan"] = orphan
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

// orphan is a daemon that dies while a sandbox starts: it makes a control group, "agent"
// with one for its sandboxes beneath, starts bwrap there, kills bwrap before that releases
// its child, and prints the pid of the child.
func orphan(args []string) int {
	err := leaveOrphan(args[0] == "agent")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func leaveOrphan(agent bool) error {
	c, err := findCgroups()
	if err != nil {
		return err
	}
	g, err := c.newGroup("tester", Limits{PIDs: 100}, nil)
	if err == nil && agent {
		g, err = g.child("run", nil)
	}
	if err == nil {
		err = g.add(os.Getpid())
	}
	if err != nil {
		return err
	}
	block, _, err := os.Pipe()
	if err != nil {
		return err
	}
	info, infoIn, err := os.Pipe()
	if err != nil {
		return err
	}
	bwrap := exec.Command("bwrap", "--unshare-user", "--unshare-pid", "--userns-block-fd", "3", "--info-fd", "4", "--ro-bind", "/", "/", "true")
	bwrap.ExtraFiles = []*os.File{block, infoIn}
	if err := bwrap.Start(); err != nil {
		return err
	}
	var said struct {
		PID int `json:"child-pid"`
	}
	if err := json.NewDecoder(info).Decode(&said); err != nil {
		return err
	}
	if err := bwrap.Process.Kill(); err != nil {
		return err
	}
	_ = bwrap.Wait()
	fmt.Println(said.PID)
	return nil
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

// TestOrphanKilled: the next daemon kills the child of a bwrap that was killed before it
// released the child.
func TestOrphanKilled(t *testing.T) {
	need.Long(t, "it takes seconds")
	needRoot(t, noGroups)
	for _, where := range []string{"session", "agent", "below a subreaper"} {
		t.Run(where, func(t *testing.T) {
			reaper := uintptr(0)
			if where == "below a subreaper" {
				reaper = 1
			}
			require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, reaper, 0, 0, 0))
			cmd := exec.Command("/proc/self/exe", "orphan", where)
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0))
			require.NoError(t, err)
			var pid int
			_, err = fmt.Sscan(string(out), &pid)
			require.NoError(t, err)
			pidfd, err := unix.PidfdOpen(pid, 0)
			require.NoError(t, err)
			defer unix.Close(pidfd)
			defer func() {
				unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
				unix.Wait4(pid, nil, 0, nil) // ECHILD: it is another reaper's
			}()
			stat, err := proc.ReadStat(pid)
			require.NoError(t, err)
			require.NotEqual(t, byte('Z'), stat.State, "an orphan waits")

			t.Run("the next daemon", func(t *testing.T) { newHost(t) })
			awaitExit(pid, pidfd)
			stat, err = proc.ReadStat(pid)
			assert.True(t, err != nil || stat.State == 'Z', "state %c", stat.State)
			t.Run("the one after it", func(t *testing.T) { newHost(t) })
			groups, err := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/scopefs-%d-*", cmd.Process.Pid))
			require.NoError(t, err)
			assert.Empty(t, groups)
		})
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
