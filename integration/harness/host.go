package harness

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

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
)

// Host is a base directory with agents, and a daemon on it.
type Host struct {
	T       testing.TB
	Base    string
	Cmd     *exec.Cmd
	Log     *bytes.Buffer
	Stderr  io.Writer  // of the daemon; nil is Log
	Files   []*os.File // that the daemon inherits, from 3 on
	Ended   chan struct{}
	Timeout time.Duration // of the watchdog, and of each command; hang unless a test says otherwise

	logs []int // processes of the logs of daemons that were killed
}

// NewHost lays out a base with the given agents (id → frontmatter without name
// and description) and starts a daemon, which is stopped when the test ends. A
// test that takes longer than Timeout has its mounts aborted.
func NewHost(t testing.TB, agents map[string]string) *Host {
	t.Helper()
	h := LayOut(t, agents)
	h.Start()
	return h
}

// LayOut is NewHost without the daemon.
func LayOut(t testing.TB, agents map[string]string) *Host {
	t.Helper()
	NeedFUSE(t)
	// Not t.TempDir: its parents are closed to other users.
	base, err := os.MkdirTemp("", TempPrefix)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(base, 0o755))
	h := &Host{T: t, Base: base, Timeout: hang}
	t.Cleanup(func() { h.remove() })
	require.NoError(t, os.MkdirAll(filepath.Join(base, "agents.d"), 0o755))
	for id, front := range agents {
		h.Define(id, front)
		require.NoError(t, os.MkdirAll(h.Scope(id), 0o755))
	}
	return h
}

// Define writes an agent's definition.
func (h *Host) Define(id, front string) {
	h.T.Helper()
	text := fmt.Sprintf("---\nname: %s\ndescription: test\n%s\n---\nprompt\n", id, uncached(strings.TrimSpace(front)))
	require.NoError(h.T, os.WriteFile(filepath.Join(h.Base, "agents.d", id+".md"), []byte(text), 0o644))
}

