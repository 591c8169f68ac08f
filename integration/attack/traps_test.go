package attack

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// Where each line of TRAPS.md is tested:
//
//	path strings race; Open alone is not enough      TestAttackRace
//	the prefix replaced by a link                    TestAttackPrefixReplaced
//	file exchanged for a FIFO or device at open      TestAttackOpenRace, TestAttackDevices
//	statx, chmod, truncate, utimes follow links      TestAttackRace, selftest view
//	an ancestor moved out; a bind mount inside       TestAttackMovedOut, TestAttackMounts
//	ioctl with the server's privilege                TestAttackIoctl
//	fchmod after rename with a decoy                 TestTrapDecoy
//	operations on an unlinked open file              TestTrapUnlinked
//	a link's text in the client's name space         TestAttackLinks, TestAttackMovedLinks, selftest view
//	passthrough: reads and writes after our death    TestAttackLeftOpen
//	unknown error = ENOSYS                           fs: the errno tests
//	mkdir loses sticky and setgid; setgid on create  TestTrapModes
//	O_APPEND is stripped                             TestTrapAppend
//	the daemon's umask; default ACL and umask        TestTrapModes
//	contending flock users                           TestTrapFlock
//	an ACL entry that denies                         TestTrapACL
//	a getxattr a write; READDIRPLUS by entry         measured: see the benchmarks
//	a child with its working directory in the mount  TestAttackMovedOut, TestPosix; by construction
//	a stale entry makes open(O_CREAT) fail           TestTrapCreateAfterRemove
//	one descriptor an inode                          TestTrapManyFiles
//	paths deeper than PATH_MAX                       TestTrapDeep
//	Landlock does not restrict stat                  TestAttackFromWithin

func init() {
	harness.Roles["append"] = func(args []string) error { // 800 lines of its own
		f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
		for i := 0; i < 800 && err == nil; i++ {
			_, err = fmt.Fprintf(f, "%s %d\n", args[1], i)
		}
		return err
	}
	harness.Roles["flock"] = func(args []string) error { // adds 20 to a number, one at a time
		for range 20 {
			f, err := os.OpenFile(args[0], os.O_RDWR, 0)
			if err == nil {
				err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
			}
			buf := make([]byte, 10)
			var n int
			if err == nil {
				n, _ = f.ReadAt(buf, 0)
				n, err = strconv.Atoi(strings.TrimSpace(string(buf[:n])))
			}
			if err == nil {
				_, err = f.WriteAt(fmt.Appendf(nil, "%9d", n+1), 0)
			}
			if err = errors.Join(err, f.Close()); err != nil {
				return err
			}
		}
		return nil
	}
	harness.Roles["deep"] = deep
}

// eachData runs a test with both data paths.
func eachData(t *testing.T, test func(t *testing.T, h *harness.Host)) {
	for _, data := range []string{"passthrough", "mediated"} {
		t.Run(data, func(t *testing.T) {
			test(t, harness.NewHost(t, map[string]string{"trap": "view: {xattrs: true, data: " + data + "}"}))
		})
	}
}

func all(t *testing.T, n int, cmd func(i int) *exec.Cmd) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { assert.NoError(t, cmd(i).Run()) })
	}
	wg.Wait()
}

func TestTrapAppend(t *testing.T) {
	eachData(t, func(t *testing.T, h *harness.Host) {
		all(t, 2, func(i int) *exec.Cmd { return harness.Role("append", h.View("trap", "log"), fmt.Sprint("writer", i)) })
		text := harness.ReadAll(t, h.Scope("trap", "log"))
		assert.Equal(t, 1600, strings.Count(text, "\n"))
		for i := range 2 {
			assert.Equal(t, 800, strings.Count(text, fmt.Sprintf("writer%d ", i)))
		}
	})
}

