package liveness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// TestVerdict: a view is replaced for evidence about the view alone.
func TestVerdict(t *testing.T) {
	t.Parallel()
	looks := func(n int, of ...condition) (all []condition) {
		for range n {
			all = append(all, of...)
		}
		return all
	}
	const ages = 10 * diskLooks
	for name, test := range map[string]struct {
		looks    []condition
		answered bool
		spent    time.Duration
		want     string // "": it is not replaced
	}{
		"answered, and asleep since":             {looks(ages, asleep), true, time.Hour, ""},
		"killed":                                 {looks(1, killed), false, 0, "was killed"},
		"stopped, once":                          {looks(1, stopped), false, 0, ""},
		"stopped":                                {looks(2, stopped), false, 0, "slept or was stopped"},
		"asleep, once":                           {looks(1, asleep), false, 0, ""},
		"deadlocked":                             {looks(2, asleep), false, 0, "slept or was stopped"},
		"deadlocked, and clients wake a thread":  {[]condition{asleep, runnable, runnable, diskWait, asleep}, false, time.Second, "slept or was stopped"},
		"starved":                                {looks(ages, runnable), false, spinTime - 1, ""},
		"starved for a moment while it slept":    {append(looks(ages, runnable), asleep), false, 0, ""},
		"it spins":                               {looks(1, runnable), false, spinTime, "ran for"},
		"waits for a disk":                       {looks(diskLooks-1, diskWait), false, 0, ""},
		"waits for a disk, then for a processor": {append(looks(diskLooks-1, diskWait), looks(ages, runnable)...), false, 0, ""},
		"waits for a disk without end":           {looks(diskLooks, diskWait), false, 0, "for a disk"},
		"killed, and waits for a disk":           {append(looks(1, diskWait), killed), false, 0, "was killed"},
	} {
		t.Run(name, func(t *testing.T) {
			e := Evidence{Answered: test.answered}
			for _, c := range test.looks {
				e.add(c, test.spent)
			}
			if test.want == "" {
				assert.Empty(t, e.Verdict())
			} else {
				assert.Contains(t, e.Verdict(), test.want)
			}
		})
	}
}

// process starts a program that stands for one of ours.
func process(t *testing.T, words ...string) (Process, *os.Process) {
	t.Helper()
	cmd := exec.Command(words[0], words[1:]...)
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	return Process{cmd.Process.Pid, ended}, cmd.Process
}

// TestCondition: what a look finds of processes that run, sleep, stop, wait in state D and die.
func TestCondition(t *testing.T) {
	t.Parallel()
	eventually := func(p Process, want condition) {
		t.Helper()
		require.Eventually(t, func() bool { return p.condition() == want }, 20*time.Second, time.Millisecond)
	}
	p, started := process(t, "sleep", "1000")
	eventually(p, asleep)
	before := p.Spent()
	assert.Positive(t, before)
	eventually(p, asleep)
	assert.Equal(t, before, p.Spent(), "it has not run")
	require.NoError(t, started.Signal(syscall.SIGSTOP))
	eventually(p, stopped)
	require.NoError(t, started.Kill())
	require.Eventually(t, func() bool {
		select {
		case <-p.Ended:
			return true
		default:
			return p.condition() == killed
		}
	}, 20*time.Second, time.Millisecond)

	spins, _ := process(t, "sh", "-c", "while :; do :; done")
	eventually(spins, runnable)
	assert.Equal(t, runnable, spins.condition())
}

// TestConditionDisk: a thread in state D, here because its control group is frozen, and
// SIGKILL that it cannot take yet.
func TestConditionDisk(t *testing.T) {
	t.Parallel()
	need.Root(t, "freezes a process")
	dir := filepath.Join("/sys/fs/cgroup/freezer", "scopefs-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		need.Skip(t, "no freezer of control groups v1: ", err)
	}
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return os.Remove(dir) == nil }, 20*time.Second, time.Millisecond)
	})
	p, started := process(t, "sleep", "1000")
	set := func(file, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0))
	}
	set("cgroup.procs", strconv.Itoa(p.PID))
	set("freezer.state", "FROZEN")
	t.Cleanup(func() { set("freezer.state", "THAWED") })
	require.Eventually(t, func() bool { return p.condition() == diskWait }, 20*time.Second, time.Millisecond)
	assert.False(t, p.Dying())
	require.NoError(t, started.Kill())
	require.Eventually(t, p.Dying, 20*time.Second, time.Millisecond)
	assert.Equal(t, killed, p.condition())
}
