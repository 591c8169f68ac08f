package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestDevices: a device is what the kernel says it is, whatever its name. What leads to the host's memory, its disks or its terminals is
// refused, with the reason, and so is what nobody knows.
func TestDevices(t *testing.T) {
	needRoot(t, "it makes device nodes")
	dir, err := os.MkdirTemp("/dev/shm", "scopefs-test-")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	for name, test := range map[string]struct {
		kind, major, minor uint32
		says               string
	}{
		"null":       {unix.S_IFCHR, 1, 3, "the host's memory"},
		"kvm":        {unix.S_IFCHR, 1, 1, "the host's memory"}, // /dev/mem
		"port":       {unix.S_IFCHR, 1, 4, "the host's memory"},
		"renderD128": {unix.S_IFCHR, 10, 229, "mounts of the host"}, // /dev/fuse
		"tty":        {unix.S_IFCHR, 4, 0, "terminals of the host"},
		"disk":       {unix.S_IFBLK, 7, 0, "the host's disks"},
		"unknown":    {unix.S_IFCHR, 511, 0, "it is not known where that leads"},
		"fifo":       {unix.S_IFIFO, 0, 0, "is no device"},
	} {
		at := filepath.Join(dir, name)
		require.NoError(t, unix.Mknod(at, test.kind|0o666, int(unix.Mkdev(test.major, test.minor))), name)
		_, _, err := findDevices([]string{at}, 1000, 1000)
		assert.ErrorIs(t, err, ErrInvalid, name)
		assert.ErrorContains(t, err, test.says, name)
	}
	require.NoError(t, os.Symlink("/dev/kvm", dir+"/link"))
	for at, says := range map[string]string{
		dir + "/link": "is no device", dir: "is no device", "/dev": "no path below /dev", "/etc/passwd": "no path below /dev",
		"/dev/../etc/passwd": "no path below /dev", "/dev/fuse": "mounts of the host",
	} {
		_, _, err := findDevices([]string{at}, 1000, 1000)
		assert.ErrorContains(t, err, says, at)
	}
	for driver, numbers := range map[string][2]uint32{"drm render": {226, 128}, "drm": {226, 0}} {
		st := unix.Stat_t{Mode: unix.S_IFCHR, Rdev: unix.Mkdev(numbers[0], numbers[1])}
		if got, err := driversOf(numbers[0], numbers[1]); err == nil && got[0] == driver { // with a GPU
			assert.Equal(t, driver == "drm render", judgeDevice(&st) == nil, driver)
		}
	}
	found, lacks, err := findDevices([]string{"/dev/scopefs-none", "/dev/scopefs-none/x"}, 1000, 1000)
	require.NoError(t, err)
	assert.Empty(t, found)
	require.Len(t, lacks, 2)
	assert.Contains(t, lacks[0], "this host has no /dev/scopefs-none for sandbox: {devices}: scopefs doctor")
}

// TestDevicesInside: a sandbox has the devices that its definition names, and no other; a line says which it has not, and which its user
// cannot open.
func TestDevicesInside(t *testing.T) {
	needRoot(t, "the device is root's")
	if _, err := os.Stat("/dev/kvm"); err != nil { // not on every machine
		lacks := newTestSession(t, func(s *Spec) { s.Devices = []string{"kvm"} }).Lacks()
		require.Len(t, lacks, 1)
		assert.Contains(t, lacks[0], "this host has no ")
		return
	}
	const list = "ls /dev/kvm /dev/fuse 2>/dev/null; exec 3<>/dev/kvm && echo opened"
	without := newTestSession(t, func(*Spec) {})
	assert.NotContains(t, sh(t, without, list), "/dev/kvm\n")
	roots := newTestSession(t, func(s *Spec) { s.UID, s.GID, s.Devices = 0, 0, []string{"kvm", "/dev/scopefs-none"} })
	assert.Equal(t, "/dev/kvm\nopened\n", sh(t, roots, list))
	assert.Contains(t, sh(t, roots, "rm /dev/kvm; mknod /tmp/m c 1 1; touch /dev/x"), "Read-only file system")
	require.Len(t, roots.Lacks(), 1)
	var st unix.Stat_t
	require.NoError(t, unix.Stat("/dev/kvm", &st))
	if st.Mode&6 == 6 {
		return
	}
	users := newTestSession(t, func(s *Spec) { s.Devices = []string{"kvm"} })
	assert.NotContains(t, sh(t, users, list), "opened")
	if acl, _ := unix.Getxattr("/dev/kvm", "system.posix_acl_access", nil); acl <= 0 {
		assert.Contains(t, strings.Join(users.Lacks(), ""), "the agent's user cannot open /dev/kvm, mode ")
	}
}