func TestTrapFlock(t *testing.T) {
	eachData(t, func(t *testing.T, h *harness.Host) {
		harness.Plant(t, h.Scope("trap"), "n=0")
		all(t, 20, func(int) *exec.Cmd { return harness.Role("flock", h.View("trap", "n")) })
		assert.Equal(t, "400", strings.TrimSpace(harness.ReadAll(t, h.Scope("trap", "n"))))
	})
}

// mode is what stat says of an object on the host.
func mode(t *testing.T, at string) (string, uint32) {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Lstat(at, &st))
	return fmt.Sprintf("%o", st.Mode&0o7777), st.Gid
}

func TestTrapModes(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"trap": "view: {xattrs: true}"})
	for _, umask := range []int{0, 0o027, 0o077} {
		old := unix.Umask(umask)
		dir := h.View("trap", fmt.Sprintf("%o", umask))
		require.NoError(t, os.Mkdir(dir, 0o777))
		require.NoError(t, unix.Mkdir(dir+"/d", 0o1777))
		require.NoError(t, unix.Mknod(dir+"/n", unix.S_IFIFO|0o666, 0))
		require.NoError(t, harness.Opened(dir+"/f", unix.O_CREAT|unix.O_WRONLY, nil))
		require.NoError(t, unix.Mkdir(dir+"/acl", 0o777))
		unix.Umask(old)
		require.NoError(t, exec.Command("setfacl", "-d", "-m", "u::rwx,g::rwx,o::rwx", dir+"/acl").Run())
		unix.Umask(umask)
		fd, err := unix.Open(dir+"/acl/f", unix.O_CREAT|unix.O_WRONLY, 0o666)
		mkdir := unix.Mkdir(dir+"/acl/d", 0o777)
		unix.Umask(old)
		require.NoError(t, errors.Join(err, mkdir))
		unix.Close(fd)
		on := h.Scope("trap", fmt.Sprintf("%o", umask))
		for name, want := range map[string]int{"d": 0o1777 &^ umask, "n": 0o666 &^ umask, "f": 0o644 &^ umask, "acl/f": 0o666, "acl/d": 0o777} {
			got, _ := mode(t, filepath.Join(on, name))
			assert.Equal(t, fmt.Sprintf("%o", want), got, "%s under umask %o", name, umask)
		}
	}
	require.NoError(t, os.Mkdir(h.Scope("trap", "team"), 0o777))
	require.NoError(t, os.Chown(h.Scope("trap", "team"), 0, 1234))
	require.NoError(t, unix.Chmod(h.Scope("trap", "team"), 0o2777))
	assert.Equal(t, []string{"ok", "ok", "ok"}, harness.HostOps(t, h.View("trap", "team"), "mkdir d", "create f", "mkdir d/e"))
	for name, want := range map[string]string{"d": "2755", "f": "644", "d/e": "2755"} {
		got, gid := mode(t, h.Scope("trap", "team", name))
		assert.Equal(t, want, got, name)
		assert.EqualValues(t, 1234, gid, name)
	}
}

func TestTrapACL(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"trap": "view: {allow_other: true}"})
	harness.Plant(t, h.Scope("trap"), "f", "d/f")
	require.NoError(t, os.Chmod(h.Scope("trap", "f"), 0o666))
	as := func(op string) string {
		cmd := harness.Role("ops")
		self, err := os.ReadFile("/proc/self/exe")
		require.NoError(t, err)
		at := filepath.Join(h.Base, "client")
		if _, err := os.Stat(at); err != nil {
			harness.Executable(t, at, self)
		}
		cmd.Path, cmd.Dir = at, h.View("trap")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4321, Gid: 4321}}
		return harness.DoOps(t, cmd, []string{op})[0]
	}
	// The first chdir(2) of another user into a new view fails with EACCES about once in 60 times; why is not known.
	h.Eventually("another user enters the view", func() bool {
		enter := exec.Command("/bin/sh", "-c", `cd "$0"`, h.View("trap"))
		enter.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4321, Gid: 4321}}
		return enter.Run() == nil
	})
	assert.Equal(t, "ok", as("read f"))
	require.NoError(t, exec.Command("setfacl", "-m", "u:4321:---", h.View("trap", "f")).Run(), "set through the view")
	require.NoError(t, exec.Command("setfacl", "-m", "u:4321:---", h.Scope("trap", "d")).Run(), "set on the host")
	for _, op := range []string{"read f", "write f", "trunc f", "read d/f", "list d f"} {
		assert.Equal(t, "EACCES", as(op), op)
	}
	out, err := exec.Command("getfacl", "-cE", h.Scope("trap", "f")).Output()
	require.NoError(t, err)
	assert.Contains(t, string(out), "user:4321:---")
}

