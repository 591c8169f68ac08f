package cli

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// projects is an account with directories of projects.
type projects struct{ *account }

func newProjects(t *testing.T, names ...string) *projects {
	p := &projects{newAccount(t)}
	for _, name := range names {
		require.NoError(t, os.Mkdir(filepath.Join(p.Base, name), 0o755))
		require.NoError(t, os.Chown(filepath.Join(p.Base, name), accountUID, accountUID))
	}
	t.Cleanup(func() {
		p.scopefs("daemon", "--user", "--stop")
		p.ended("what the user's daemon started")
	})
	return p
}

// command is a command in a project.
func (p *projects) command(project string, args ...string) *exec.Cmd {
	p.T.Helper()
	cmd := harness.AsUser(p.T, accountUID, append([]string{harness.Program}, args...)...)
	cmd.Env = append(p.env, cmd.Env[len(cmd.Env)-1])
	cmd.Dir = filepath.Join(p.Base, project)
	return cmd
}

func (p *projects) run(project string, argv ...string) harness.Outcome {
	p.T.Helper()
	return harness.Finish(p.T, p.command(project, append([]string{"run", "--dir", ".", "--"}, argv...)...))
}

// session is a run that goes on until it is ended.
type session struct {
	cmd  *exec.Cmd
	errs bytes.Buffer
}

// begin starts a session in a project, and returns when it runs.
func (p *projects) begin(project string) *session {
	p.T.Helper()
	began := filepath.Join(p.Base, project, "began")
	_ = os.Remove(began)
	s := &session{cmd: p.command(project, "run", "--dir", ".", "--", "sh", "-c", "echo >began; while ! test -e end; do sleep 0.02; done")}
	s.cmd.Stderr = &s.errs
	require.NoError(p.T, s.cmd.Start())
	p.T.Cleanup(func() { _ = s.cmd.Process.Kill() })
	p.Eventually("the session of "+project+" runs", func() bool { _, err := os.Stat(began); return err == nil })
	return s
}

// finish lets a session of a project end, and returns its exit status.
func (p *projects) finish(project string, s *session) int {
	p.T.Helper()
	require.NoError(p.T, os.WriteFile(filepath.Join(p.Base, project, "end"), nil, 0o644))
	defer os.Remove(filepath.Join(p.Base, project, "end"))
	return harness.Await(p.T, s.cmd, &bytes.Buffer{}, &s.errs).Code
}

