package descriptors

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// sockets returns the two ends of a socket that keeps messages apart.
func sockets(t *testing.T) (one, other *os.File) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	one, other = os.NewFile(uintptr(pair[0]), "one"), os.NewFile(uintptr(pair[1]), "other")
	t.Cleanup(func() { Close([]*os.File{one, other}) })
	return one, other
}

func open(t *testing.T) int {
	names, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	return len(names)
}

// TestMessage: text and files arrive in their order, a pipe that does not block stays so, and the end of the socket is io.EOF.
func TestMessage(t *testing.T) {
	one, other := sockets(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	fds, err := Numbers(r, w)
	require.NoError(t, err)
	require.NoError(t, Write(one, []byte("text"), fds...))
	require.NoError(t, Write(one, []byte("alone")))
	buf := make([]byte, 8)
	n, fds, err := Read(other, buf, 2)
	require.NoError(t, err)
	assert.Equal(t, "text", string(buf[:n]))
	files := Files(fds, "got")
	require.Len(t, files, 2)
	w.Close()
	_, err = files[1].WriteString("text")
	require.NoError(t, err)
	Close(files)
	n, err = r.Read(buf)
	require.NoError(t, err)
	assert.Equal(t, "text", string(buf[:n]))
	_, err = r.Read(buf)
	assert.Error(t, err, "both writing ends are closed")

	n, fds, err = Read(other, buf, 2)
	require.NoError(t, err)
	assert.Equal(t, "alone", string(buf[:n]))
	assert.Empty(t, fds)

	_, err = Numbers(w)
	assert.Error(t, err, "closed")
	require.NoError(t, other.SetReadDeadline(time.Now().Add(time.Millisecond)))
	_, _, err = Read(other, buf, 2)
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, other.SetReadDeadline(time.Time{}))
	require.NoError(t, one.Close())
	_, _, err = Read(other, buf, 2)
	assert.ErrorIs(t, err, io.EOF)
}

// TestMessageTooLarge: of a message with more bytes or files than the receiver takes nothing stays open.
func TestMessageTooLarge(t *testing.T) {
	one, other := sockets(t)
	null, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer null.Close()
	fds, err := Numbers(null, null, null)
	require.NoError(t, err)
	before := open(t)
	for text, most := range map[string]int{"text": 3, "t": 2, "s": 1, "r": 0} {
		require.NoError(t, Write(one, []byte(text), fds...))
		_, got, err := Read(other, make([]byte, 2), most)
		assert.ErrorIs(t, err, ErrTruncated, text)
		assert.Nil(t, got, text)
	}
	assert.Equal(t, before, open(t))
}
