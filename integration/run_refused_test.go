package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// untouched runs f and sees that it left no mount, no process and nothing in the
// view.
func (m *way) untouched(f func()) {
	m.t.Helper()
	f()
	assert.NoFileExists(m.t, m.scope("a", "ran"), "the command ran")
	m.clean()
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(m.t, err)
	assert.NotContains(m.t, string(mounts), m.tmp)
	assert.Empty(m.t, processesOf(m.base))
}

// processesOf are those of a host, by their command line.
func processesOf(base string) (found []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		if text, _ := os.ReadFile(name); strings.Contains(string(text), base) {
			found = append(found, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return found
}

// noAdmin are the words by which setpriv takes CAP_SYS_ADMIN from root.
var noAdmin = []string{"--bounding-set", "-sys_admin", "--inh-caps", "-all", "--"}

const newerKernel = "need Linux 5.15 or newer with Landlock; in a container, a seccomp profile that knows these system calls\n"

// argv is the program's command line on the base.
func (m *way) argv(args ...string) []string {
	return append([]string{program, "--base", m.base}, args...)
}

// through is a command that runs the program, with its TMPDIR.
func (m *way) through(cmd *exec.Cmd) *exec.Cmd {
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, "TMPDIR="+m.tmp)
	return cmd
}

// withBwrap is the program with a bwrap that is this script.
func (m *way) withBwrap(script string, args ...string) *exec.Cmd {
	bin := filepath.Join(m.base, "bin")
	require.NoError(m.t, os.MkdirAll(bin, 0o755))
	require.NoError(m.t, os.WriteFile(filepath.Join(bin, "bwrap"), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	cmd := m.through(exec.Command(program, m.argv(args...)[1:]...))
	cmd.Env = append(cmd.Env, "PATH="+bin+":/usr/bin:/bin")
	return cmd
}

// TestDaemonCannotMount: on a host where no view could ever be mounted the daemon
// ends with status 3 and one line, and leaves nothing.
func TestDaemonCannotMount(t *testing.T) {
	for name, c := range map[string]struct {
		cmd  func(m *way, argv []string) *exec.Cmd
		want string
	}{
		"no CAP_SYS_ADMIN": {func(m *way, argv []string) *exec.Cmd {
			return exec.Command("setpriv", append(noAdmin, argv...)...)
		}, "scopefs: CAP_SYS_ADMIN is missing, without which nothing can be mounted: run scopefs as root of the host; a container needs --privileged, or what docs/security.md lists\n"},
		"no /dev/fuse": {func(m *way, argv []string) *exec.Cmd { return privately(m.t, noFUSE, argv...) },
			"scopefs: there is no FUSE (open /dev/fuse: no such file or directory): load the module (modprobe fuse); a container needs --device /dev/fuse\n"},
		"an old kernel": {func(m *way, argv []string) *exec.Cmd {
			return without("close_range,openat2,landlock_create_ruleset", argv...)
		},
			"scopefs: the kernel has no close_range, openat2, landlock_create_ruleset: " + newerKernel},
		"a container's filter": {func(m *way, argv []string) *exec.Cmd {
			return without("EPERM:fsopen,fsconfig,fsmount,move_mount", argv...)
		},
			"scopefs: a seccomp filter refuses fsopen, fsconfig, fsmount, move_mount: allow these system calls in the profile of the container or service\n"},
	} {
		t.Run(name, func(t *testing.T) {
			m := embed(t, 0, map[string]string{"a": ""})
			m.untouched(func() {
				o := finish(t, m.through(c.cmd(m, m.argv("daemon"))))
				assert.Equal(t, 3, o.code)
				assert.Empty(t, o.stdout)
				assert.Equal(t, c.want, o.stderr)
				assert.NoDirExists(t, filepath.Join(m.base, "run"))
				assert.NoDirExists(t, filepath.Join(m.base, "state"))
			})
		})
	}
}

// When a piece of the confinement is missing, run says which, and how to get it,
// on one line, and runs nothing.
func TestRunFailsClosed(t *testing.T) {
	touch := []string{"run", "a", "--", "touch", "/workspace/ran"}
	for name, c := range map[string]struct {
		front string
		uid   int
		cmd   func(m *way) *exec.Cmd // nil: as it is
		want  string
	}{
		"no bubblewrap": {"", 0, func(m *way) *exec.Cmd {
			cmd := m.scopefs(touch...)
			cmd.Env = append(cmd.Env, "PATH=/nowhere")
			return cmd
		}, "scopefs: bubblewrap is not installed: apt-get install bubblewrap\n"},
		"no /dev/fuse": {"", 0, func(m *way) *exec.Cmd {
			cmd := privately(m.t, noFUSE, append([]string{program, "--base", m.base}, touch...)...)
			cmd.Env = append(cmd.Env, "TMPDIR="+m.tmp)
			return cmd
		}, "scopefs: there is no FUSE (open /dev/fuse: no such file or directory): load the module (modprobe fuse); a container needs --device /dev/fuse\n"},
		"closed /dev/fuse": {"", 1234, func(m *way) *exec.Cmd {
			cmd := exec.Command("setpriv", append([]string{"--reuid", "1234", "--regid", "1234", "--clear-groups", "--", program, "--base", m.base}, touch...)...)
			cmd.Env = append(os.Environ(), "TMPDIR="+m.tmp)
			return cmd
		}, "scopefs: /dev/fuse is closed to this user (open /dev/fuse: permission denied): chmod 666 /dev/fuse, as udev does, or run as root\n"},
		"no CAP_SYS_ADMIN": {"", 0, func(m *way) *exec.Cmd {
			return m.through(exec.Command("setpriv", append(noAdmin, m.argv(touch...)...)...))
		}, "scopefs: make a mount namespace: operation not permitted: run scopefs as root of the host; a container needs --privileged, or what docs/security.md lists\n"},
		"an old kernel": {"", 0, func(m *way) *exec.Cmd {
			return m.through(without("fsopen,mount_setattr", m.argv(touch...)...))
		}, "scopefs: the kernel has no fsopen, mount_setattr: " + newerKernel},
		"a container's filter": {"", 0, func(m *way) *exec.Cmd {
			return m.through(without("EPERM:mount,pivot_root", m.argv(touch...)...))
		}, "scopefs: a seccomp filter refuses mount, pivot_root: allow these system calls in the profile of the container or service\n"},
		"no executable memory": {"", 0, func(m *way) *exec.Cmd {
			if _, err := os.Stat("/proc/sys/vm/memfd_noexec"); err != nil {
				m.t.Skip("before Linux 6.3: ", err)
			}
			return m.through(exec.Command("unshare", append([]string{"--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", `echo 2 >/proc/sys/vm/memfd_noexec; "$@"`, "sh"}, m.argv(touch...)...)...))
		}, "scopefs: the program of the sandbox cannot be in memory (memfd_create: permission denied): sysctl vm.memfd_noexec is 2, which forbids it: set it to 0 or 1 in /etc/sysctl.d, and start again\n"},
		"an old bubblewrap": {"", 0, func(m *way) *exec.Cmd {
			return m.withBwrap(`case $1 in --version) echo bubblewrap 0.4.1;; *) /usr/bin/bwrap --help | grep -v -e --disable-userns -e --size;; esac`, touch...)
		}, "scopefs: bubblewrap 0.4.1 lacks --disable-userns, --size: install bubblewrap 0.8.0 (Debian 12) or newer\n"},
		"a very old bubblewrap": {"", 0, func(m *way) *exec.Cmd {
			return m.withBwrap(`echo usage >&2; exit 1`, touch...)
		}, "/bin/bwrap does not say what it can (--help: exit status 1): install bubblewrap 0.8.0 (Debian 12) or newer\n"},
		"no user namespaces": {"", 0, func(m *way) *exec.Cmd {
			return m.through(exec.Command("unshare", append([]string{"-Urm", "sh", "-c", `echo 0 >/proc/sys/user/max_user_namespaces; "$@"`, "sh"}, m.argv(touch...)...)...))
		}, "unprivileged user namespaces are off (sysctl user.max_user_namespaces=0): change it in /etc/sysctl.d\n"},
		"limits without groups": {"limits: {pids: 50}", 1234, nil,
			"scopefs: start sandbox of \"a\": limits: no control group for pids"},
		"scope of another": {"", 1234, func(m *way) *exec.Cmd {
			require.NoError(m.t, os.Chown(m.scope("a"), 65534, 65534))
			require.NoError(m.t, os.Chmod(m.scope("a"), 0o777))
			return m.scopefs(touch...)
		}, "scopefs: mount \"a\": the scope of \"a\" belongs to another user: run as that user, or as root\n"},
		"another's identity": {"identity: caller", 1234, nil, "scopefs: mount \"a\": identity: caller needs a daemon that runs as root\n"},
	} {
		t.Run(name, func(t *testing.T) {
			m := embed(t, c.uid, map[string]string{"a": c.front})
			m.untouched(func() {
				cmd := m.scopefs(touch...)
				if c.cmd != nil {
					cmd = c.cmd(m)
				}
				o := finish(t, cmd)
				assert.Equal(t, 125, o.code)
				assert.Empty(t, o.stdout)
				assert.Equal(t, 1, strings.Count(o.stderr, "\n"), o.stderr)
				assert.Contains(t, o.stderr, c.want)
			})
		})
	}
}

// With a daemon it is the daemon's PATH that counts, and what is installed
// later is found.
func TestRunBubblewrapComes(t *testing.T) {
	m := &way{host: layOut(t, map[string]string{"a": ""}), tmp: t.TempDir()}
	bin := filepath.Join(m.base, "bin")
	require.NoError(t, os.Mkdir(bin, 0o755))
	t.Setenv("PATH", bin)
	m.start()
	o := m.run("a", "--", "true")
	assert.Equal(t, 125, o.code)
	assert.Equal(t, "scopefs: bubblewrap is not installed: apt-get install bubblewrap\n", o.stderr)
	_, errs, code := m.try("call", "list_dir", "path=.", "--agent", "a")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, `"code":"unavailable","message":"no sandbox can be made"`)
	assert.Regexp(t, `list_dir unavailable .* bubblewrap is not installed`, m.must("audit"))
	require.NoError(t, os.Symlink("/usr/bin/bwrap", filepath.Join(bin, "bwrap")))
	o = m.run("a", "--", "true")
	assert.Zero(t, o.code, o.stderr)
	m.stop()
	assert.Contains(t, m.log.String(), `msg="no sandbox can be made" err="bubblewrap is not installed: apt-get install bubblewrap"`, "told before anybody runs")
}

// The limits hold: by control groups, here of version 1.
func TestRunLimits(t *testing.T) {
	m := embed(t, 0, map[string]string{"a": "limits: {pids: 20, memory: 64MiB}"})
	o := m.run("a", "--", "sh", "-c", "i=0; while [ $i -lt 100 ]; do sleep 100 & i=$((i+1)); done")
	assert.Equal(t, 2, o.code)
	assert.Contains(t, o.stderr, "Cannot fork")
	o = m.run("a", "--", "sh", "-c", "head -c 200m /dev/zero | tail -c 150m")
	assert.Equal(t, 137, o.code, o.stderr)
}