// processes returns the processes of the account whose command lines match.
func (p *projects) processes(pattern string) (pids []int) {
	match := regexp.MustCompile(pattern)
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		line, _ := os.ReadFile(dir + "/cmdline")
		env, _ := os.ReadFile(dir + "/environ")
		if match.Match(bytes.ReplaceAll(line, []byte{0}, []byte{' '})) && bytes.Contains(env, []byte("HOME="+p.Base+"\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}

const (
	usersDaemon = `^\S+ daemon --user`
	daemonOf    = `^\S+ daemon --base \S*/scopefs/` // and the name of a project
)

// one returns the only process that matches.
func (p *projects) one(pattern string) int {
	p.T.Helper()
	all := p.processes(pattern)
	require.Len(p.T, all, 1, pattern)
	return all[0]
}

// ended waits until nothing of the user's daemon runs.
func (p *projects) ended(what string) {
	p.T.Helper()
	p.Eventually(what+" has ended", func() bool {
		return len(p.processes(usersDaemon)) == 0 && len(harness.ProcessesOf(filepath.Join(p.Base, ".local"))) == 0
	})
}

// TestProjects: one daemon of the user serves three projects at once. The end of the daemon of one is none of another, and
// the next command starts again what was killed.
func TestProjects(t *testing.T) {
	t.Parallel()
	p := newProjects(t, "one", "two", "three")
	one, two, three := p.begin("one"), p.begin("two"), p.begin("three")
	all := p.one(usersDaemon)
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.one(daemonOf+"two")))
	require.NoError(t, err)
	assert.Equal(t, strconv.Itoa(all), strings.Fields(string(stat))[3], "the parent of each is the user's daemon")
	o := p.scopefs("ps")
	for _, project := range []string{"one", "two", "three"} {
		assert.Regexp(t, `(?m)^`+project+`-\S+ +mounted +\d+ +\S+-\S+ `, o.Stdout)
	}

	// Killed is one; a daemon that does not answer is another.
	require.NoError(t, syscall.Kill(p.one(daemonOf+"one"), syscall.SIGKILL))
	assert.Equal(t, 125, harness.Await(t, one.cmd, &bytes.Buffer{}, &one.errs).Code)
	stopped := p.one(daemonOf + "three")
	require.NoError(t, syscall.Kill(stopped, syscall.SIGSTOP))
	assert.Contains(t, p.run("three", "true").Stderr, fmt.Sprintf("the daemon (process %d) is stopped", stopped))
	assert.Equal(t, "again\n", p.run("one", "echo", "again").Stdout)
	assert.Equal(t, "beside\n", p.run("two", "echo", "beside").Stdout)
	require.NoError(t, syscall.Kill(stopped, syscall.SIGCONT))
	assert.Equal(t, all, p.one(usersDaemon))
	assert.Zero(t, p.finish("two", two), two.errs.String())

	// Killed is the user's daemon: everything ends.
	two = p.begin("two")
	require.NoError(t, syscall.Kill(all, syscall.SIGKILL))
	for name, s := range map[string]*session{"two": two, "three": three} {
		assert.NotZero(t, harness.Await(t, s.cmd, &bytes.Buffer{}, &s.errs).Code, name)
	}
	p.ended("what it had started")
	assert.Equal(t, "anew\n", p.run("two", "echo", "anew").Stdout)
	assert.NotEqual(t, all, p.one(usersDaemon))

	// Each has a log of its own; audit --all has all.
	for _, project := range []string{"one", "two"} {
		o = harness.Finish(t, p.command(project, "audit"))
		assert.Contains(t, o.Stdout, project+"-")
		assert.NotContains(t, o.Stdout, "three-")
	}
	o = p.scopefs("audit", "--all")
	for _, project := range []string{"one", "two", "three"} {
		assert.Regexp(t, project+"-[0-9a-f]+ ", o.Stdout)
	}
	assert.True(t, slices.IsSortedFunc(regexp.MustCompile(`\d{4}-\d\d-\d\d [0-9:.]+`).FindAllString(o.Stdout, -1), strings.Compare), o.Stdout)
	o = p.scopefs("daemon", "--user", "--stop")
	assert.Zero(t, o.Code, o.Stderr)
	assert.Empty(t, p.processes(daemonOf), "--stop returns after their end")
	o = p.scopefs("daemon", "--user", "--stop")
	assert.Equal(t, 1, o.Code)
	assert.Contains(t, o.Stderr, "no daemon is running at ")

	// SIGTERM is --stop: the daemons of the projects close their logs.
	require.Zero(t, p.run("two", "true").Code)
	require.NoError(t, syscall.Kill(p.one(usersDaemon), syscall.SIGTERM))
	p.ended("what it had started")
	assert.Regexp(t, `stopped [^\n]*\n$`, harness.Finish(t, p.command("two", "audit")).Stdout)
}

// TestProjectSettings: a daemon that stays is not felt. What a command without one would refuse or find holds at once, and a
// project whose settings are refused is no other's matter.
func TestProjectSettings(t *testing.T) {
	t.Parallel()
	p := newProjects(t, "one", "two")
	user := filepath.Join(p.Base, ".config/scopefs/scopefs.yaml")
	p.env = append(p.env, "XDG_CONFIG_HOME=")
	require.NoError(t, os.MkdirAll(filepath.Dir(user), 0o755))
	write := func(file, text string) {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		require.NoError(t, os.Chown(file, accountUID, accountUID))
	}
	require.NoError(t, os.Chown(filepath.Dir(user), accountUID, accountUID))
	write(user, "sandbox: {env: {WHOSE: first}}\n")
	whose := []string{"sh", "-c", "echo $WHOSE"}
	o := p.run("one", whose...)
	assert.Equal(t, "first\n", o.Stdout, o.Stderr)
	write(user, "sandbox: {env: {WHOSE: second}}\n")
	assert.Equal(t, "second\n", p.run("one", whose...).Stdout)

	// Beside a session the first daemon stays, and the run says so.
	s := p.begin("one")
	write(user, "sandbox: {env: {WHOSE: third}}\n")
	o = p.run("one", whose...)
	assert.Equal(t, "second\n", o.Stdout)
	assert.Contains(t, o.Stderr, "the last good ones hold until the other sessions have ended")
	assert.Zero(t, p.finish("one", s))
	assert.Equal(t, "third\n", p.run("one", whose...).Stdout)

	// A base that is refused.
	bases, err := filepath.Glob(filepath.Join(p.Base, ".local/state/scopefs/one-*"))
	require.NoError(t, err)
	require.Len(t, bases, 1)
	write(filepath.Join(bases[0], "scopefs.yaml"), "nonsense: 1\n")
	o = p.run("one", "true")
	assert.Equal(t, 125, o.Code)
	assert.Contains(t, o.Stderr, `scopefs.yaml:1: unknown key "nonsense"`)
	assert.Equal(t, 1, strings.Count(o.Stderr, "\n"), o.Stderr)
	assert.Equal(t, "third\n", p.run("two", whose...).Stdout)
	o = harness.Finish(t, p.command("one", "call", "read_file", "path=x", "--dir", "."))
	assert.Equal(t, 2, o.Code, o.Stderr)
}

// TestProjectsApart: an agent of one project reaches nothing of another: no socket, no token, no file, no variable of the
// shell that started the daemon. A request to the daemon of one project does not name another's agent. Another user reaches
// none of them.
func TestProjectsApart(t *testing.T) {
	t.Parallel()
	p := newProjects(t, "one", "two")
	require.NoError(t, os.WriteFile(filepath.Join(p.Base, "two", "private"), []byte("of two"), 0o644))
	secret := p.command("one", "run", "--dir", ".", "--", "true")
	secret.Env = append(secret.Env, "SECRET_OF_ONE=s3cret-of-one")
	o := harness.Finish(t, secret)
	require.Zero(t, o.Code, o.Stderr)
	two := p.begin("two")
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.one(usersDaemon)))
	require.NoError(t, err)
	assert.NotContains(t, string(environ), "s3cret")
	environ, err = os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.one(daemonOf+"two")))
	require.NoError(t, err)
	assert.NotContains(t, string(environ), "s3cret", "a definition of two would expand it")

	// The agent of one tries each path of the user's, abstract names, and the processes that it sees.
	socks := []string{filepath.Join(p.Base, "session/scopefs/user.sock")}
	for _, pattern := range []string{"*/run/control.sock", "*/run/mcp/*.sock"} {
		found, err := filepath.Glob(filepath.Join(p.Base, ".local/state/scopefs", pattern))
		require.NoError(t, err)
		require.NotEmpty(t, found)
		socks = append(socks, found...)
	}
	attack := filepath.Join(p.Base, "one", "attack.py")
	require.NoError(t, os.WriteFile(attack, []byte(fmt.Sprintf(`
import glob, os, socket, sys
others = sorted(set(l.split()[-1] for l in open("/proc/net/unix") if "/" in l or "@" in l))
for name in %q.split("\n") + (others if len(sys.argv) < 2 else []):
    for at in (name, "\0" + name[1:]):
        s = socket.socket(socket.AF_UNIX)
        try:
            s.connect(at)
            print("reached", name)
        except OSError:
            pass
for root in ("/proc/[0-9]*/root%[2]s", "/proc/[0-9]*/cwd/../two"):
    for name in glob.glob(root):
        print("sees", name, os.listdir(name))
for f in glob.glob("/proc/[0-9]*/environ"):
    try:
        if b"of-one" in open(f, "rb").read(): print("reads", f)
    except OSError:
        pass
print("tried", len(os.listdir("/proc")) > 0)
`, strings.Join(socks, "\n"), p.Base)), 0o644))
	o = p.run("one", "/usr/bin/python3", "attack.py")
	assert.Equal(t, "tried True\n", o.Stdout, o.Stderr)
	o = p.as(accountUID, "/usr/bin/python3", attack, "host")
	assert.Contains(t, o.Stdout, "reached "+socks[0], "the user is no agent: %s", o.Stderr)

	// The operator of one, and an unknown base.
	bases, err := filepath.Glob(filepath.Join(p.Base, ".local/state/scopefs/*-*"))
	require.NoError(t, err)
	require.Len(t, bases, 2)
	o = p.as(accountUID, harness.Program, "--base", bases[0], "run", filepath.Base(bases[1]), "--", "true")
	assert.NotZero(t, o.Code)
	assert.Contains(t, o.Stderr, "unknown agent")
	open := func(uid int, base string) harness.Outcome {
		return p.as(uid, "curl", "-s", "--unix-socket", socks[0], "-d", fmt.Sprintf(`{"base":%q}`, base), "http://scopefs/v1/bases")
	}
	for _, base := range []string{p.Base, "/", "../one", bases[0] + "/..", bases[0] + "/state", filepath.Join(p.Base, ".local/state/scopefs/none-1")} {
		assert.Contains(t, open(accountUID, base).Stdout, "the user's daemon does not serve", base)
	}
	for _, dir := range []string{"session", "session/scopefs"} {
		require.NoError(t, os.Chmod(filepath.Join(p.Base, dir), 0o755))
	}
	assert.Empty(t, open(otherUID, bases[0]).Stdout, "the socket's mode")
	require.NoError(t, os.Chmod(socks[0], 0o666))
	assert.Contains(t, open(otherUID, bases[0]).Stdout, "only the daemon's user and root may")
	require.NoError(t, os.Chmod(filepath.Join(p.Base, "session"), 0o700))
	assert.Zero(t, p.finish("two", two), two.errs.String())
}