// TestTrapDecoy: what is done by descriptor is done to the file that was
// opened or to none.
func TestTrapDecoy(t *testing.T) {
	eachData(t, func(t *testing.T, h *harness.Host) {
		harness.Plant(t, h.Scope("trap"), "f")
		f, err := os.OpenFile(h.View("trap", "f"), os.O_RDWR, 0)
		require.NoError(t, err)
		defer f.Close()
		require.NoError(t, os.Rename(h.Scope("trap", "f"), h.Scope("trap", "moved")))
		harness.Plant(t, h.Scope("trap"), "f=decoy")
		before := harness.Picture(t, h.Scope("trap", "f"))
		fd := int(f.Fd())
		for what, err := range map[string]error{
			"fchmod": unix.Fchmod(fd, 0o600), "fchown": unix.Fchown(fd, 0, 0), "ftruncate": unix.Ftruncate(fd, 0),
			"fsetxattr": unix.Fsetxattr(fd, "user.x", []byte("x"), 0), "futimes": unix.Futimes(fd, make([]unix.Timeval, 2)),
		} {
			assert.NoError(t, err, what)
		}
		assert.Equal(t, before, harness.Picture(t, h.Scope("trap", "f")))
		got, _ := mode(t, h.Scope("trap", "moved"))
		assert.Equal(t, "600", got)
	})
}

func TestTrapUnlinked(t *testing.T) {
	eachData(t, func(t *testing.T, h *harness.Host) {
		for _, remove := range []string{h.View("trap", "f"), h.Scope("trap", "f")} {
			harness.Plant(t, h.Scope("trap"), "f=text")
			f, err := os.OpenFile(h.View("trap", "f"), os.O_RDWR, 0)
			require.NoError(t, err)
			require.NoError(t, os.Remove(remove))
			fd := int(f.Fd())
			var st unix.Stat_t
			for what, err := range map[string]error{
				"fchmod": unix.Fchmod(fd, 0o600), "fchown": unix.Fchown(fd, 0, 0), "fsetxattr": unix.Fsetxattr(fd, "user.x", []byte("x"), 0),
				"ftruncate": unix.Ftruncate(fd, 3), "futimes": unix.Futimes(fd, make([]unix.Timeval, 2)), "fsync": unix.Fsync(fd),
			} {
				assert.NoError(t, err, what)
			}
			require.NoError(t, unix.Fstat(fd, &st))
			assert.EqualValues(t, 3, st.Size)
			assert.EqualValues(t, 0o600, st.Mode&0o777)
			buf := make([]byte, 9)
			n, _ := f.ReadAt(buf, 0)
			assert.Equal(t, "tex", string(bytes.TrimRight(buf[:n], "\x00")))
			f.Close()
		}
	})
}

func TestTrapCreateAfterRemove(t *testing.T) {
	eachData(t, func(t *testing.T, h *harness.Host) {
		for i := range 50 {
			name := fmt.Sprint("f", i)
			harness.Plant(t, h.Scope("trap"), name)
			_, err := os.Stat(h.View("trap", name)) // now the kernel remembers it
			require.NoError(t, err)
			require.NoError(t, os.Remove(h.Scope("trap", name)))
			require.NoError(t, os.WriteFile(h.View("trap", name), []byte("new"), 0o644), "the host has just removed it")
			require.Equal(t, "new", harness.ReadAll(t, h.Scope("trap", name)))
		}
	})
}
