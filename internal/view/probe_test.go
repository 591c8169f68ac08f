package view

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusedev"
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
			e := evidence{answered: test.answered}
			for _, c := range test.looks {
				e.add(c, test.spent)
			}
			if test.want == "" {
				assert.Empty(t, e.verdict())
			} else {
				assert.Contains(t, e.verdict(), test.want)
			}
		})
	}
}

// process starts a program that stands for a view.
func process(t *testing.T, words ...string) *served {
	t.Helper()
	cmd := exec.Command(words[0], words[1:]...)
	require.NoError(t, cmd.Start())
	p := &served{cmd: cmd, ended: make(chan struct{})}
	go func() { defer close(p.ended); _ = cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-p.ended })
	return p
}

// TestCondition: what a look finds of processes that run, sleep, stop, wait in state D and die.
func TestCondition(t *testing.T) {
	t.Parallel()
	eventually := func(p *served, want condition) {
		t.Helper()
		require.Eventually(t, func() bool { return p.condition() == want }, 20*time.Second, time.Millisecond)
	}
	p := process(t, "sleep", "1000")
	eventually(p, asleep)
	before := p.spent()
	assert.Positive(t, before)
	eventually(p, asleep)
	assert.Equal(t, before, p.spent(), "it has not run")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	eventually(p, stopped)
	require.NoError(t, p.cmd.Process.Kill())
	require.Eventually(t, func() bool { return p.condition() == killed || p.gone() }, 20*time.Second, time.Millisecond)

	spins := process(t, "sh", "-c", "while :; do :; done")
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
	p := process(t, "sleep", "1000")
	set := func(file, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0))
	}
	set("cgroup.procs", strconv.Itoa(p.cmd.Process.Pid))
	set("freezer.state", "FROZEN")
	t.Cleanup(func() { set("freezer.state", "THAWED") })
	require.Eventually(t, func() bool { return p.condition() == diskWait }, 20*time.Second, time.Millisecond)
	assert.False(t, p.dying())
	require.NoError(t, p.cmd.Process.Kill())
	require.Eventually(t, p.dying, 20*time.Second, time.Millisecond)
	assert.Equal(t, killed, p.condition())
}

// TestProbe: a view that does not answer is replaced when none of its threads can run, and
// not while one waits for a processor.
func TestProbe(t *testing.T) {
	t.Parallel()
	p := process(t, "sh", "-c", "while :; do :; done")
	ours, theirs, err := socketPair("heart")
	require.NoError(t, err)
	t.Cleanup(func() { ours.Close(); theirs.Close() }) // nobody answers
	stoppedAt := make(chan time.Time, 1)
	time.AfterFunc(2*time.Second, func() {
		stoppedAt <- time.Now()
		_ = p.cmd.Process.Signal(syscall.SIGSTOP)
	})
	err = (&View{}).probe(t.Context(), p, NewHeart(ours), fusedev.Connection{})
	assert.ErrorContains(t, err, "does not answer: it slept or was stopped")
	select {
	case <-stoppedAt:
	default:
		t.Fatal("it was replaced while it ran")
	}
}

// TestProbeLate: the daemon reads the answer of a view late, after the view went to sleep or was stopped. The
// answer counts.
func TestProbeLate(t *testing.T) {
	p := process(t, "sleep", "1000")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	require.Eventually(t, func() bool { return p.condition() == stopped }, 20*time.Second, time.Millisecond)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	theirs := fds[1]
	defer unix.Close(theirs)
	ours := os.NewFile(uintptr(fds[0]), "heart")
	defer ours.Close()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		answered, verdict := 0, make(chan error)
		p := &served{cmd: p.cmd, ended: make(chan struct{})} // a channel of the bubble
		go func() { verdict <- (&View{}).probe(t.Context(), p, NewHeart(ours), fusedev.Connection{}) }()
		for answered < 10 { // the daemon's goroutine of the heart never runs
			time.Sleep(probeTime / 2)
			buf := make([]byte, 1)
			if n, _ := unix.Read(theirs, buf); n == 1 {
				_, err := unix.Write(theirs, []byte("p"))
				require.NoError(t, err)
				answered++
			}
			require.Less(t, time.Since(began), time.Minute)
		}
		silent := time.Now()
		assert.ErrorContains(t, <-verdict, "slept or was stopped")
		assert.LessOrEqual(t, time.Since(silent), 4*probeTime, "a client's wait")
	})
}
