// Package integration holds what can only be tested for real: mounts made by
// the built program, clients in other processes, attackers.
package integration

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
)

// program is the scopefs that is tested: the one that users get, static.
var program string

// tempPrefix begins the names of this run's temporary directories: several runs
// on one host must not see each other's mounts as left behind.
var tempPrefix = fmt.Sprintf("scopefs-integration-%d-", os.Getpid())

// roles are what this test binary does when a test starts it as another
// process: see client.
var roles = map[string]func(args []string) error{}

const roleEnv = "SCOPEFS_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := roles[role](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", tempPrefix)
	if err == nil {
		defer os.RemoveAll(dir)
		err = os.Chmod(dir, 0o755) // other users start it, too
	}
	if err == nil {
		program = filepath.Join(dir, "scopefs")
		build := exec.Command("go", "build", "-trimpath", "-o", program, "../cmd/scopefs")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if left := leftovers(dir); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "left behind:", strings.Join(left, "\n"))
		return 1
	}
	return code
}

// leftovers are processes of the tested program and mounts that are still there.
func leftovers(dir string) (left []string) {
	for end := time.Now().Add(15 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		left = nil
		exes, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, exe := range exes {
			if to, err := os.Readlink(exe); err == nil && strings.HasPrefix(to, dir) {
				left = append(left, exe+" -> "+to)
			}
		}
		mounts, _ := os.ReadFile("/proc/self/mounts")
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, tempPrefix) || strings.Contains(line, os.TempDir()+"/Test") && strings.Contains(line, "fuse.scopefs") {
				left = append(left, line)
			}
		}
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// needFUSE skips a test where nothing can be mounted; under REQUIRE_FUSE=1 that
// is a failure.
func needFUSE(t *testing.T) {
	t.Helper()
	err := os.ErrPermission
	if os.Geteuid() == 0 {
		var f *os.File
		if f, err = os.OpenFile("/dev/fuse", os.O_RDWR, 0); err == nil {
			f.Close()
			return
		}
	}
	if os.Getenv("REQUIRE_FUSE") == "1" {
		t.Fatalf("needs root and /dev/fuse: %v", err)
	}
	t.Skipf("needs root and /dev/fuse: %v", err)
}

// host is a base directory with agents, and a daemon on it.
type host struct {
	t       *testing.T
	base    string
	cmd     *exec.Cmd
	log     *bytes.Buffer
	stderr  io.Writer // of the daemon; nil is log
	ended   chan struct{}
	timeout time.Duration
}

// newHost lays out a base with the given agents (id → frontmatter without name
// and description) and starts a daemon, which is stopped when the test ends. A
// test that takes longer than a minute has its mounts aborted.
func newHost(t *testing.T, agents map[string]string) *host {
	t.Helper()
	h := layOut(t, agents)
	h.start()
	return h
}

// layOut is newHost without the daemon.
func layOut(t *testing.T, agents map[string]string) *host {
	t.Helper()
	needFUSE(t)
	// Not t.TempDir: its parents are closed to other users.
	base, err := os.MkdirTemp("", tempPrefix)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(base, 0o755))
	h := &host{t: t, base: base, timeout: time.Minute}
	t.Cleanup(func() { h.remove() })
	require.NoError(t, os.MkdirAll(filepath.Join(base, "agents.d"), 0o755))
	for id, front := range agents {
		h.define(id, front)
		require.NoError(t, os.MkdirAll(h.scope(id), 0o755))
	}
	return h
}

// define writes an agent's definition.
func (h *host) define(id, front string) {
	h.t.Helper()
	text := fmt.Sprintf("---\nname: %s\ndescription: test\n%s\n---\nprompt\n", id, uncached(strings.TrimSpace(front)))
	require.NoError(h.t, os.WriteFile(filepath.Join(h.base, "agents.d", id+".md"), []byte(text), 0o644))
}

// start starts the daemon and waits until it has mounted what it can.
func (h *host) start(flags ...string) {
	h.t.Helper()
	h.launch(flags...)
	h.eventually("the daemon answers, and every view is mounted or cannot be", func() bool {
		_, _, code := h.try("ps")
		return code == 0 && !slices.ContainsFunc(h.ps(), func(a agent) bool { return a.State != "mounted" && a.State != "failed" })
	})
}

