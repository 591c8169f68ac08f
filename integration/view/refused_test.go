package view

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestOfDescriptors: what docs/limits.md says of O_APPEND taken off a descriptor, of ranges that fallocate(2) would move, and of flags
// of an inode.
func TestOfDescriptors(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"kernel": "", "mediated": "view: {data: mediated}"})
	for agent, want := range map[string]string{"kernel": "12345X", "mediated": "X2345"} {
		harness.Plant(t, h.Scope(agent), "f=12345")
		fd, err := unix.Open(h.View(agent, "f"), unix.O_WRONLY|unix.O_APPEND, 0)
		require.NoError(t, err)
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, 0)
		require.NoError(t, err)
		_, err = unix.Pwrite(fd, []byte("X"), 0)
		assert.NoError(t, err)
		for _, mode := range []uint32{unix.FALLOC_FL_COLLAPSE_RANGE, unix.FALLOC_FL_INSERT_RANGE} {
			assert.Equal(t, unix.EOPNOTSUPP, unix.Fallocate(fd, mode, 0, 4096), "%s: %#x", agent, mode)
		}
		_, err = unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
		assert.Equal(t, unix.ENOTTY, err, agent)
		require.NoError(t, unix.Close(fd))
		text, err := os.ReadFile(h.Scope(agent, "f"))
		require.NoError(t, err)
		assert.Equal(t, want, string(text), agent)
	}
}