// TestProjectsActivated: a service manager listens for the user's daemon and starts it at a connection. It and the daemon of
// a project end when nothing has used them; an approval that waits is a use.
func TestProjectsActivated(t *testing.T) {
	t.Parallel()
	p := newProjects(t, "one")
	socket := filepath.Join(p.Base, "session/scopefs/user.sock")
	require.NoError(t, os.Mkdir(filepath.Dir(socket), 0o711))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	defer l.Close()
	listener, err := l.File()
	require.NoError(t, err)
	defer listener.Close()
	for _, name := range []string{socket, filepath.Dir(socket)} {
		require.NoError(t, os.Chown(name, accountUID, accountUID))
	}
	activated := func(ended chan harness.Outcome, done chan struct{}) { // systemd.socket(5), sd_listen_fds(3)
		var o harness.Outcome
		for {
			fds := []unix.PollFd{{Fd: int32(listener.Fd()), Events: unix.POLLIN}}
			if n, err := unix.Poll(fds, 50); err == unix.EINTR || n == 0 {
				select {
				case <-done:
					ended <- o
					return
				default:
					continue
				}
			}
			cmd := harness.AsUser(t, accountUID, "sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh", harness.Program, "daemon", "--user", "--idle", "400ms")
			cmd.Env = append(p.env, cmd.Env[len(cmd.Env)-1], "LISTEN_FDS=1")
			cmd.ExtraFiles = []*os.File{listener}
			o = harness.Finish(t, cmd)
		}
	}
	for round := range 2 {
		ended, done := make(chan harness.Outcome, 1), make(chan struct{})
		go activated(ended, done) // on a busy host the daemon may end before its client uses it: then once more
		o := p.run("one", "echo", "served")
		require.Equal(t, "served\n", o.Stdout, o.Stderr)
		if round == 1 {
			o = harness.Finish(t, p.command("one", "call", "write_file", "path=a", "content=b", "--dir", "."))
			id := regexp.MustCompile(`"approval_id":"([^"]+)"`).FindStringSubmatch(o.Stderr)
			require.Len(t, id, 2, o.Stderr)
			assert.Never(t, func() bool { return len(p.processes(daemonOf)) == 0 }, 900*time.Millisecond, 50*time.Millisecond)
			require.Zero(t, p.scopefs("approvals", "deny", id[1]).Code)
		}
		close(done)
		o = <-ended
		assert.Zero(t, o.Code, o.Stderr)
		assert.Contains(t, o.Stderr, "nothing uses it")
		p.ended("what it had started")
		definitions, err := filepath.Glob(filepath.Join(p.Base, ".local/state/scopefs/one-*/agents.d/*.md"))
		require.NoError(t, err)
		text, err := os.ReadFile(definitions[0])
		require.NoError(t, err)
		asking := strings.Replace(string(text), "\nprotect:", "\npolicy: {tools: {ask: [write_file]}}\nprotect:", 1)
		require.NoError(t, os.WriteFile(definitions[0], []byte(asking), 0o644))
	}
	assert.NoDirExists(t, filepath.Join(p.Base, ".local/share/scopefs"), "no base of the user's is made for a project")
}

