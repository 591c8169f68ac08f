package contextfs_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
)

const (
	secret = "SECRET of the other call"
	dir    = "/context"
	state  = dir + "/state.json"
	meet   = "/tmp/meet" // where the holder passes its descriptors
)

// hold is a process of a call that cooperates with the thief: it passes a descriptor of
// its file and one of the directory. Then it tries its own after each line of its input.
func hold([]string) error {
	// As programs of files are; ours is executed from memory, and closed to others.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return err
	}
	f, err := os.Open(state)
	if err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	if err := os.Chdir(dir); err != nil {
		return err
	}
	l, err := net.Listen("unix", meet)
	if err != nil {
		return err
	}
	fmt.Println(os.Getpid())
	c, err := l.Accept()
	if err != nil {
		return err
	}
	_, _, err = c.(*net.UnixConn).WriteMsgUnix([]byte("x"), unix.UnixRights(int(f.Fd()), int(d.Fd())), nil)
	if err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		tried := attempts{}
		tried.kept(f, d)
		if err := json.NewEncoder(os.Stdout).Encode(tried); err != nil {
			return err
		}
	}
	return nil
}

// attempts holds what each attempt got: bytes, or an error.
type attempts map[string]string

func (a attempts) try(name string, do func() ([]byte, error)) {
	b, err := do()
	a[name] = string(b)
	if err != nil {
		a[name] = strings.TrimSpace(a[name] + " " + errorName(err))
	}
}

func errorName(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

func pread(f *os.File) ([]byte, error) {
	b := make([]byte, 100)
	n, err := f.ReadAt(b, 0)
	if err == io.EOF {
		err = nil
	}
	return b[:n], err
}

// kept tries what a process can do with descriptors.
func (a attempts) kept(f, d *os.File) {
	a.try("pread", func() ([]byte, error) { return pread(f) })
	a.try("read on a thread", func() ([]byte, error) {
		type read struct {
			b   []byte
			err error
		}
		done := make(chan read)
		go func() {
			runtime.LockOSThread()
			b, err := pread(f)
			done <- read{b, err}
		}()
		got := <-done
		return got.b, got.err
	})
	a.try("fstat", func() ([]byte, error) {
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		return fmt.Appendf(nil, "%d bytes", info.Size()), nil
	})
	a.try("mmap private", func() ([]byte, error) { return mapped(f, unix.MAP_PRIVATE) })
	a.try("mmap shared", func() ([]byte, error) { return mapped(f, unix.MAP_SHARED) })
	a.try("copy_file_range", func() ([]byte, error) { return copied(f) })
	a.try("splice", func() ([]byte, error) { return spliced(f) })
	a.try("reopen", func() ([]byte, error) { return os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd())) })
	a.try("openat", func() ([]byte, error) { return openat(d, "state.json") })
	a.try("openat of a name", func() ([]byte, error) { return openat(d, "only-a.json") })
	a.try("readdir", func() ([]byte, error) {
		again, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", d.Fd())) // a position of its own
		if err != nil {
			return nil, err
		}
		defer again.Close()
		names, err := again.Readdirnames(-1)
		slices.Sort(names)
		return []byte(strings.Join(names, " ")), err
	})
	a.try("readdir by path", func() ([]byte, error) {
		list, err := os.ReadDir(dir)
		return fmt.Append(nil, list), err
	})
	a.try("path", func() ([]byte, error) { return os.ReadFile(state) })
}

// mapped returns the bytes of a mapping. A fault that the kernel refuses is SIGBUS.
func mapped(f *os.File, flags int) (b []byte, err error) {
	m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, flags)
	if err != nil {
		return nil, err
	}
	defer unix.Munmap(m)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			b, err = nil, errors.New("fault")
		}
	}()
	return slices.Clone(m[:40]), nil
}

func copied(f *os.File) ([]byte, error) {
	to, err := os.CreateTemp("", "copy")
	if err != nil {
		return nil, err
	}
	defer to.Close()
	from := int64(0)
	if _, err := unix.CopyFileRange(int(f.Fd()), &from, int(to.Fd()), nil, 100, 0); err != nil {
		return nil, err
	}
	return os.ReadFile(to.Name())
}

