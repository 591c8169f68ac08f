package sandbox

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/proc"
	"github.com/scopefs/scopefs/internal/seccomp"
)

// users are those that an agent may be: an ordinary one and the host's root.
func users(t *testing.T, f func(t *testing.T, s *Session)) {
	if ordinary() {
		f(t, newTestSession(t))
		return
	}
	for _, uid := range []uint32{agentUID, 0, 4711} {
		t.Run(fmt.Sprint("user ", uid), func(t *testing.T) {
			f(t, newTestSession(t, func(spec *Spec) {
				dir, view := newView(t, int(uid))
				require.NoError(t, os.Chmod(dir, 0o700))
				spec.UID, spec.GID, spec.View = uid, uid, view
			}))
		})
	}
}

func TestConfined(t *testing.T) {
	need.Long(t, "it takes seconds")
	users(t, func(t *testing.T, s *Session) {
		status := sh(t, s, "cat /proc/self/status")
		for _, want := range []string{
			"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000",
			"CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "Seccomp_filters:\t1",
		} {
			assert.Contains(t, status, want)
		}
		id := fmt.Sprint(innerID(s.spec.UID, "uid_map"))
		assert.Equal(t, id+" "+id+" "+id+"\n", sh(t, s, "echo $(id -u) $(id -g) $(id -G)"))
		assert.Equal(t, "agent\n", sh(t, s, "id -un"))
		assert.Equal(t, "0\n1\n2\n3\n", sh(t, s, "ls /proc/self/fd"), "3 is that of ls")
		assert.Equal(t, "ok\n", sh(t, s, "echo ok >file; cat file; rm file"))
		assert.Equal(t, "lo\n", sh(t, s, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"))

		for _, script := range []string{
			"cat /etc/shadow", "ls /root", "ls /home", "ls /sys", "ls /var/lib", "ls /work", "ls /run/*",
			"touch /usr/x", "touch /etc/x", "echo x >>/etc/passwd", "touch /x", "touch /dev/x", "touch /run/x",
			"rm /dev/ptmx", "mknod /tmp/null c 1 3", "chmod 777 /", "mount -t tmpfs x /tmp", "umount /workspace",
			"unshare -U true", "unshare -m true", "chroot / true", "nsenter -t 1 -m true",
			"echo 1 >/proc/sys/kernel/core_pattern", "echo 1 >/proc/sysrq-trigger", "echo 1 >/proc/sys/vm/drop_caches",
			"head -c1 /proc/kcore", "dmesg", "sudo -n true", "su -c true root", "ping -c1 127.0.0.1",
			"ls /proc/1/root", "ls /proc/1/cwd/", "readlink /proc/1/fd/1", "head -c1 </proc/1/fd/0", "echo >/proc/1/fd/1", "head -c1 /proc/1/mem", "cat /proc/1/environ", "head -c1 /proc/1/exe",
			"timeout 1 bash -c '</dev/tcp/1.1.1.1/53'",
		} {
			out, exit := run(t, s, "bash", "-c", script)
			assert.NotZero(t, exit.Code, "%s: %s", script, out)
		}
	})
}

// TestKernelFiles: no program reads how the host's kernel was started and built.
func TestKernelFiles(t *testing.T) {
	users(t, func(t *testing.T, s *Session) {
		for _, name := range []string{"/proc/cmdline", "/proc/config.gz"} {
			if _, err := os.Stat(name); err != nil {
				continue // a kernel without IKCONFIG
			}
			out, exit := run(t, s, "head", "-c1", name)
			assert.NotZero(t, exit.Code, name)
			assert.Contains(t, out, "Permission denied", name)
		}
		assert.NotEmpty(t, sh(t, s, "cat /proc/self/cmdline"))
	})
}

// TestSyscalls makes every refused call from within.
func TestSyscalls(t *testing.T) {
	users(t, func(t *testing.T, s *Session) {
		out, _ := run(t, s, FileWorker, "attack")
		var got []attempt
		require.NoError(t, json.Unmarshal([]byte(out), &got), out)
		require.Len(t, got, len(attempts()))
		for _, a := range got {
			assert.Equal(t, a.Want, a.Errno, a.Name)
		}
	})
}

// listed are the calls of the lists, as attempts.
func listed() (a []attempt) {
	for errno, calls := range map[unix.Errno][]uint32{unix.ENOSYS: absent, unix.EPERM: slices.Concat(refused, refusedHere)} {
		for _, nr := range calls {
			a = append(a, attempt{Name: fmt.Sprint("call ", nr), nr: uintptr(nr), Want: errno})
		}
	}
	return a
}

// TestFilter runs the filter on the calls, without a kernel.
func TestFilter(t *testing.T) {
	judge := judge(t)
	for _, a := range attempts() {
		want := uint32(seccomp.Fail(a.Want))
		if a.Name == "raw ip" { // is for CAP_NET_RAW to refuse
			want = unix.SECCOMP_RET_ALLOW
		}
		assert.Equal(t, want, judge(a, seccomp.Architecture), a.Name)
		assert.EqualValues(t, unix.SECCOMP_RET_KILL_PROCESS, judge(a, unix.AUDIT_ARCH_I386), a.Name)
	}
	for name, a := range map[string]attempt{
		"read":              {nr: unix.SYS_READ},
		"clone":             {nr: unix.SYS_CLONE, args: [6]uintptr{unix.CLONE_VM | unix.CLONE_VFORK | uintptr(unix.SIGCHLD)}},
		"unshare files":     {nr: unix.SYS_UNSHARE, args: [6]uintptr{unix.CLONE_FILES}},
		"TCGETS":            {nr: unix.SYS_IOCTL, args: [6]uintptr{0, unix.TCGETS}},
		"personality query": {nr: unix.SYS_PERSONALITY, args: [6]uintptr{0xffffffff}},
		"setarch -R":        {nr: unix.SYS_PERSONALITY, args: [6]uintptr{0x40000}},
		"unix":              {nr: unix.SYS_SOCKET, args: [6]uintptr{unix.AF_UNIX}},
		"inet6":             {nr: unix.SYS_SOCKET, args: [6]uintptr{unix.AF_INET6}},
		"route":             {nr: unix.SYS_SOCKET, args: [6]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}},
		"landlock":          {nr: unix.SYS_LANDLOCK_CREATE_RULESET},
		"seccomp":           {nr: unix.SYS_SECCOMP},
		"last known":        {nr: lastKnown},
		"own limits":        {nr: unix.SYS_PRLIMIT64, args: [6]uintptr{0, unix.RLIMIT_NOFILE, 1 << 40}},
		"another's limits":  {nr: unix.SYS_PRLIMIT64, args: [6]uintptr{7, unix.RLIMIT_NOFILE, 0, 1 << 40}},
		"own priority":      {nr: unix.SYS_SETPRIORITY, args: [6]uintptr{unix.PRIO_PROCESS, 0, 19}},
		"a thread's place":  {nr: unix.SYS_SCHED_SETAFFINITY, args: [6]uintptr{7}},
	} {
		assert.EqualValues(t, unix.SECCOMP_RET_ALLOW, judge(a, seccomp.Architecture), name)
	}
}

// judge returns a function that runs the filter on a call.
func judge(t *testing.T) func(a attempt, architecture uint32) uint32 {
	var raw []bpf.RawInstruction
	for _, in := range filter().Program() {
		raw = append(raw, bpf.RawInstruction{Op: in.Code, Jt: in.Jt, Jf: in.Jf, K: in.K})
	}
	program, ok := bpf.Disassemble(raw)
	require.True(t, ok)
	vm, err := bpf.NewVM(program)
	require.NoError(t, err)
	return func(a attempt, architecture uint32) uint32 {
		data := make([]byte, 64)
		put := binary.BigEndian.PutUint32 // what bpf.VM reads
		put(data[0:], uint32(a.nr))
		put(data[4:], architecture)
		for i, v := range a.args {
			put(data[16+8*i:], uint32(v))
			put(data[20+8*i:], uint32(v>>32))
		}
		verdict, err := vm.Run(data)
		require.NoError(t, err)
		return uint32(verdict)
	}
}

// TestOrdinaryUser runs this package's confinement tests as uid 1000, plainly
// and as root of a user namespace of its own, which can change no ids.
func TestOrdinaryUser(t *testing.T) {
	need.Long(t, "repeats tests as another user")
	needRoot(t, "it becomes another user")
	dir, err := os.MkdirTemp("", "ordinary")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, exec.Command("cp", self, dir+"/test").Run())
	for name, prefix := range map[string][]string{"plain": {}, "own user namespace": {"unshare", "-Urm"}} {
		t.Run(name, func(t *testing.T) {
			args := append(prefix, dir+"/test", "-test.v", "-test.run=^(TestConfined|TestSyscalls|TestTTY|TestLimitsRefused|TestTagOf|TestTagOfStarting|TestTagOfReusedNumber)$")
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Env = append(os.Environ(), ordinaryEnv+"=1", "REQUIRE_FUSE=1", "TMPDIR=/tmp")
			cmd.Dir = "/"
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
			out, err := cmd.CombinedOutput()
			assert.NoError(t, err, "%s", out)
			for _, test := range []string{"TestConfined", "TestSyscalls", "TestTTY", "TestLimitsRefused", "TestTagOf", "TestTagOfStarting", "TestTagOfReusedNumber"} {
				assert.Contains(t, string(out), "--- PASS: "+test)
			}
		})
	}
}