// TestProjectAgents: agents of the user's settings are in each project, with files of their own there. The project's own
// definition counts before the user's. A directory that another user can write to counts nowhere.
func TestProjectAgents(t *testing.T) {
	t.Parallel()
	p := newProjects(t, "one", "two")
	p.env = append(p.env, "XDG_CONFIG_HOME=")
	require.Zero(t, p.run("one", "true").Code)
	require.Zero(t, p.run("two", "true").Code)
	user := filepath.Join(p.Base, ".config/scopefs/agents.d")
	define := func(dir, whose string) {
		o := p.as(accountUID, "sh", "-c", `umask 022; mkdir -p "$1" && printf '%s\n' --- "name: reviewer" "env: {WHOSE: $2}" --- prompt >"$1/reviewer.md"`, "sh", dir, whose)
		require.Zero(t, o.Code, o.Stderr)
	}
	define(user, "user")
	whose := func(project string) harness.Outcome {
		return harness.Finish(t, p.command(project, "run", "reviewer", "--", "sh", "-c", "echo $WHOSE; ls; echo >seen"))
	}
	for _, project := range []string{"one", "two"} { // whose daemons run already
		o := whose(project)
		assert.Equal(t, "user\n", o.Stdout, o.Stderr)
		o = harness.Finish(t, p.command(project, "agents", "show", "reviewer", "--json"))
		assert.Contains(t, o.Stdout, `"`+filepath.Join(user, "reviewer.md")+`"`)
	}
	o := harness.Finish(t, p.command("one", "allow", "write_file", "--agent", "reviewer"))
	assert.NotZero(t, o.Code)
	assert.Contains(t, o.Stderr, "reviewer is defined for all your projects: edit "+user)

	bases, err := filepath.Glob(filepath.Join(p.Base, ".local/state/scopefs/one-*"))
	require.NoError(t, err)
	define(filepath.Join(bases[0], "agents.d"), "project")
	assert.Equal(t, "project\nseen\n", whose("one").Stdout)
	assert.Equal(t, "user\nseen\n", whose("two").Stdout)
	define(user, "changed")
	assert.Equal(t, "changed\nseen\n", whose("two").Stdout)

	require.NoError(t, os.Chmod(user, 0o777))
	o = harness.Finish(t, p.command("two", "agents", "check"))
	assert.NotZero(t, o.Code)
	assert.Contains(t, o.Stdout+o.Stderr, "agents.d: can be written by others: chmod go-w")
	require.NoError(t, os.Chmod(user, 0o755))
	require.NoError(t, os.Chown(filepath.Join(user, "reviewer.md"), otherUID, otherUID))
	o = harness.Finish(t, p.command("two", "agents", "check"))
	assert.Contains(t, o.Stdout+o.Stderr, "reviewer.md: is of another user")
}

