package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
)

// Disk is a file system in an image file, mounted by a loop device.
type Disk struct {
	Image, At string
	kind      string
	t         testing.TB
	device    string
}

// NewDisk makes a disk with an ext4 and mounts it at a directory until the test ends. It skips
// a test where the host has no loop devices.
func NewDisk(t testing.TB, at string) *Disk {
	t.Helper()
	return NewDiskOf(t, at, "ext4")
}

// NewDiskOf is NewDisk with an ext4 or an ext3.
func NewDiskOf(t testing.TB, at, kind string) *Disk {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	d := &Disk{Image: filepath.Join(dir, "disk"), At: at, kind: kind, t: t}
	f, err := os.Create(d.Image)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(128<<20))
	require.NoError(t, f.Close())
	if err := d.attach(); err != nil {
		need.Skip(t, "needs loop devices: ", err)
	}
	require.NoError(t, exec.Command("losetup", "--detach", d.device).Run())
	out, err := exec.Command("mkfs.ext4", "-t", kind, "-q", "-F", "-m", "0", d.Image).CombinedOutput()
	require.NoError(t, err, "mkfs.ext4: %s", out)
	d.Mount()
	t.Cleanup(d.Unmount)
	return d
}

// attach makes a block device of the image.
func (d *Disk) attach() error {
	out, err := exec.Command("losetup", "--find", "--show", d.Image).CombinedOutput()
	if d.device = strings.TrimSpace(string(out)); err != nil {
		return fmt.Errorf("losetup: %w: %s", err, out)
	}
	return nil
}

// Mount mounts the image. The device goes with the mount.
func (d *Disk) Mount() {
	d.t.Helper()
	require.NoError(d.t, d.attach())
	err := unix.Mount(d.device, d.At, d.kind, 0, "")
	out, detachErr := exec.Command("losetup", "--detach", d.device).CombinedOutput()
	require.NoError(d.t, err, "mount %s", d.device)
	require.NoError(d.t, detachErr, "losetup: %s", out)
}

// Unmount waits for the processes that use the disk.
func (d *Disk) Unmount() {
	d.t.Helper()
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err = unix.Unmount(d.At, unix.UMOUNT_NOFOLLOW); err != unix.EBUSY {
			break
		}
	}
	if err != unix.EINVAL { // it is unmounted
		assert.NoError(d.t, err, "unmount %s", d.At)
	}
	// The namespace of another test's daemon may still have it. A second mount of the image would find half of the first one's journal.
	require.Eventually(d.t, func() bool { return !d.used() }, 3*time.Minute, 10*time.Millisecond, "%s is still mounted somewhere", d.Image)
}

// used reports whether a loop device has the image.
func (d *Disk) used() bool {
	devices, err := os.ReadDir("/sys/block")
	require.NoError(d.t, err)
	return slices.ContainsFunc(devices, func(e os.DirEntry) bool {
		behind, _ := os.ReadFile(filepath.Join("/sys/block", e.Name(), "loop/backing_file"))
		return strings.TrimSpace(string(behind)) == d.Image
	})
}

// EXT4_IOC_SHUTDOWN and EXT4_GOING_FLAGS_NOLOGFLUSH, fs/ext4/ext4.h: nothing that
// is not on the disk by now will be.
const (
	ext4Shutdown   = 0x8004587d
	ext4NoLogFlush = 2
)

// Cut cuts the disk's power. It makes sure that the descriptor is of the image.
func (d *Disk) Cut() {
	d.t.Helper()
	f, err := os.Open(d.At)
	require.NoError(d.t, err)
	defer f.Close()
	var st unix.Stat_t
	require.NoError(d.t, unix.Fstat(int(f.Fd()), &st))
	var device unix.Stat_t
	require.NoError(d.t, unix.Stat(d.device, &device))
	require.Equal(d.t, device.Rdev, st.Dev, "%s is not on %s", d.At, d.device)
	behind, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/loop/backing_file", unix.Major(st.Dev), unix.Minor(st.Dev)))
	require.NoError(d.t, err, "%s is not on a loop device", d.At)
	require.Equal(d.t, d.Image, strings.TrimSpace(string(behind)), "%s is on another disk", d.At)
	require.NoError(d.t, unix.IoctlSetPointerInt(int(f.Fd()), ext4Shutdown, ext4NoLogFlush))
}
