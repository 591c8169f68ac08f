package branch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
)

// The ioctl(2) that ends an ext4 as a power cut would, right after the file system has written its journal: names are on the disk, and what
// was appended and not synced is not.
const (
	ext4Shutdown = 0x8004587d
	ext4LogFlush = 1
)

// cut cuts the power of the disk of inMemory, and mounts it again. It makes sure that the descriptor is of that disk.
func (f *fork) cut(t *testing.T, at string) {
	t.Helper()
	disk := filepath.Join(filepath.Dir(at), "memory", "ext4")
	dir, err := os.Open(at)
	require.NoError(t, err)
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(dir.Fd()), &st))
	behind, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/loop/backing_file", unix.Major(st.Dev), unix.Minor(st.Dev)))
	require.NoError(t, err)
	require.Equal(t, disk, strings.TrimSpace(string(behind)))
	require.NoError(t, unix.IoctlSetPointerInt(int(dir.Fd()), ext4Shutdown, ext4LogFlush))
	dir.Close()
	f.Close()
	f.unmount()
	require.NoError(t, unix.Unmount(at, unix.MNT_DETACH))
	out, err := exec.Command("cp", "--sparse=always", disk, disk+".after").CombinedOutput() // descriptors of this process hold the other one
	require.NoError(t, err, "%s", out)
	out, err = exec.Command("mount", "-o", "loop", disk+".after", at).CombinedOutput()
	require.NoError(t, err, "%s", out)
	f.mount()
	f.open()
}

// TestPowerLossSettled: the power is cut after a commit or a discard has ended. The branch shows what the directory has, and does not list it
// as removed: the next commit would remove it.
func TestPowerLossSettled(t *testing.T) {
	t.Run("commit", func(t *testing.T) {
		powerLossSettled(t, "22", func(f *fork, names []string) {
			r, err := f.Branch.Commit(t.Context(), Options{Paths: names})
			require.NoError(t, err)
			require.Empty(t, texts(r.Conflicts))
		})
	})
	t.Run("discard", func(t *testing.T) {
		powerLossSettled(t, "1", func(f *fork, names []string) {
			_, _, err := f.Branch.Discard(t.Context(), names, "")
			require.NoError(t, err)
		})
	})
}

func powerLossSettled(t *testing.T, want string, do func(f *fork, names []string)) {
	at := inMemory(t)
	var st, above unix.Stat_t
	require.NoError(t, unix.Stat(at, &st))
	require.NoError(t, unix.Stat(filepath.Dir(at), &above))
	if st.Dev == above.Dev {
		need.Skip(t, "needs loop devices")
	}
	top := filepath.Join(at, "top")
	require.NoError(t, os.Mkdir(top, 0o755))
	const files = 40 // their records are more than a block of the disk
	f := newForkAt(t, top, "other=1")
	names := []string{}
	for i := range files {
		name := fmt.Sprint("a", i)
		names = append(names, name)
		f.make(f.base, name+"=1")
	}
	f.make(f.merged, "other=22")
	for _, name := range names {
		f.remove(f.merged, name)
		f.make(f.merged, name+"=22")
	}
	dir, err := os.Open(at)
	require.NoError(t, err)
	require.NoError(t, unix.Syncfs(int(dir.Fd())))
	dir.Close()
	f.frozen()
	do(f, names)
	f.cut(t, at)
	_, err = f.Resume()
	require.NoError(t, err)
	assert.Equal(t, []string{"changed other"}, f.diff())
	for _, name := range names {
		assert.FileExists(t, f.merged+"/"+name)
		assert.Equal(t, want, read(t, f.base+"/"+name), name)
	}
}
