package heart

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func hearts(t *testing.T) (one, two *Heart) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	files := []*os.File{os.NewFile(uintptr(pair[0]), "one"), os.NewFile(uintptr(pair[1]), "two")}
	t.Cleanup(func() { files[0].Close(); files[1].Close() })
	return NewHeart(files[0]), NewHeart(files[1])
}

// TestHeart: both ends send beats and respond to the other's at the same time.
func TestHeart(t *testing.T) {
	t.Parallel()
	one, two := hearts(t)
	assert.Zero(t, one.Silence(), "no beat was sent")
	one.Beat()
	assert.Positive(t, one.Silence())
	two.Beat()
	ended := make(chan struct{})
	go func() { one.Serve(func() {}); close(ended) }()
	go two.Serve(func() {})
	for range 10 {
		require.Eventually(t, func() bool { return one.Silence() == 0 && two.Silence() == 0 }, 20*time.Second, time.Millisecond)
		one.Beat()
		two.Beat()
	}
	require.NoError(t, two.socket.Close())
	<-ended
}

// TestHeartTaken: a beat that Silence takes before Serve has a response, though epoll(7) reports nothing.
func TestHeartTaken(t *testing.T) {
	t.Parallel()
	one, two := hearts(t)
	go one.Serve(func() {})
	go two.Serve(func() {})
	for range 200 {
		one.Beat()
		for end := time.Now().Add(20 * time.Second); one.Silence() > 0; _ = two.Silence() {
			require.True(t, time.Now().Before(end), "a beat has no response")
		}
	}
}

// TestHeartUnread: a response counts that nobody has read, because this process waited for a
// processor or its Serve blocks.
func TestHeartUnread(t *testing.T) {
	t.Parallel()
	one, two := hearts(t)
	blocked, free := make(chan struct{}), make(chan struct{})
	go one.Serve(func() { close(blocked); <-free })
	two.Beat()
	<-blocked
	go two.Serve(func() {})
	one.Beat()
	require.Eventually(t, func() bool { return one.Silence() == 0 }, 20*time.Second, time.Millisecond)
	assert.Positive(t, two.Silence())
	close(free)
	require.Eventually(t, func() bool { return two.Silence() == 0 }, 20*time.Second, time.Millisecond)
}
