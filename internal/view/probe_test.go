package view

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusedev"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/peer"
)

// process starts a program that stands for a view.
func process(t *testing.T, words ...string) *served {
	t.Helper()
	cmd := exec.Command(words[0], words[1:]...)
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	p := &served{Process: Process{pid: cmd.Process.Pid, cmd: cmd, ended: ended}}
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-p.ended })
	return p
}

// TestProbe: a view that does not answer is replaced when none of its threads can run, and
// not while one waits for a processor.
func TestProbe(t *testing.T) {
	t.Parallel()
	p := process(t, "sh", "-c", "while :; do :; done")
	ours, theirs, err := SocketPair("heart")
	require.NoError(t, err)
	t.Cleanup(func() { ours.Close(); theirs.Close() }) // nobody answers
	stoppedAt := make(chan time.Time, 1)
	time.AfterFunc(2*time.Second, func() {
		stoppedAt <- time.Now()
		_ = p.cmd.Process.Signal(syscall.SIGSTOP)
	})
	err = (&View{host: &Host{}}).probe(t.Context(), p, heart.NewHeart(ours), fusedev.Connection{}, peer.NewRequests[FromView](0))
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
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		return strings.Contains(string(text), ") T ")
	}, 20*time.Second, time.Millisecond)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	theirs := fds[1]
	defer unix.Close(theirs)
	ours := os.NewFile(uintptr(fds[0]), "heart")
	defer ours.Close()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		answered, verdict := 0, make(chan error)
		p := &served{Process: Process{pid: p.cmd.Process.Pid, cmd: p.cmd, ended: make(chan struct{})}} // a channel of the bubble
		go func() { verdict <- (&View{host: &Host{}}).probe(t.Context(), p, heart.NewHeart(ours), fusedev.Connection{}, peer.NewRequests[FromView](0)) }()
		for answered < 10 { // the daemon's goroutine of the heart never runs
			time.Sleep(heart.ProbeTime / 2)
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
		assert.LessOrEqual(t, time.Since(silent), 4*heart.ProbeTime, "a client's wait")
	})
}
