package descriptors

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestDescriptors: files arrive in their order, a pipe that does not block stays so, and what is cut off is an error without a file left open.
func TestDescriptors(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	control, err := Control(r, w)
	require.NoError(t, err)
	require.NoError(t, unix.Sendmsg(pair[0], []byte("x"), control, nil, 0))
	room := Room(2)
	_, got, _, _, err := unix.Recvmsg(pair[1], make([]byte, 1), room, unix.MSG_CMSG_CLOEXEC)
	require.NoError(t, err)
	files, err := Files(room[:got], "got")
	require.NoError(t, err)
	require.Len(t, files, 2)
	w.Close()
	_, err = files[1].WriteString("text")
	require.NoError(t, err)
	Close(files)
	buf := make([]byte, 8)
	n, err := r.Read(buf)
	require.NoError(t, err)
	assert.Equal(t, "text", string(buf[:n]))
	_, err = r.Read(buf)
	assert.Error(t, err, "both writing ends are closed")

	_, err = Files(room[:got-4], "cut")
	assert.Error(t, err)
	none, err := Control()
	assert.NoError(t, err)
	assert.Nil(t, none)
	_, err = Control(w)
	assert.Error(t, err, "closed")
}
