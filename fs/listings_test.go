package fs

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// watchedView returns a view of base with a watch, and the kernel's end of its connection: a
// SOCK_SEQPACKET socket stands in for /dev/fuse.
func watchedView(t *testing.T, base string) (v *View, kernel int) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() {
		unix.Close(pair[0])
		unix.Close(pair[1])
	})
	return watchedViewOn(t, base, pair[0]), pair[1]
}

// watchedViewOn is watchedView for a connection.
func watchedViewOn(t *testing.T, base string, fd int) *View {
	root, err := beneath.OpenRoot(base, ".")
	require.NoError(t, err)
	policy, err := scope.Compile(scope.PolicySpec{})
	require.NoError(t, err)
	watch, err := beneath.NewWatch()
	require.NoError(t, err)
	v, err := New(root, fd, Options{Policy: policy, Recorder: nothing{}, Watch: watch, Timeout: time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() {
		v.OnUnmount()
		watch.Close()
		root.Close()
	})
	return v
}

// TestListedBriefly: the view discards the listing of an unwatched directory after the timeout,
// and discards it once more after another timeout.
func TestListedBriefly(t *testing.T) {
	v, kernel := watchedView(t, t.TempDir())
	for range 2 {
		v.listed(v.nodes.root)
		for _, notification := range []int32{3, 2, 2, 2} { // the name first: it waits for a listing in flight
			message := make([]byte, 256)
			n, err := unix.Read(kernel, message)
			require.NoError(t, err)
			require.GreaterOrEqual(t, n, 16)
			assert.Equal(t, notification, int32(binary.NativeEndian.Uint32(message[4:])))
		}
		v.background.Wait()
		assert.Nil(t, v.nodes.root.listed.Load())
	}
}

// TestListedDropping: while one goroutine waits for the kernel to drop a listing, everyListed
// still returns the directory. A pipe that holds one message stands in for /dev/fuse.
func TestListedDropping(t *testing.T) {
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_DIRECT|unix.O_CLOEXEC))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	_, err := unix.FcntlInt(uintptr(pipe[1]), unix.F_SETPIPE_SZ, os.Getpagesize())
	require.NoError(t, err)
	v := watchedViewOn(t, t.TempDir(), pipe[1])
	dir := v.nodes.root
	dir.listed.Store(&listed{})
	done := make(chan struct{})
	go func() { defer close(done); v.dropListing(dir) }()
	message := make([]byte, 256)
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(pipe[0]), Events: unix.POLLIN}}, -1)
	require.NoError(t, err)
	assert.Equal(t, []*node{dir}, v.nodes.everyListed(), "the second notification is not sent yet")
	for range 2 {
		_, err = unix.Read(pipe[0], message)
		require.NoError(t, err)
	}
	<-done
	assert.Empty(t, v.nodes.everyListed())
	v.background.Wait()
}
