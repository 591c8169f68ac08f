package attack

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestAttackSockets: a socket in the prefix is a name, not a way to the host
// process that listens there. Sockets of the view's own processes work.
func TestAttackSockets(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"sock": ""})
	short := "/proc/self/fd/%d/s" // the path may be longer than a socket's address
	dir, err := os.Open(h.Scope("sock"))
	require.NoError(t, err)
	defer dir.Close()
	l, err := net.Listen("unix", fmt.Sprintf(short, dir.Fd()))
	require.NoError(t, err)
	defer l.Close()
	require.NoError(t, os.Chmod(h.Scope("sock", "s"), 0o777))
	abstract, err := net.Listen("unix", "@scopefs-test-"+filepath.Base(h.Base))
	require.NoError(t, err)
	defer abstract.Close()
	ops := []string{"connect s", "stat s", "read s", "connect @scopefs-test-" + filepath.Base(h.Base)}
	assert.Equal(t, []string{"ok", "ok", "ENXIO", "ok"}, harness.HostOps(t, h.Scope("sock"), ops...), "without a view it works")
	h.Start()
	assert.Equal(t, []string{"ECONNREFUSED", "ok", "ENXIO", "ok"}, harness.HostOps(t, h.View("sock"), ops...))
	assert.Equal(t, []string{"ECONNREFUSED", "ok", "ENXIO", "ECONNREFUSED"}, harness.DoOps(t, h.InSandbox("sock", "ops"), ops))
	assert.Equal(t, []string{"ok"}, harness.DoOps(t, h.InSandbox("sock", "ops"), []string{"bind own"}))
}

// TestAttackDevices: devices are neither opened nor made.
func TestAttackDevices(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"dev": ""})
	harness.Plant(t, h.Scope("dev"), "f")
	require.Equal(t, []string{"ok", "ok", "ok"}, harness.HostOps(t, h.Scope("dev"), "chr chr", "blk blk", "write chr"))
	for _, name := range []string{"chr", "blk"} {
		require.NoError(t, os.Chmod(h.Scope("dev", name), 0o666))
	}
	h.Start()
	ops := []string{"write chr", "ioctl chr 0", "write blk", "ioctl blk 0", "reopen chr", "o-trunc chr"}
	assert.Equal(t, slices.Repeat([]string{"EACCES"}, len(ops)), harness.HostOps(t, h.View("dev"), ops...))
	assert.Equal(t, slices.Repeat([]string{"EACCES"}, len(ops)), harness.DoOps(t, h.InSandbox("dev", "ops"), ops))
	// After the kernel has looked the name up as a regular file.
	require.Equal(t, []string{"ok"}, harness.HostOps(t, h.View("dev"), "read f"))
	require.NoError(t, harness.Exchange([]string{h.Scope("dev", "f"), h.Scope("dev", "chr")}))
	assert.NotEqual(t, []string{"ok"}, harness.HostOps(t, h.View("dev"), "write f"))
	for _, kind := range []string{"chr", "blk"} {
		assert.Contains(t, []string{"EACCES", "EPERM"}, harness.HostOps(t, h.View("dev"), kind+" made-"+kind)[0])
		assert.Contains(t, []string{"EACCES", "EPERM"}, harness.DoOps(t, h.InSandbox("dev", "ops"), []string{kind + " made-" + kind})[0])
		assert.True(t, h.Recorded("dev", audit.Event{Op: "mknod", Path: "made-" + kind, Verdict: audit.Violation, Rule: "resolution: device node"}), kind)
		assert.NoFileExists(t, h.Scope("dev", "made-"+kind))
	}
}

// TestAttackSetuid: a set-user-ID program in the prefix is a program.
func TestAttackSetuid(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"suid": "user: 65534"})
	id, err := os.ReadFile("/usr/bin/id")
	require.NoError(t, err)
	harness.Executable(t, h.Scope("suid", "id"), id)
	require.NoError(t, os.Chmod(h.Scope("suid", "id"), os.ModeSetuid|os.ModeSetgid|0o755))
	h.Start()
	run := func(at string) string {
		cmd := exec.Command(at, "-u")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.Output()
		require.NoError(t, err)
		return strings.TrimSpace(string(out))
	}
	assert.Equal(t, "0", run(h.Scope("suid", "id")), "without a view it works")
	assert.Equal(t, "65534", run(h.View("suid", "id")))
	assert.Equal(t, "65534\n", h.Must("run", "-T", "suid", "--", "/workspace/id", "-u"))
}

// TestAttackHandles: nothing is opened by a handle.
func TestAttackHandles(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"handle": ""})
	harness.Plant(t, h.Scope("handle"), "f", "d/")
	h.Start()
	assert.Equal(t, []string{"ok"}, harness.HostOps(t, h.Scope("handle"), "byhandle f ."))
	out := filepath.Join(h.Base, "agents.d/handle.md")
	ops := []string{"byhandle f .", "byhandle d .", "byhandle . .", "byhandle f /tmp", "byhandle " + out + " ."}
	for _, got := range harness.HostOps(t, h.View("handle"), ops...) {
		assert.Contains(t, []string{"ENOTSUP", "ESTALE", "EOVERFLOW"}, got)
	}
	for _, got := range harness.DoOps(t, h.InSandbox("handle", "ops"), []string{"byhandle f .", "byhandle /usr/bin/env /usr"}) {
		assert.Contains(t, []string{"ENOTSUP", "EPERM"}, got)
	}
}