// launch starts the daemon.
func (h *host) launch(flags ...string) {
	h.t.Helper()
	h.log = &bytes.Buffer{}
	h.cmd = exec.Command(program, append([]string{"daemon", "--base", h.base}, flags...)...)
	h.cmd.Stderr = cmp.Or[io.Writer](h.stderr, h.log)
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	require.NoError(h.t, h.cmd.Start())
	h.ended = make(chan struct{})
	cmd, ended := h.cmd, h.ended
	go func() { _ = cmd.Wait(); close(ended) }()
	watchdog := time.AfterFunc(h.timeout, func() {
		h.t.Errorf("watchdog: the test hangs; aborting its mounts")
		h.abort()
	})
	h.t.Cleanup(func() {
		h.stop()
		watchdog.Stop()
		if h.t.Failed() {
			h.t.Logf("daemon:\n%s", h.log)
		}
	})
}

// remove removes the base, with what a killed daemon left: dead mounts, on
// directories that cannot be changed.
func (h *host) remove() {
	points, _ := filepath.Glob(h.view("*"))
	for _, at := range points {
		_ = unix.Unmount(at, unix.MNT_DETACH)
		if fd, err := unix.Open(at, unix.O_RDONLY|unix.O_DIRECTORY, 0); err == nil {
			_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, 0)
			unix.Close(fd)
		}
	}
	assert.NoError(h.t, os.RemoveAll(h.base))
}

// abort kills the daemon and all views: the kernel then ends every request.
func (h *host) abort() {
	for _, a := range h.ps() {
		if a.ViewPID > 0 { // 0 would be our own process group: kill(2)
			defer syscall.Kill(a.ViewPID, syscall.SIGKILL)
		}
	}
	_ = h.cmd.Process.Kill()
	<-h.ended
}

// stop ends the daemon as a service manager does.
func (h *host) stop() {
	select {
	case <-h.ended:
		return
	default:
	}
	_ = h.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-h.ended:
	case <-time.After(30 * time.Second):
		h.t.Errorf("the daemon did not stop")
		h.abort()
	}
}

// kill ends the daemon as nobody should.
func (h *host) kill() {
	_ = h.cmd.Process.Kill()
	<-h.ended
}

// scope is an agent's directory on the host, view its mount point.
func (h *host) scope(id string, more ...string) string {
	return filepath.Join(append([]string{h.base, "agents", id}, more...)...)
}

func (h *host) view(id string, more ...string) string {
	return filepath.Join(append([]string{h.base, "run", "views", id}, more...)...)
}

// try runs the command line and returns what it printed and its exit status.
func (h *host) try(args ...string) (stdout, stderr string, code int) {
	ctx, cancel := context.WithTimeout(context.Background(), h.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append([]string{"--base", h.base}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.t.Errorf("scopefs %v: %v", args, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// must runs the command line and returns what it printed.
func (h *host) must(args ...string) string {
	h.t.Helper()
	out, errs, code := h.try(args...)
	require.Zero(h.t, code, "scopefs %v: %s%s", args, out, errs)
	return out
}

// agent is what ps tells of one.
type agent struct {
	ID        string `json:"agent"`
	State     string `json:"state"`
	Mount     string `json:"mount"`
	ViewPID   int    `json:"view_pid"`
	Sandboxes []int  `json:"sandbox_pids"`
	Error     string `json:"error"`
}

func (h *host) ps() []agent {
	var list []agent
	out, _, _ := h.try("ps", "--json")
	_ = json.Unmarshal([]byte(out), &list)
	return list
}

// events returns what the log says of an agent; "" is everything.
func (h *host) events(agent string) []audit.Event {
	h.t.Helper()
	var list []audit.Event
	for e, err := range audit.Read(context.Background(), filepath.Join(h.base, "state", "audit"), audit.Filter{Agent: agent}, false) {
		require.NoError(h.t, err)
		list = append(list, e)
	}
	return list
}

// recorded reports whether an event of an agent has these fields; empty ones
// of want do not count.
func (h *host) recorded(agent string, want audit.Event) bool {
	for _, e := range h.events(agent) {
		if (want.Event == "" || e.Event == want.Event) && (want.Op == "" || e.Op == want.Op) && (want.Path == "" || e.Path == want.Path) &&
			(want.Target == "" || e.Target == want.Target) && (want.Verdict == "" || e.Verdict == want.Verdict) &&
			(want.Outcome == "" || e.Outcome == want.Outcome) && (want.Rule == "" || e.Rule == want.Rule) &&
			(want.Chain == "" || e.Chain == want.Chain) {
			return true
		}
	}
	return false
}

// patience bounds how long a test waits for a condition that holds soon when the
// code is right. It allows for a host with few processors and other work.
const patience = 20 * time.Second

// eventually waits for a condition, for up to patience.
func (h *host) eventually(what string, ok func() bool) {
	h.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			h.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