func spliced(f *os.File) ([]byte, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	defer w.Close()
	from := int64(0)
	n, err := unix.Splice(int(f.Fd()), &from, int(w.Fd()), nil, 100, unix.SPLICE_F_NONBLOCK)
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	_, err = io.ReadFull(r, b)
	return b, err
}

func openat(d *os.File, name string) ([]byte, error) {
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return pread(f)
}

// steal is a process of another call: it tries to get at the files of the holder, whose
// pid is the argument.
func steal(args []string) error {
	c, err := net.Dial("unix", meet)
	if err != nil {
		return err
	}
	b, oob := make([]byte, 1), make([]byte, 100)
	_, n, _, _, err := c.(*net.UnixConn).ReadMsgUnix(b, oob)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	f, d := os.NewFile(uintptr(fds[0]), "passed"), os.NewFile(uintptr(fds[1]), "passed")
	proc := "/proc/" + args[0]
	tried := attempts{}
	tried.kept(f, d)
	tried.processes(proc)
	tried.kernel(f)
	tried.writes()
	return json.NewEncoder(os.Stdout).Encode(tried)
}

// processes tries the ways through /proc.
func (a attempts) processes(proc string) {
	a.try("root", func() ([]byte, error) { return os.ReadFile(proc + "/root" + state) })
	a.try("cwd", func() ([]byte, error) { return os.ReadFile(proc + "/cwd/state.json") })
	a.try("cwd of a name", func() ([]byte, error) { return os.ReadFile(proc + "/cwd/only-a.json") })
	a.try("task", func() ([]byte, error) {
		all, _ := filepath.Glob(proc + "/task/*/root" + dir + "/*")
		return fmt.Append(nil, all), nil
	})
	fds, _ := os.ReadDir(proc + "/fd")
	for _, fd := range fds {
		to, _ := os.Readlink(proc + "/fd/" + fd.Name())
		switch strings.TrimSuffix(to, " (deleted)") { // where another call has looked the name up
		case state:
			a.try("fd of the file", func() ([]byte, error) { return os.ReadFile(proc + "/fd/" + fd.Name()) })
		case dir:
			a.try("fd of the directory", func() ([]byte, error) { return os.ReadFile(proc + "/fd/" + fd.Name() + "/state.json") })
		}
	}
}

// kernel tries interfaces whose requests another task of the kernel could send.
func (a attempts) kernel(f *os.File) {
	call := func(nr uintptr, args ...uintptr) func() ([]byte, error) {
		return func() ([]byte, error) {
			args := append(args, 0, 0, 0)
			_, _, errno := unix.Syscall(nr, args[0], args[1], args[2])
			if errno == 0 {
				return nil, nil
			}
			return nil, errno
		}
	}
	a.try("io_uring", call(unix.SYS_IO_URING_SETUP, 8, uintptr(unsafe.Pointer(new([120]byte)))))
	a.try("fanotify", call(unix.SYS_FANOTIFY_INIT))
	a.try("open_by_handle_at", call(unix.SYS_OPEN_BY_HANDLE_AT, f.Fd()))
	a.try("exec", func() ([]byte, error) { return exec.Command(state).CombinedOutput() })
	a.try("exec of a descriptor", func() ([]byte, error) {
		cmd := exec.Command("/proc/self/fd/3")
		cmd.ExtraFiles = []*os.File{f}
		return cmd.CombinedOutput()
	})
	a.try("mmap to execute", func() ([]byte, error) {
		m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
		if err == nil {
			_ = unix.Munmap(m)
		}
		return nil, err
	})
	a.try("inotify", func() ([]byte, error) { return watched(f) })
}

// watched returns what inotify(7) reports while this process reads its own file.
func watched(f *os.File) ([]byte, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	for _, name := range []string{dir, state, fmt.Sprintf("/proc/self/fd/%d", f.Fd())} {
		_, _ = unix.InotifyAddWatch(fd, name, unix.IN_ALL_EVENTS)
	}
	_, _ = os.ReadFile(state)
	b := make([]byte, 4096)
	n, err := unix.Read(fd, b)
	return b[:max(n, 0)], err
}

