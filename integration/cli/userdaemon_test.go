package cli

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/servertest"
)

// account is an ordinary user with a home and a session.
type account struct {
	*harness.Way
	env []string
}

const (
	accountUID = 1234
	otherUID   = 4321
)

// newAccount makes an account; h.Base is its home.
func newAccount(t *testing.T) *account {
	m := harness.Embed(t, accountUID, nil)
	a := &account{Way: m, env: append(os.Environ(), "HOME="+m.Base, "XDG_RUNTIME_DIR="+filepath.Join(m.Base, "session"), "TMPDIR="+m.Tmp, "SCOPEFS_BASE=", "XDG_DATA_HOME=", "XDG_STATE_HOME=relative")}
	require.NoError(t, os.Mkdir(filepath.Join(m.Base, "session"), 0o700))
	require.NoError(t, os.Chown(filepath.Join(m.Base, "session"), accountUID, accountUID))
	t.Cleanup(func() { // daemons of projects end after the user's, and write until then
		a.Eventually("all daemons have ended", func() bool { return len(harness.ProcessesOf(a.Base)) == 0 })
	})
	return a
}

// define writes a definition, as the user.
func (a *account) define(id, front string) {
	a.T.Helper()
	dir := filepath.Join(a.Base, ".local/share/scopefs/agents.d")
	o := a.as(accountUID, "sh", "-c", `mkdir -p "$1" && printf '%s\n' --- "name: $2" "$3" --- prompt >"$1/$2.md"`, "sh", dir, id, front)
	require.Zero(a.T, o.Code, o.Stderr)
}

// as runs a program as a user of the host who sees the host's mounts only.
func (a *account) as(uid int, argv ...string) harness.Outcome {
	a.T.Helper()
	id := fmt.Sprint(uid)
	cmd := exec.Command("setpriv", append([]string{"--reuid", id, "--regid", id, "--clear-groups", "--"}, argv...)...)
	cmd.Env = a.env
	return harness.Finish(a.T, cmd)
}

// scopefs runs a command as the user, without a base.
func (a *account) scopefs(args ...string) harness.Outcome {
	a.T.Helper()
	return a.as(accountUID, append([]string{harness.Program}, args...)...)
}

// start starts the user's daemon and returns when it answers.
func (a *account) start(flags ...string) (daemon *exec.Cmd, log *bytes.Buffer) {
	a.T.Helper()
	// Not through a shell in between: the signals are for the daemon.
	cmd := harness.AsUser(a.T, accountUID, append([]string{harness.Program, "daemon", "--user"}, flags...)...)
	cmd.Env = append(a.env, cmd.Env[len(cmd.Env)-1]) // D=
	log = &bytes.Buffer{}
	cmd.Stderr = log
	require.NoError(a.T, cmd.Start())
	a.T.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if a.T.Failed() {
			a.T.Logf("daemon:\n%s", log)
		}
	})
	defined, err := filepath.Glob(filepath.Join(a.Base, ".local/share/scopefs/agents.d/*.md"))
	require.NoError(a.T, err)
	a.Eventually("the user's daemon answers and has tried to mount", func() bool {
		o := a.scopefs("ps")
		return o.Code == 0 && strings.Count(o.Stdout, "\n") > len(defined) && !strings.Contains(o.Stdout, "starting")
	})
	return cmd, log
}

