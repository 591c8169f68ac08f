package reconnect

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/descriptors"
)

// TestTake: the sockets of a daemon arrive, or nothing until the end of the wait.
func TestTake(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	ends := descriptors.Files(pair[:], "end")
	defer descriptors.Close(ends)
	require.NoError(t, descriptors.WriteTo(pair[0], []byte{1}, 0, pair[:]...))
	files := Take(ends[1], time.Now().Add(time.Second))
	assert.Len(t, files, 2)
	descriptors.Close(files)
	assert.Nil(t, Take(ends[1], time.Now().Add(time.Millisecond)))
}