// writes tries to change what there is.
func (a attempts) writes() {
	nothing := func(err error) func() ([]byte, error) { return func() ([]byte, error) { return nil, err } }
	a.try("write", nothing(os.WriteFile(state, []byte("x"), 0)))
	a.try("create", nothing(os.WriteFile(dir+"/new", []byte("x"), 0o600)))
	a.try("mkdir", nothing(os.Mkdir(dir+"/d", 0o700)))
	a.try("remove", nothing(os.Remove(state)))
	a.try("rename", nothing(os.Rename(state, dir+"/b")))
	a.try("link", nothing(os.Link(state, dir+"/b")))
	a.try("chmod", nothing(os.Chmod(state, 0o777)))
	a.try("setxattr", nothing(unix.Setxattr(state, "user.x", []byte("x"), 0)))
}

// TestAttack has two calls at the same time. One helps the other.
func TestAttack(t *testing.T) {
	b := newBox(t)
	hide := b.show("a", map[string]string{"state.json": secret, "only-a.json": secret})
	defer b.show("b", map[string]string{"state.json": "own"})()

	holder := b.start("a", "scopefs:files", "hold")
	out := bufio.NewReader(holder.Stdout)
	pid, err := out.ReadString('\n')
	require.NoError(t, err)
	got := attemptsOf(t, b.run("b", "scopefs:files", "steal", strings.TrimSpace(pid)))
	assert.Equal(t, attempts{
		"pread": "ESTALE", "read on a thread": "ESTALE", "fstat": "ESTALE", "reopen": "ESTALE",
		"mmap private": "fault", "mmap shared": "ENODEV", "copy_file_range": "EXDEV", "splice": "EINVAL",
		"openat": "own", "openat of a name": "ENOENT", "readdir": "state.json", "readdir by path": "[- state.json]", "path": "own",
		"root": "own", "cwd": "own", "cwd of a name": "ENOENT", "task": got["task"], "fd of the file": "ESTALE", "fd of the directory": "own",
		"io_uring": "ENOSYS", "fanotify": "EPERM", "open_by_handle_at": "EPERM", "inotify": got["inotify"],
		"exec": "EACCES", "exec of a descriptor": "EACCES", "mmap to execute": "EPERM",
		"write": "EROFS", "create": "EROFS", "mkdir": "EROFS", "remove": "EROFS", "rename": "EROFS", "link": "EROFS", "chmod": "EROFS", "setxattr": "EROFS",
	}, got)
	assert.NotContains(t, got["task"], "only-a")
	assert.NotContains(t, fmt.Sprint(got), secret)

	again := func() attempts {
		_, err := holder.Stdin.WriteString("again\n")
		require.NoError(t, err)
		line, err := out.ReadString('\n')
		require.NoError(t, err)
		return attemptsOf(t, line)
	}
	whole := fmt.Sprint(len(secret), " bytes")
	assert.Equal(t, attempts{"pread": secret, "read on a thread": secret, "fstat": whole, "reopen": secret,
		"mmap private": "fault", "mmap shared": "ENODEV", "copy_file_range": "EXDEV", "splice": "EINVAL",
		"openat": secret, "openat of a name": secret, "readdir": "only-a.json state.json", "readdir by path": "[- only-a.json - state.json]", "path": secret}, again())
	hide()
	assert.Equal(t, attempts{"pread": "ESTALE", "read on a thread": "ESTALE", "fstat": "ESTALE", "reopen": "ESTALE",
		"mmap private": "fault", "mmap shared": "ENODEV", "copy_file_range": "EXDEV", "splice": "EINVAL",
		"openat": "ENOENT", "openat of a name": "ENOENT", "readdir": "", "readdir by path": "[]", "path": "ENOENT"}, again())
}

func attemptsOf(t *testing.T, text string) (a attempts) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &a), "%s", text)
	return a
}

// TestOutlive has processes that outlive their command, by each way out of its session.
// While the call runs, those that stay in the session or below its command see its files.
// Afterwards nobody does, nor the files of the next call.
func TestOutlive(t *testing.T) {
	b := newBox(t)
	hide := b.show("a", map[string]string{"state.json": "of a\n"})
	const look = `while test -e /tmp/go; do sleep 0.02; done; cat /context/state.json > /tmp/$0 2>&1; ls -A /context >> /tmp/$0`
	b.run("a", "sh", "-c", `look='`+look+`'; : > /tmp/go; exec >/dev/null 2>&1 </dev/null
		cat /context/state.json > /tmp/first
		sh -c "$look" background & setsid sh -c "$look" setsid & (setsid sh -c "$look" orphan &)
		(setsid sh -c 'setsid sh -c "$0" twice &' "$look" &)`)
	hide()
	defer b.show("b", map[string]string{"state.json": "of b\n"})()
	got := b.run("b", "sh", "-c", `rm /tmp/go; cd /tmp; for f in background setsid orphan twice; do
		until test -s $f && ! grep -q "^of" $f; do sleep 0.02; test $((n+=1)) -gt 500 && break; done; done
		cat first; tail -n 9 background setsid orphan twice; cat /context/state.json`)
	missing := "cat: /context/state.json: No such file or directory\n"
	assert.Equal(t, "of a\n==> background <==\n"+missing+"\n==> setsid <==\n"+missing+"\n==> orphan <==\n"+missing+"\n==> twice <==\n"+missing+"of b\n", got)
}

