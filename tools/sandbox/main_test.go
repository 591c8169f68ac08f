package sandbox

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/proc"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

// TestMain also is the programs inside: the init of the sandbox, and as FileWorker
// the attackers.
func TestMain(m *testing.M) {
	child.Play(map[string]func() int{child.Init: first, child.Files: nil})
	if len(os.Args) > 1 {
		if helper := helpers[os.Args[1]]; helper != nil {
			os.Exit(helper(os.Args[2:]))
		}
	}
	if !ordinary() && os.Getenv(aloneEnv) == "" {
		os.Exit(alone())
	}
	inherited = mountIDs()
	os.Exit(m.Run())
}

// first is process 1 of a sandbox.
func first() int {
	if how, err := os.ReadFile(Workspace + "/" + evil); err == nil && string(how) == moved {
		return movedInit()
	} else if err == nil {
		return evilInit(string(how))
	}
	return pid1.Main()
}

// inherited are the mounts before the tests. One that belongs to another package's tests
// ends when they remove its directory.
var inherited map[string]bool

// mountIDs returns the ids of the mounts; proc_pid_mountinfo(5).
func mountIDs() map[string]bool {
	table, _ := os.ReadFile("/proc/self/mountinfo")
	ids := map[string]bool{}
	for line := range strings.Lines(string(table)) {
		ids[strings.Fields(line)[0]] = true
	}
	return ids
}

// aloneEnv marks a run of this test binary in a mount namespace of its own: footprint
// counts mounts, and other packages are tested at the same time.
const aloneEnv = "SANDBOX_TEST_ALONE"

// alone runs the tests in a mount namespace of their own.
func alone() int {
	runtime.LockOSThread() // prctl(2), PR_SET_PDEATHSIG
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), aloneEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	err := cmd.Run()
	if cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, "tests in a mount namespace of their own:", err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

// ordinaryEnv marks a run of this test binary that has no rights on the host
// although its user may be 0, see TestOrdinaryUser.
const ordinaryEnv = "SANDBOX_TEST_ORDINARY"

// agentUID is the agent's user where the host's root runs the tests.
const agentUID = 1000

// ordinary reports whether the tests run without the rights of the host's root.
// The agent's user is then the user who runs them.
func ordinary() bool { return os.Geteuid() != 0 || os.Getenv(ordinaryEnv) != "" }

// needRoot skips a test that an ordinary user cannot do; under REQUIRE_FUSE=1
// that is a failure.
func needRoot(t *testing.T, why string) {
	t.Helper()
	if !ordinary() {
		return
	}
	need.Skip(t, "needs root: ", why)
}

// checked returns why this host makes no sandbox.
var checked = sync.OnceValue(func() error { return Check(context.Background(), Config{}) })

// newHost opens a Host and sees, when the test is over, that nothing is left.
func newHost(t *testing.T) *Host {
	t.Helper()
	r, w, err := os.Pipe() // the runtime's poller opens its own descriptors once
	require.NoError(t, err)
	r.Close()
	w.Close()
	for _, name := range []string{child.Init, child.Files} { // it stays open
		_, err = child.Program(name)
		require.NoError(t, err)
	}
	before := footprint(t)
	h, err := Open(Config{})
	if err == nil {
		err = checked()
	}
	if err != nil {
		need.Skip(t, "no sandbox here: ", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, h.Close())
		assert.Eventually(t, func() bool { return footprint(t) == before }, 20*time.Second, 10*time.Millisecond,
			"left behind: before %s", before)
		if now := footprint(t); now != before {
			t.Logf("after: %s", now)
		}
	})
	return h
}

// footprint tells what this process has: descriptors, children, mounts, groups.
func footprint(t *testing.T) string {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	mounts := 0
	for id := range mountIDs() {
		if !inherited[id] && !ordinary() { // an ordinary user cannot mount, and sees the mounts of others
			mounts++
		}
	}
	groups, err := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/scopefs-%d-*", os.Getpid()))
	require.NoError(t, err)
	deeper, err := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/*/*/scopefs-%d-*", os.Getpid()))
	require.NoError(t, err)
	return fmt.Sprint(len(fds), " descriptors, ", mounts, " mounts, children ",
		children(os.Getpid()), ", groups ", append(groups, deeper...))
}

func children(of int) (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		pid, _ := strconv.Atoi(filepath.Base(name))
		if s, err := proc.ReadStat(pid); err == nil && s.Parent == of {
			pids = append(pids, pid)
		}
	}
	return pids
}

// newView makes a directory that the user uid owns and reaches. An ordinary user
// cannot give files away and owns it.
func newView(t testing.TB, uid int) (dir string, f *os.File) {
	t.Helper()
	dir, err := os.MkdirTemp("", "view")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	if !ordinary() {
		require.NoError(t, os.Chown(dir, uid, uid))
	}
	return dir, pathFile(t, dir)
}

// pathFile opens a directory as a place alone, open(2) O_PATH, until the test ends.
func pathFile(t testing.TB, dir string) *os.File {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), dir)
	t.Cleanup(func() { f.Close() })
	return f
}

// newSpec describes a session as the agent's user, with a view of its own.
func newSpec(t testing.TB) Spec {
	t.Helper()
	uid, gid := agentUID, agentUID
	if ordinary() {
		uid, gid = os.Geteuid(), os.Getegid()
	}
	_, view := newView(t, uid)
	return Spec{Agent: "tester", UID: uint32(uid), GID: uint32(gid), View: view}
}

// newTestSession starts a session as the agent's user.
func newTestSession(t *testing.T, change ...func(*Spec)) *Session {
	t.Helper()
	spec := newSpec(t)
	for _, c := range change {
		c(&spec)
	}
	h := newHost(t)
	s, err := h.Start(context.Background(), spec)
	require.NoError(t, err)
	return s
}

// run runs a command to its end and returns what it wrote to both outputs.
func run(t *testing.T, s *Session, argv ...string) (string, Exit) {
	t.Helper()
	p, err := s.Exec(context.Background(), Command{Argv: argv})
	require.NoError(t, err)
	defer p.Close()
	p.Stdin.Close()
	errs := make(chan string)
	go func() {
		b, _ := io.ReadAll(p.Stderr)
		errs <- string(b)
	}()
	out, err := io.ReadAll(p.Stdout)
	require.NoError(t, err)
	text := string(out) + <-errs
	exit, err := p.Wait()
	require.NoError(t, err)
	return text, exit
}

func sh(t *testing.T, s *Session, script string) string {
	t.Helper()
	out, _ := run(t, s, "bash", "-c", script)
	return out
}

// seconds returns a time that no process of another run of tests sleeps: two runs on one host must not meet.
func seconds(n int) string { return fmt.Sprintf("%d.%d", n, os.Getpid()) }

// sleeping lists the processes of this host that sleep for seconds of these tests.
func sleeping(t *testing.T) (found []string) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, name := range names {
		text, _ := os.ReadFile(name)
		if strings.HasPrefix(string(text), "sleep\x0071") && strings.HasSuffix(string(text), fmt.Sprintf(".%d\x00", os.Getpid())) {
			found = append(found, name)
		}
	}
	return found
}