// Put writes a file below the host's base directory.
func (h *Host) Put(rel, text string) {
	h.T.Helper()
	path := filepath.Join(h.Base, rel)
	require.NoError(h.T, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(h.T, os.WriteFile(path, []byte(text), 0o644))
}

// Start starts the daemon and waits until each view is mounted or has failed.
func (h *Host) Start(flags ...string) {
	h.T.Helper()
	h.Launch(flags...)
	h.Eventually("the daemon answers, and every view is mounted or cannot be", func() bool {
		all, err := h.agents()
		return err == nil && !slices.ContainsFunc(all, func(a Agent) bool { return a.State != "mounted" && a.State != "failed" })
	})
}

// StartWith starts the daemon with a limit of open descriptors, which its views inherit. See Start.
func (h *Host) StartWith(descriptors int) {
	h.T.Helper()
	h.StartBy(fmt.Sprintf("ulimit -n %d\nexec", descriptors))
}

// StartBy starts the daemon by a shell script that ends in a command which executes its arguments. See Start.
func (h *Host) StartBy(script string) {
	h.T.Helper()
	wrapper := filepath.Join(h.T.TempDir(), "wrapper")
	require.NoError(h.T, os.WriteFile(wrapper, fmt.Appendf(nil, "#!/bin/sh\n%s %s \"$@\"\n", script, Program), 0o755))
	defer func(program string) { Program = program }(Program)
	Program = wrapper
	h.Start()
}

// Launch starts the daemon and does not wait for it.
func (h *Host) Launch(flags ...string) {
	h.T.Helper()
	h.Log = &bytes.Buffer{}
	h.Cmd = exec.Command(Program, append([]string{"daemon", "--base", h.Base}, flags...)...)
	h.Cmd.Stderr = cmp.Or[io.Writer](h.Stderr, h.Log)
	h.Cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	h.Cmd.ExtraFiles = h.Files
	require.NoError(h.T, h.Cmd.Start())
	h.Ended = make(chan struct{})
	cmd, ended := h.Cmd, h.Ended
	go func() { _ = cmd.Wait(); close(ended) }()
	watchdog := time.AfterFunc(h.Timeout, func() {
		h.T.Errorf("watchdog: the test hangs; aborting its mounts")
		h.Abort()
	})
	h.T.Cleanup(func() {
		h.Stop()
		watchdog.Stop()
		if h.T.Failed() {
			h.T.Logf("daemon:\n%s", h.Log)
		}
	})
}

// remove removes the base, with what a killed daemon left: dead mounts, on
// directories that cannot be changed.
func (h *Host) remove() {
	points, _ := filepath.Glob(h.View("*"))
	for _, at := range points {
		_ = unix.Unmount(at, unix.MNT_DETACH)
		if fd, err := unix.Open(at, unix.O_RDONLY|unix.O_DIRECTORY, 0); err == nil {
			_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, 0)
			unix.Close(fd)
		}
	}
	for range 200 {
		if h.logs = slices.DeleteFunc(h.logs, func(pid int) bool { s := StateOf(pid); return s == 0 || s == 'Z' }); len(h.logs) == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	assert.NoError(h.T, os.RemoveAll(h.Base))
}

// Abort kills the daemon and all views: the kernel then ends every request.
func (h *Host) Abort() {
	for _, a := range h.PS() {
		if a.ViewPID > 0 { // 0 would be our own process group: kill(2)
			defer syscall.Kill(a.ViewPID, syscall.SIGKILL)
		}
	}
	_ = h.Cmd.Process.Kill()
	<-h.Ended
}

// Stop ends the daemon, and what it or a daemon that was killed has left to the next one.
func (h *Host) Stop() {
	if h.end(syscall.SIGINT) && h.Cmd.ProcessState.Success() {
		return // it has ended all
	}
	out, err := exec.Command(Program, "--base", h.Base, "daemon", "--stop").CombinedOutput()
	assert.NoError(h.T, err, "%s", out)
}

// Terminate ends the daemon as a service manager does for a restart: its views are left to the next one.
func (h *Host) Terminate() { h.end(syscall.SIGTERM) }

// end sends the daemon a signal and waits for its end. It reports whether the daemon ran until then.
func (h *Host) end(sig syscall.Signal) bool {
	select {
	case <-h.Ended:
		return false
	default:
	}
	_ = h.Cmd.Process.Signal(sig)
	select {
	case <-h.Ended:
	case <-time.After(30 * time.Second):
		h.T.Errorf("the daemon did not stop")
		h.Abort()
	}
	return true
}

// Kill kills the daemon. The process of its log ends after it, and not at once: remove waits for that.
func (h *Host) Kill() {
	h.logs = append(h.logs, ChildrenOf(h.Cmd.Process.Pid, "scopefs-log")...)
	_ = h.Cmd.Process.Kill()
	<-h.Ended
}

// KillAll kills the daemon and its holder, which would unmount the views that end.
func (h *Host) KillAll() {
	holder := h.HolderPID()
	require.NoError(h.T, unix.Kill(holder, unix.SIGSTOP)) // the daemon replaces one that has ended
	h.Kill()
	require.NoError(h.T, unix.Kill(holder, unix.SIGKILL))
}

// HolderPID returns the process of the holder: it has the socket in the run directory.
func (h *Host) HolderPID() int {
	conn, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(h.T, err)
	defer unix.Close(conn)
	require.NoError(h.T, unix.Connect(conn, &unix.SockaddrUnix{Name: filepath.Join(h.Base, "run", "holder.sock")}))
	peer, err := unix.GetsockoptUcred(conn, unix.SOL_SOCKET, unix.SO_PEERCRED)
	require.NoError(h.T, err)
	return int(peer.Pid)
}

// Scope returns the path of a file in an agent's directory on the host.
func (h *Host) Scope(id string, more ...string) string {
	return filepath.Join(append([]string{h.Base, "agents", id}, more...)...)
}

// View returns the path of a file below an agent's mount point.
func (h *Host) View(id string, more ...string) string {
	return filepath.Join(append([]string{h.Base, "run", "views", id}, more...)...)
}

// Try runs the command line and returns what it printed and its exit status.
func (h *Host) Try(args ...string) (stdout, stderr string, code int) {
	ctx, cancel := context.WithTimeout(context.Background(), h.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, Program, append([]string{"--base", h.Base}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.T.Errorf("scopefs %v: %v", args, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// Must runs the command line, which must succeed, and returns what it printed.
func (h *Host) Must(args ...string) string {
	h.T.Helper()
	out, errs, code := h.Try(args...)
	require.Zero(h.T, code, "scopefs %v: %s%s", args, out, errs)
	return out
}

// Agent is what ps reports of an agent.
type Agent struct {
	ID        string `json:"agent"`
	State     string `json:"state"`
	Mount     string `json:"mount"`
	ViewPID   int    `json:"view_pid"`
	Sandboxes []int  `json:"sandbox_pids"`
	Late      string `json:"late"`
	Error     string `json:"error"`
	Disk      struct {
		Bytes    int64 `json:"bytes"`
		Files    int64 `json:"files"`
		MaxBytes int64 `json:"max_bytes"`
		Counting bool  `json:"counting"`
	} `json:"disk"`
}

// PS returns what ps reports of every agent; nil if no daemon answers.
func (h *Host) PS() []Agent {
	all, _ := h.agents()
	return all
}

// agents asks the control socket. Tests wait by it, and a command for each look would take a processor.
func (h *Host) agents() (list []Agent, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), h.Timeout)
	defer cancel()
	// as the command reads them
	p, err := config.Paths{Base: h.Base, State: os.Getenv("SCOPEFS_STATE"), Run: os.Getenv("SCOPEFS_RUN")}.Complete()
	if err != nil {
		return nil, err
	}
	all, err := api.NewClient(p).Agents(ctx)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	err = json.Unmarshal(text, &list)
	return list, err
}

// Agent returns what ps reports of an agent.
func (h *Host) Agent(id string) Agent {
	for _, a := range h.PS() {
		if string(a.ID) == id {
			return a
		}
	}
	return Agent{}
}

// ViewPID returns the process that serves an agent's view, or 0.
func (h *Host) ViewPID(agent string) int { return h.Agent(agent).ViewPID }

// Mounted counts the views that are mounted below or at a directory.
func (h *Host) Mounted(dir string) (n int) {
	text, err := os.ReadFile("/proc/self/mounts")
	require.NoError(h.T, err)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[2] == "fuse.scopefs" && strings.HasPrefix(f[1]+"/", dir+"/") {
			n++
		}
	}
	return n
}

// Bounds of a test that would otherwise never end. A host with few processors and other work stretches
// everything, so they are far above the program's promises. Tests assert promised times separately.
const (
	patience = 2 * time.Minute // for a condition
	hang     = 5 * time.Minute // for a test that has a daemon
)

// Eventually waits for a condition, for up to patience. A look that takes long, such as one by a command or at a long log, comes less
// often: a wait takes a quarter of a processor at most, which other tests need.
func (h *Host) Eventually(what string, ok func() bool) {
	h.T.Helper()
	for end := time.Now().Add(patience); ; {
		began := time.Now()
		if ok() {
			return
		}
		if time.Now().After(end) {
			h.T.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(min(max(3*time.Since(began), 10*time.Millisecond), 250*time.Millisecond))
	}
}