// TestPrograms has programs that would rather map or splice a file than read it.
func TestPrograms(t *testing.T) {
	b := newBox(t)
	defer b.show("a", map[string]string{"state.json": "hello\n", "big.json": strings.Repeat("0123456789abcdef", 1<<18)})()
	assert.Equal(t, "big.json\nstate.json\nhello\nhello\nhello\n4194304\nhello\nsame\n-r--r--r-- 6\n", b.run("a", "bash", "-c", `cd /context && ls && cat state.json
		cp state.json /tmp/copy && cat /tmp/copy; install state.json /tmp/i && cat /tmp/i; wc -c < big.json; grep hel state.json
		cp big.json /tmp/big; cmp big.json /tmp/big && echo same; stat -c "%A %s" state.json`))
}

// TestOthers has processes outside the sandbox: root, the agent's user, another user.
func TestOthers(t *testing.T) {
	b := newBox(t)
	defer b.show("a", map[string]string{"state.json": secret})()
	seconds := fmt.Sprint("1021.", os.Getpid()) // of this run of tests alone
	p := b.start("a", "sh", "-c", "cat /context/state.json && echo && exec sleep "+seconds)
	line, err := bufio.NewReader(p.Stdout).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, secret+"\n", line)
	inside := fmt.Sprintf("/proc/%d/root%s", pidOf(t, seconds), dir)
	for uid, want := range map[uint32]string{0: "Permission denied", agentUID: "No such file", agentUID + 1: "Permission denied"} {
		cmd := exec.Command("cat", inside+"/state.json")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, _ := cmd.CombinedOutput()
		assert.Contains(t, string(out), want, "user %d", uid)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	assert.NotContains(t, string(mounts), "scopefs-context")
}

// pidOf returns the process that sleeps for a number of seconds.
func pidOf(t *testing.T, seconds string) (pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, name := range names {
			if text, _ := os.ReadFile(name); string(text) == "sleep\x00"+seconds+"\x00" {
				_, err := fmt.Sscanf(name, "/proc/%d/", &pid)
				return err == nil
			}
		}
		return false
	}, 10*time.Second, 10*time.Millisecond)
	return pid
}

// TestOrdinaryUser runs the attackers where an ordinary user mounts: as root of a user
// namespace of his own.
func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 || os.Getenv(ordinaryEnv) != "" {
		need.Skip(t, "needs root: it becomes another user")
	}
	at := filepath.Join(t.TempDir(), "test")
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(at, self, 0o755))
	for _, name := range []string{at, program} {
		for dir := filepath.Dir(name); dir != "/"; dir = filepath.Dir(dir) {
			if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o001 == 0 {
				require.NoError(t, os.Chmod(dir, 0o755))
			}
		}
	}
	const asUser = `mount -t tmpfs none /mnt && mknod -m 666 /mnt/fuse c 10 229 && mount --bind /mnt/fuse /dev/fuse && umount -l /mnt &&
		exec setpriv --reuid 1000 --regid 1000 --clear-groups unshare -Urm "$0" "$@"`
	cmd := exec.Command("unshare", "-m", "sh", "-c", asUser, at, "-test.v", "-test.run=^(TestAttack|TestOutlive|TestHung)$")
	cmd.Env = append(os.Environ(), ordinaryEnv+"=1", programEnv+"="+program, "REQUIRE_FUSE=1", "TMPDIR=/tmp")
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s", out)
	for _, test := range []string{"TestAttack", "TestOutlive", "TestHung"} {
		assert.Contains(t, string(out), "--- PASS: "+test)
	}
}
