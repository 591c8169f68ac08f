package liveness

import (
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/heart"
)

// TestWatchIdle: a process that nobody uses for ten minutes gets no beat, though it is stopped meanwhile. The first client
// that waits for it then has an answer within two seconds.
func TestWatchIdle(t *testing.T) {
	p, of := process(t, "sleep", "1000")
	require.NoError(t, of.Signal(syscall.SIGSTOP))
	require.Eventually(t, func() bool { return p.condition() == stopped }, 20*time.Second, time.Millisecond)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	defer unix.Close(pair[1])
	ours := os.NewFile(uintptr(pair[0]), "heart")
	defer ours.Close()
	beats := func() int {
		n, _ := unix.Read(pair[1], make([]byte, 1000))
		return max(n, 0)
	}
	synctest.Test(t, func(t *testing.T) {
		const idle = 10 * time.Minute
		began := time.Now()
		var looks atomic.Int64
		busy := func() bool {
			looks.Add(1)
			return time.Since(began) >= idle
		}
		verdict := make(chan error, 1)
		go func() {
			process := Process{PID: p.PID, Ended: make(chan struct{})} // a channel of the bubble
			verdict <- new(Watcher).Watch(t.Context(), process, heart.NewHeart(ours), busy)
		}()
		time.Sleep(idle - time.Millisecond)
		synctest.Wait()
		assert.Zero(t, beats(), "it was asked while nobody used it")
		assert.Empty(t, verdict, "it was replaced while nobody used it")
		assert.InDelta(t, idle/idleTime, looks.Load(), 1)
		assert.ErrorContains(t, <-verdict, "slept or was stopped")
		assert.LessOrEqual(t, time.Since(began)-idle, 4*ProbeTime, "a client's wait")
		assert.Equal(t, 1, beats())
	})
}

// TestWatchAll: one goroutine watches all processes, and ends with the last of them.
func TestWatchAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it fails if the goroutine does not end
		var w Watcher
		var over []chan struct{}
		ended := make(chan struct{})
		var looks atomic.Int64
		for range 3 {
			end := make(chan struct{})
			over = append(over, end)
			go func() {
				assert.NoError(t, w.Watch(t.Context(), Process{PID: os.Getpid(), Ended: end}, nil, func() bool { looks.Add(1); return false }))
				ended <- struct{}{}
			}()
		}
		time.Sleep(10*idleTime + 1)
		assert.EqualValues(t, 30, looks.Swap(0))
		for _, end := range over[1:] {
			close(end)
			<-ended
		}
		time.Sleep(10 * idleTime)
		assert.EqualValues(t, 10, looks.Swap(0))
		close(over[0])
		<-ended
		time.Sleep(10 * idleTime)
		assert.Zero(t, looks.Load())
	})
}