// TestAttackIoctl: no ioctl reaches the file system below, least of all
// EXT4_IOC_SHUTDOWN. The scope is a file system of its own here.
func TestAttackIoctl(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"ioctl": ""})
	disk := filepath.Join(h.Base, "disk")
	require.NoError(t, os.WriteFile(disk, nil, 0o600))
	require.NoError(t, os.Truncate(disk, 64<<20)) // room for the test program
	script := fmt.Sprintf("mkfs.ext4 -q %[1]s && mount -o loop %[1]s %[2]s", disk, h.Scope("ioctl"))
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		need.Skip(t, "needs a loop device: ", string(out))
	}
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(h.Scope("ioctl"), unix.MNT_DETACH)) })
	harness.Plant(t, h.Scope("ioctl"), "f", "d/")
	h.Start()
	names := map[string]string{"0x8004587d": "EXT4_IOC_SHUTDOWN", "0x40086602": "FS_IOC_SETFLAGS", "0x80087601": "FS_IOC_GETVERSION",
		"0x40087602": "FS_IOC_SETVERSION", "0x401c5820": "FS_IOC_FSSETXATTR", "0xc0185879": "FITRIM", "0x40086610": "EXT4_IOC_RESIZE_FS",
		"0x40806685": "FS_IOC_ENABLE_VERITY", "0x800c6613": "FS_IOC_SET_ENCRYPTION_POLICY", "0x660c": "EXT4_IOC_ALLOC_DA_BLKS", "0x6611": "EXT4_IOC_SWAP_BOOT"}
	var ops []string
	for nr := range names {
		ops = append(ops, "ioctl f "+nr, "ioctl d "+nr, "ioctl . "+nr)
	}
	for i, got := range harness.HostOps(t, h.View("ioctl"), ops...) {
		assert.Contains(t, []string{"ENOTTY", "EPERM", "EACCES", "ENOTSUP", "EINVAL", "EISDIR"}, got, "%s: %s", ops[i], names[strings.Fields(ops[i])[2]])
	}
	got := harness.DoOps(t, h.InSandbox("ioctl", "ops"), []string{"ioctl f 0x8004587d", "ioctl . 0x8004587d", "ioctl f 0x40086602", "create n", "write f"})
	assert.Equal(t, []string{"ok", "ok"}, got[3:], "the file system still works")
	assert.NotContains(t, got[:3], "ok")
	h.Stop()
}

// TestAttackXattrs: attributes that give rights, or that are the host's, are
// neither set nor shown.
func TestAttackXattrs(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"xattr": "view: {xattrs: true}"})
	harness.Plant(t, h.Scope("xattr"), "f")
	names := []string{"trusted.overlay.opaque", "trusted.x", "security.capability", "security.selinux", "security.ima", "security.x"}
	for _, name := range names[:2] {
		require.NoError(t, unix.Setxattr(h.Scope("xattr", "f"), name, []byte("FOREIGN"), 0))
	}
	require.NoError(t, unix.Setxattr(h.Scope("xattr", "f"), "user.own", []byte("own"), 0))
	require.NoError(t, exec.Command("setcap", "cap_net_raw+ep", h.Scope("xattr", "f")).Run())
	h.Start()
	buf := make([]byte, 1000)
	n, err := unix.Listxattr(h.View("xattr", "f"), buf)
	require.NoError(t, err)
	assert.Equal(t, "user.own\x00", string(buf[:n]))
	for _, name := range names {
		_, err := unix.Getxattr(h.View("xattr", "f"), name, buf)
		assert.Error(t, err, name)
		assert.NotEqual(t, "ok", harness.HostOps(t, h.View("xattr"), "setattr f "+name)[0], name)
		assert.Error(t, unix.Removexattr(h.View("xattr", "f"), name), name)
	}
	_, err = unix.Getxattr(h.Scope("xattr", "f"), "trusted.x", buf)
	assert.NoError(t, err)
	assert.True(t, h.Recorded("xattr", audit.Event{Op: "setxattr", Path: "f", Target: "trusted.x", Verdict: audit.Deny}))
}

// TestAttackLeftOpen: what a client of the host kept of a view that went down
// opens nothing of the view that comes after.
func TestAttackLeftOpen(t *testing.T) {
	for _, data := range []string{"passthrough", "mediated"} {
		t.Run(data, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"left": "view: {data: " + data + "}"})
			harness.Plant(t, h.Scope("left"), "d/f=text", "d/g")
			h.Start()
			tell := holder(t, h.View("left", "d"))
			require.Equal(t, "ok", tell("read g"))
			for _, how := range []string{"down", "up"} {
				h.Must(how, "left")
				for _, op := range []string{"read g", "stat g", "create n", "mkdir n", "list . g", "chmod ."} {
					assert.Contains(t, []string{"ENOTCONN", "ECONNABORTED", "ENOENT"}, tell(op), "%s after %s", op, how)
					assert.Contains(t, []string{"ENOTCONN", "ECONNABORTED", "ENOENT", "ENOTDIR"}, tell("fd "+op), "fd %s after %s", op, how)
				}
				t.Logf("%s: an open file after %s: pread %s, pwrite %s", data, how, tell("pread"), tell("pwrite"))
			}
			assert.Equal(t, []string{"ok"}, harness.HostOps(t, h.View("left"), "read d/g"))
			assert.NoFileExists(t, h.Scope("left", "d/n"))
		})
	}
}