// TestDaemonKilled kills a daemon while its sandbox forks as fast as it can.
func TestDaemonKilled(t *testing.T) {
	need.Long(t, "it takes seconds")
	needRoot(t, "the storm has a limit")
	dir, _ := newView(t, agentUID)
	cmd := exec.Command("/proc/self/exe", "daemon", dir,
		"storm() { while :; do sleep "+seconds(7112)+" & (setsid sleep "+seconds(7113)+" &) ; done; }; storm & storm & storm")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	var pid int
	_, err = fmt.Fscan(out, &pid)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(sleeping(t)) > 100 }, 20*time.Second, 10*time.Millisecond)
	inside, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	require.NoError(t, err)

	pidfd, err := unix.PidfdOpen(pid, 0)
	require.NoError(t, err)
	defer unix.Close(pidfd)
	require.NoError(t, cmd.Process.Kill())
	killed := time.Now()
	cmd.Wait()
	t.Log("daemon gone after ", time.Since(killed))
	awaitExit(pid, pidfd)
	assert.Less(t, time.Since(killed), 10*time.Second)
	t.Log("all gone after ", time.Since(killed))
	assert.Empty(t, inNamespace(t, inside))

	pattern := fmt.Sprintf("/sys/fs/cgroup/pids/scopefs-%d-*", cmd.Process.Pid)
	groups, err := filepath.Glob(pattern)
	require.NoError(t, err)
	// bwrap ends after init, and a group with processes is not swept.
	require.Eventually(t, func() bool { return !slices.ContainsFunc(groups, inUse) }, 10*time.Second, 10*time.Millisecond)
	t.Run("the next daemon sweeps", func(t *testing.T) { newHost(t) })
	groups, err = filepath.Glob(pattern)
	require.NoError(t, err)
	assert.Empty(t, groups)
}

func inNamespace(t *testing.T, ns string) (pids []string) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	require.NoError(t, err)
	for _, link := range links {
		pid := strings.Split(link, "/")[2]
		number, _ := strconv.Atoi(pid)
		stat, err := proc.ReadStat(number)
		if to, _ := os.Readlink(link); to == ns && err == nil && stat.State != 'Z' { // the host's init buries it
			pids = append(pids, pid)
		}
	}
	return pids
}