// TestUserDaemon: an ordinary user has a daemon of his own, with everything that a daemon
// does. No path of it is given anywhere.
func TestUserDaemon(t *testing.T) {
	a := newAccount(t)
	a.define("a", "policy: {tools: {ask: [write_file]}}")
	address := servertest.FreeAddress(t)
	m := filepath.Join(a.Base, "notify")
	notified, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m, Net: "unixgram"})
	require.NoError(t, err)
	defer notified.Close()
	require.NoError(t, os.Chmod(m, 0o666))
	var ready atomic.Bool
	go func() { // a manager that does not read would keep the daemon
		buf := make([]byte, 4096)
		for {
			n, err := notified.Read(buf)
			if err != nil {
				return
			}
			if strings.Contains(string(buf[:n]), "READY=1") {
				ready.Store(true)
			}
		}
	}()
	a.env = append(a.env, "NOTIFY_SOCKET="+m)
	daemon, log := a.start("--http", address)

	mounted := regexp.MustCompile(`(?m)^a +mounted`)
	a.Eventually("the view is mounted", func() bool { return mounted.MatchString(a.scopefs("ps").Stdout) })
	o := a.scopefs("run", "a", "--", "sh", "-c", "echo made >made; ls -A "+a.Base+" || true")
	assert.Zero(t, o.Code, o.Stderr)
	assert.Contains(t, o.Stderr, "No such file", "the sandbox has no home of the user")
	text, err := os.ReadFile(filepath.Join(a.Base, ".local/share/scopefs/agents/a/made"))
	require.NoError(t, err)
	assert.Equal(t, "made\n", string(text))
	assert.DirExists(t, filepath.Join(a.Base, ".local/state/scopefs/daemon/audit"), "a relative XDG_STATE_HOME is none")
	assert.FileExists(t, filepath.Join(a.Base, "session/scopefs/lock"))
	assert.Zero(t, a.Mounted(a.Base), "views are in the daemon's namespaces")

	// An approval.
	write := []string{"call", "write_file", "path=asked", "content=1", "--agent", "a"}
	o = a.scopefs(write...)
	id := regexp.MustCompile(`"approval_id":"([^"]+)"`).FindStringSubmatch(o.Stderr)
	require.Len(t, id, 2, o.Stderr)
	o = a.scopefs("approvals", "approve", id[1])
	require.Zero(t, o.Code, o.Stderr)
	o = a.scopefs("approvals", "approve", id[1])
	assert.Contains(t, o.Stderr, fmt.Sprintf("already by user %d, ", accountUID), "user 0 of the daemon's user namespace")
	o = a.scopefs(write...)
	assert.Zero(t, o.Code, o.Stderr)

	// HTTP, which is the user's alone: root is nobody in the daemon's namespaces.
	token := strings.TrimSpace(a.scopefs("token", "a").Stdout)
	socket := filepath.Join(a.Base, "session/scopefs/mcp/a.sock")
	for _, c := range []struct {
		uid    int
		status string
		where  []string
	}{
		{accountUID, "200", []string{"-H", "Authorization: Bearer " + token, "http://" + address + "/mcp"}},
		{accountUID, "401", []string{"-H", "Authorization: Bearer x" + token, "http://" + address + "/mcp"}},
		{otherUID, "403", []string{"-H", "Authorization: Bearer " + token, "http://" + address + "/mcp"}},
		{0, "403", []string{"-H", "Authorization: Bearer " + token, "http://" + address + "/mcp"}},
		{accountUID, "200", []string{"--unix-socket", socket, "http://localhost/mcp"}},
		{otherUID, "000", []string{"--unix-socket", socket, "http://localhost/mcp"}},
	} {
		o := a.as(c.uid, append([]string{"curl", "-s", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Content-Type: application/json",
			"-H", "Accept: application/json, text/event-stream", "-d", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`},
			c.where...)...)
		assert.Equal(t, c.status, o.Stdout, "%d %v", c.uid, c.where)
	}
	assert.Equal(t, 2, a.scopefs("token", "a", "--origin", "4321").Code)

	// A new definition, down and up.
	a.define("b", "")
	require.Zero(t, a.scopefs("reload").Code)
	assert.Regexp(t, `(?m)^b +mounted`, a.scopefs("ps").Stdout)
	require.Zero(t, a.scopefs("down", "b").Code)
	assert.Regexp(t, `(?m)^b +down`, a.scopefs("ps").Stdout)

	a.Eventually("systemd hears that it is ready", ready.Load)

	// Another daemon of his on the same directories is refused.
	second := harness.AsUser(t, accountUID, harness.Program, "daemon", "--user")
	second.Env = append(a.env, second.Env[len(second.Env)-1])
	o = harness.Finish(t, second)
	assert.Equal(t, 1, o.Code)
	assert.Equal(t, "scopefs: a daemon is running already with --run "+filepath.Join(a.Base, "session/scopefs")+"\n", o.Stderr)

	// It ends as a service does, and leaves nothing.
	require.NoError(t, daemon.Process.Signal(syscall.SIGTERM))
	o = harness.Await(t, daemon, &bytes.Buffer{}, log)
	assert.Zero(t, o.Code, log.String())
	assert.Empty(t, harness.ProcessesOf(a.Base))

	// Killed, it takes all with it; the next one has what it left.
	daemon, _ = a.start()
	view := harness.ProcessesOf(a.Base)
	assert.NotEmpty(t, view)
	require.NoError(t, daemon.Process.Kill())
	a.Eventually("nothing of it runs", func() bool { return len(harness.ProcessesOf(a.Base)) == 0 })
	a.start()
	assert.Zero(t, a.scopefs("run", "a", "--", "cat", "made").Code)
}

// TestUserDaemonOthers: nobody else speaks to a user's daemon: no other user, also if the
// socket's mode is open and the other is 0 in a user namespace, and not the sandbox.
func TestUserDaemonOthers(t *testing.T) {
	a := newAccount(t)
	a.define("a", "")
	daemon, _ := a.start()
	session := filepath.Join(a.Base, "session")
	socket := filepath.Join(session, "scopefs", "control.sock")
	ps := []string{harness.Program, "--base", filepath.Join(a.Base, ".local/share/scopefs"), "--run", filepath.Join(session, "scopefs"), "ps"}
	for _, dir := range []string{".", ".local", ".local/share", ".local/share/scopefs"} {
		require.NoError(t, os.Chmod(filepath.Join(a.Base, dir), 0o755))
	}
	o := a.as(otherUID, ps...)
	assert.Contains(t, o.Stderr, "permission denied")
	require.NoError(t, os.Chmod(session, 0o755))
	o = a.as(otherUID, ps...)
	assert.Contains(t, o.Stderr, "permission denied")
	require.NoError(t, os.Chmod(socket, 0o666))
	for _, uid := range []int{otherUID, 0} {
		o = a.as(uid, ps...)
		assert.Equal(t, 1, o.Code)
		assert.Equal(t, "scopefs: only the daemon's user and root may\n", o.Stderr)
		o = a.as(uid, append([]string{"unshare", "-Ur"}, ps...)...)
		assert.Equal(t, 1, o.Code)
		assert.Equal(t, "scopefs: only the daemon's user and root may\n", o.Stderr)
	}
	assert.Zero(t, a.as(accountUID, ps...).Code)
	o = a.scopefs("run", "a", "--", "sh", "-c", "ls -d "+session+" /run/* "+socket)
	assert.NotContains(t, o.Stdout, "control.sock")

	// An operator's file does not show the socket either.
	require.NoError(t, daemon.Process.Signal(syscall.SIGTERM))
	require.NoError(t, daemon.Wait())
	require.NoError(t, os.WriteFile(filepath.Join(a.Base, ".local/share/scopefs/scopefs.yaml"), []byte("sandbox: {expose: ["+session+"]}\n"), 0o644))
	second := harness.AsUser(t, accountUID, harness.Program, "daemon", "--user")
	second.Env = append(a.env, second.Env[len(second.Env)-1])
	assert.Contains(t, harness.Finish(t, second).Stderr, "to agents: remove it")
}

// TestUserDaemonExposed: no socket of the user's is reached below a directory that is
// exposed, and a directory that cannot be shown so stops the sandbox.
func TestUserDaemonExposed(t *testing.T) {
	a := newAccount(t)
	a.define("a", "")
	shown := filepath.Join(a.Base, "shown")
	require.NoError(t, os.MkdirAll(shown+"/mounted", 0o755))
	harness.Executable(t, shown+"/program", []byte("#!/bin/sh\necho ran\n"))
	l, err := net.Listen("unix", shown+"/socket")
	require.NoError(t, err)
	defer l.Close()
	require.NoError(t, os.Chmod(shown+"/socket", 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(a.Base, ".local/share/scopefs/scopefs.yaml"), []byte("sandbox: {expose: [~/shown]}\n"), 0o644))
	daemon, _ := a.start()
	connect := []string{"run", "a", "--", "/usr/bin/python3", "-c", "import socket; print(socket.socket(socket.AF_UNIX).connect_ex('" + shown + "/socket'))"}
	o := a.scopefs(connect...)
	assert.Equal(t, "111\n", o.Stdout, "ECONNREFUSED; %s", o.Stderr)
	assert.Equal(t, "ran\n", a.scopefs("run", "a", "--", shown+"/program").Stdout)
	require.NoError(t, daemon.Process.Signal(syscall.SIGTERM))
	require.NoError(t, daemon.Wait())

	require.NoError(t, syscall.Mount("tmpfs", shown+"/mounted", "tmpfs", 0, ""))
	defer syscall.Unmount(shown+"/mounted", syscall.MNT_DETACH)
	a.start()
	o = a.scopefs(connect...)
	assert.NotZero(t, o.Code)
	assert.Contains(t, o.Stderr, shown+"/mounted is mounted below it")
	assert.Contains(t, o.Stderr, "write {path: "+shown+", sockets: true}")
}

// TestUserDaemonRefused: what it cannot be, with the remedy, before anything is made.
func TestUserDaemonRefused(t *testing.T) {
	a := newAccount(t)
	o := a.as(0, harness.Program, "daemon", "--user")
	assert.Equal(t, 78, o.Code)
	assert.Equal(t, "scopefs: --user is for an ordinary user: for root, scopefs daemon\n", o.Stderr)
	o = a.as(accountUID, harness.Program, "daemon")
	assert.Equal(t, 78, o.Code)
	assert.Equal(t, "scopefs: no base directory: give --base DIR or set SCOPEFS_BASE, or --dir DIR for a project\n", o.Stderr)
	o = a.as(accountUID, harness.Program, "--base", a.Base, "daemon")
	assert.Equal(t, 78, o.Code)
	assert.Contains(t, o.Stderr, "scopefs daemon needs root; --user serves your own agents")
	a.env = append(a.env, "XDG_RUNTIME_DIR=")
	o = a.as(accountUID, harness.Program, "daemon", "--user")
	assert.Equal(t, 78, o.Code)
	assert.Contains(t, o.Stderr, "XDG_RUNTIME_DIR is not set: log in with a session (pam_systemd), or give --run DIR")
	assert.NoDirExists(t, filepath.Join(a.Base, ".local"))
	a.env = append(a.env, "XDG_RUNTIME_DIR="+filepath.Join(a.Base, "session"))
	closed := harness.Privately(t, harness.ClosedFUSE, harness.Setpriv(accountUID, harness.Program, "daemon", "--user")...)
	closed.Env = append(closed.Env[len(closed.Env)-1:], a.env...)
	o = harness.Finish(t, closed)
	assert.Equal(t, 3, o.Code)
	assert.Equal(t, 1, strings.Count(o.Stderr, "\n"), o.Stderr)
	assert.Contains(t, o.Stderr, "/dev/fuse is closed to this user")
	assert.Empty(t, harness.ProcessesOf(a.Base))
}