// TestProjectStop: --stop ends the daemon of one project, which the user's daemon has started or the user himself, with or without a
// directory for the user's daemon.
func TestProjectStop(t *testing.T) {
	t.Parallel()
	p := newProjects(t, "one", "two")
	require.Zero(t, p.run("one", "true").Code)
	require.Zero(t, p.run("two", "true").Code)
	require.Len(t, p.processes(daemonOf), 2)
	stop := func(flags ...string) {
		t.Helper()
		began := time.Now()
		o := harness.Finish(t, p.command("one", append([]string{"daemon", "--stop", "--dir", "."}, flags...)...))
		assert.Zero(t, o.Code, o.Stderr)
		assert.Less(t, time.Since(began), 30*time.Second, "it was asked")
	}
	stop()
	assert.Len(t, p.processes(daemonOf), 1, "that of two")
	stop()
	assert.Equal(t, "anew\n", p.run("one", "echo", "anew").Stdout)
	stop("--user")
	assert.Len(t, p.processes(daemonOf), 1, "that of two")

	p.scopefs("daemon", "--user", "--stop")
	p.env = append(p.env, "XDG_RUNTIME_DIR=")
	own := p.command("one", "daemon", "--user", "--dir", ".")
	require.NoError(t, own.Start())
	ended := make(chan error, 1)
	go func() { ended <- own.Wait() }()
	o := p.scopefs("daemon", "--user", "--stop")
	assert.Equal(t, 1, o.Code)
	assert.Contains(t, o.Stderr, "without it a user has no daemon: scopefs daemon --stop --dir DIR")
	p.Eventually("it ends", func() bool {
		stop("--user") // before it has started there is nothing to end
		select {
		case err := <-ended:
			assert.NoError(t, err)
			return true
		default:
			return false
		}
	})
}
