package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// untouched runs f and sees that it left no mount, no process and nothing in the
// view.
func untouched(m *harness.Way, f func()) {
	m.T.Helper()
	f()
	assert.NoFileExists(m.T, m.Scope("a", "ran"), "the command ran")
	m.Clean()
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(m.T, err)
	assert.NotContains(m.T, string(mounts), m.Tmp)
	assert.Empty(m.T, harness.ProcessesOf(m.Base))
}

// noAdmin are the words by which setpriv takes CAP_SYS_ADMIN from root.
var noAdmin = []string{"--bounding-set", "-sys_admin", "--inh-caps", "-all", "--"}

const newerKernel = "need Linux 5.15 or newer with Landlock; in a container, a seccomp profile that knows these system calls\n"

// argvOf is the program's command line on the base.
func argvOf(m *harness.Way, args ...string) []string {
	return append([]string{harness.Program, "--base", m.Base}, args...)
}

// through is a command that runs the program, with its TMPDIR.
func through(m *harness.Way, cmd *exec.Cmd) *exec.Cmd {
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, "TMPDIR="+m.Tmp)
	return cmd
}

// withBwrap is the program with a bwrap that is this script.
func withBwrap(m *harness.Way, script string, args ...string) *exec.Cmd {
	return withProgram(m, "bwrap", script, args...)
}

// withProgram is the program with another one that is this script.
func withProgram(m *harness.Way, name, script string, args ...string) *exec.Cmd {
	bin := filepath.Join(m.Base, "bin")
	require.NoError(m.T, os.MkdirAll(bin, 0o755))
	harness.Executable(m.T, filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"))
	cmd := through(m, exec.Command(harness.Program, argvOf(m, args...)[1:]...))
	cmd.Env = append(cmd.Env, "PATH="+bin+":/usr/bin:/bin")
	return cmd
}

// TestDaemonCannotMount: on a host where no view could ever be mounted the daemon
// ends with status 3 and one line, and leaves nothing.
func TestDaemonCannotMount(t *testing.T) {
	for name, c := range map[string]struct {
		cmd  func(m *harness.Way, argv []string) *exec.Cmd
		want string
	}{
		"no CAP_SYS_ADMIN": {func(m *harness.Way, argv []string) *exec.Cmd {
			return exec.Command("setpriv", append(noAdmin, argv...)...)
		}, "scopefs: CAP_SYS_ADMIN is missing, without which nothing can be mounted: run scopefs as root of the host; a container needs --device /dev/fuse --cap-add SYS_ADMIN --cap-add DAC_READ_SEARCH --security-opt systempaths=unconfined\n"},
		"no /dev/fuse": {func(m *harness.Way, argv []string) *exec.Cmd { return harness.Privately(m.T, noFUSE, argv...) },
			"scopefs: there is no FUSE (open /dev/fuse: no such file or directory): load the module (modprobe fuse); a container needs --device /dev/fuse\n"},
		"an old kernel": {func(m *harness.Way, argv []string) *exec.Cmd {
			return without(unix.ENOSYS, []uint32{unix.SYS_CLOSE_RANGE, unix.SYS_OPENAT2, unix.SYS_LANDLOCK_CREATE_RULESET}, argv...)
		},
			"scopefs: the kernel has no close_range, openat2, landlock_create_ruleset: " + newerKernel},
		"a container's filter": {func(m *harness.Way, argv []string) *exec.Cmd {
			return without(unix.EPERM, []uint32{unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_MOVE_MOUNT}, argv...)
		},
			"scopefs: a seccomp filter refuses fsopen, fsconfig, fsmount, move_mount: allow these system calls in the profile of the container or service\n"},
	} {
		t.Run(name, func(t *testing.T) {
			m := harness.Embed(t, 0, map[string]string{"a": ""})
			untouched(m, func() {
				o := harness.Finish(t, through(m, c.cmd(m, argvOf(m, "daemon"))))
				assert.Equal(t, 3, o.Code)
				assert.Empty(t, o.Stdout)
				assert.Equal(t, c.want, o.Stderr)
				assert.NoDirExists(t, filepath.Join(m.Base, "run"))
				assert.NoDirExists(t, filepath.Join(m.Base, "state"))
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
		cmd   func(m *harness.Way) *exec.Cmd // nil: as it is
		want  string
	}{
		"no bubblewrap": {"", 0, func(m *harness.Way) *exec.Cmd {
			cmd := m.Command(touch...)
			cmd.Env = append(cmd.Env, "PATH=/nowhere")
			return cmd
		}, "scopefs: bubblewrap is not installed: apt-get install bubblewrap\n"},
		"no /dev/fuse": {"", 0, func(m *harness.Way) *exec.Cmd {
			cmd := harness.Privately(m.T, noFUSE, append([]string{harness.Program, "--base", m.Base}, touch...)...)
			cmd.Env = append(cmd.Env, "TMPDIR="+m.Tmp)
			return cmd
		}, "scopefs: there is no FUSE (open /dev/fuse: no such file or directory): load the module (modprobe fuse); a container needs --device /dev/fuse\n"},
		"closed /dev/fuse": {"", 1234, func(m *harness.Way) *exec.Cmd {
			cmd := harness.Privately(m.T, harness.ClosedFUSE, harness.Setpriv(1234, append([]string{harness.Program, "--base", m.Base}, touch...)...)...)
			cmd.Env = append(cmd.Env, "TMPDIR="+m.Tmp)
			return cmd
		}, "scopefs: /dev/fuse is closed to this user (open /dev/fuse: permission denied): chmod 666 /dev/fuse, as udev does, or run as root\n"},
		"no CAP_SYS_ADMIN": {"", 0, func(m *harness.Way) *exec.Cmd {
			return through(m, exec.Command("setpriv", append(noAdmin, argvOf(m, touch...)...)...))
		}, "scopefs: make a mount namespace: operation not permitted: run scopefs as root of the host; a container needs --device /dev/fuse --cap-add SYS_ADMIN --cap-add DAC_READ_SEARCH --security-opt systempaths=unconfined\n"},
		"an old kernel": {"", 0, func(m *harness.Way) *exec.Cmd {
			return through(m, without(unix.ENOSYS, []uint32{unix.SYS_FSOPEN, unix.SYS_MOUNT_SETATTR}, argvOf(m, touch...)...))
		}, "scopefs: the kernel has no fsopen, mount_setattr: " + newerKernel},
		"a container's filter": {"", 0, func(m *harness.Way) *exec.Cmd {
			return through(m, without(unix.EPERM, []uint32{unix.SYS_MOUNT, unix.SYS_PIVOT_ROOT}, argvOf(m, touch...)...))
		}, "scopefs: a seccomp filter refuses mount, pivot_root: allow these system calls in the profile of the container or service\n"},
		"no executable memory": {"", 0, func(m *harness.Way) *exec.Cmd {
			if _, err := os.Stat("/proc/sys/vm/memfd_noexec"); err != nil {
				need.Skip(m.T, "needs Linux 6.3: ", err)
			}
			return through(m, exec.Command("unshare", append([]string{"--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", `echo 2 >/proc/sys/vm/memfd_noexec; "$@"`, "sh"}, argvOf(m, touch...)...)...))
		}, "scopefs: the program of the sandbox cannot be in memory (memfd_create: permission denied): sysctl vm.memfd_noexec is 2, which forbids it: set it to 0 or 1 in /etc/sysctl.d, and start again\n"},
		"an old bubblewrap": {"", 0, func(m *harness.Way) *exec.Cmd {
			return withBwrap(m, `case $1 in --version) echo bubblewrap 0.4.1;; *) /usr/bin/bwrap --help | grep -v -e --disable-userns -e --size;; esac`, touch...)
		}, "scopefs: bubblewrap 0.4.1 lacks --disable-userns, --size: install bubblewrap 0.11 or newer, or that of Debian 12 or Ubuntu 24.04 with security updates\n"},
		"a very old bubblewrap": {"", 0, func(m *harness.Way) *exec.Cmd {
			return withBwrap(m, `echo usage >&2; exit 1`, touch...)
		}, "/bin/bwrap does not say what it can (--help: exit status 1): install bubblewrap 0.11 or newer, or that of Debian 12 or Ubuntu 24.04 with security updates\n"},
		"no user namespaces": {"", 0, func(m *harness.Way) *exec.Cmd {
			return through(m, exec.Command("unshare", append([]string{"-Urm", "sh", "-c", `echo 0 >/proc/sys/user/max_user_namespaces; "$@"`, "sh"}, argvOf(m, touch...)...)...))
		}, "unprivileged user namespaces are off (sysctl user.max_user_namespaces=0): change it in /etc/sysctl.d\n"},
		"limits without groups": {"limits: {pids: 50}", 1234, nil,
			"scopefs: start sandbox of \"a\": limits: no control group for pids"},
		"scope of another": {"", 1234, func(m *harness.Way) *exec.Cmd {
			require.NoError(m.T, os.Chown(m.Scope("a"), 65534, 65534))
			require.NoError(m.T, os.Chmod(m.Scope("a"), 0o777))
			return m.Command(touch...)
		}, "scopefs: mount \"a\": the scope of \"a\" belongs to another user: run as that user, or as root\n"},
		"another's identity": {"identity: caller", 1234, nil, "scopefs: mount \"a\": identity: caller needs a daemon that runs as root\n"},
	} {
		t.Run(name, func(t *testing.T) {
			m := harness.Embed(t, c.uid, map[string]string{"a": c.front})
			untouched(m, func() {
				cmd := m.Command(touch...)
				if c.cmd != nil {
					cmd = c.cmd(m)
				}
				o := harness.Finish(t, cmd)
				assert.Equal(t, 125, o.Code)
				assert.Empty(t, o.Stdout)
				assert.Equal(t, 1, strings.Count(o.Stderr, "\n"), o.Stderr)
				assert.Contains(t, o.Stderr, c.want)
			})
		})
	}
}

// With a daemon it is the daemon's PATH that counts, and what is installed
// later is found.
func TestRunBubblewrapComes(t *testing.T) {
	m := &harness.Way{Host: harness.LayOut(t, map[string]string{"a": ""}), Tmp: t.TempDir()}
	bin := filepath.Join(m.Base, "bin")
	require.NoError(t, os.Mkdir(bin, 0o755))
	t.Setenv("PATH", bin)
	m.Start()
	o := m.Run("a", "--", "true")
	assert.Equal(t, 125, o.Code)
	assert.Equal(t, "scopefs: bubblewrap is not installed: apt-get install bubblewrap\n", o.Stderr)
	_, errs, code := m.Try("call", "list_dir", "path=.", "--agent", "a")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, `"code":"unavailable","message":"no sandbox can be made"`)
	assert.Regexp(t, `list_dir unavailable .* bubblewrap is not installed`, m.Must("audit"))
	require.NoError(t, os.Symlink("/usr/bin/bwrap", filepath.Join(bin, "bwrap")))
	o = m.Run("a", "--", "true")
	assert.Zero(t, o.Code, o.Stderr)
	m.Stop()
	assert.Contains(t, m.Log.String(), `msg="no sandbox can be made" err="bubblewrap is not installed: apt-get install bubblewrap"`, "told before anybody runs")
}

// A daemon says at its start what a known flaw of its bubblewrap means.
func TestDaemonFlaw(t *testing.T) {
	for version, flawed := range map[string]bool{"0.11.2": true, "0.12.0": false} {
		m := &harness.Way{Host: harness.LayOut(t, map[string]string{"a": ""}), Tmp: t.TempDir()}
		bin := filepath.Join(m.Base, "bin")
		require.NoError(t, os.Mkdir(bin, 0o755))
		harness.Executable(t, filepath.Join(bin, "bwrap"), []byte("#!/bin/sh\n[ \"$1\" = --version ] && echo bubblewrap "+version+" && exit\nexec /usr/bin/bwrap \"$@\"\n"))
		t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
		m.Start()
		assert.Zero(t, m.Run("a", "--", "true").Code)
		m.Stop() // waits for the check
		assert.Equal(t, flawed, strings.Contains(m.Log.String(), "bubblewrap 0.11.2 (before 0.12: CVE-2026-87766"), m.Log.String())
		assert.NotContains(t, m.Log.String(), "no sandbox can be made")
	}
}

// The limits hold: by control groups, here of version 1.
func TestRunLimits(t *testing.T) {
	m := harness.Embed(t, 0, map[string]string{"a": "limits: {pids: 20, memory: 64MiB}"})
	o := m.Run("a", "--", "sh", "-c", "i=0; while [ $i -lt 100 ]; do sleep 100 & i=$((i+1)); done")
	assert.Equal(t, 2, o.Code)
	assert.Contains(t, o.Stderr, "Cannot fork")
	o = m.Run("a", "--", "sh", "-c", "head -c 200m /dev/zero | tail -c 150m")
	assert.Equal(t, 137, o.Code, o.Stderr)
}

// A program beside scopefs that is missing is named in one line, with the remedy.
func TestRunProgramMissing(t *testing.T) {
	harness.NeedFUSE(t)
	for name, words := range map[string][][]string{
		"scopefs-log":   {{"run", "--dir", ".", "--", "true"}},
		"scopefs-init":  {{"run", "--dir", ".", "--", "true"}, {"call", "--dir", ".", "bash", "command=true"}},
		"scopefs-files": {{"run", "--dir", ".", "--", "true"}, {"call", "--dir", ".", "read_file", "path=f"}},
	} {
		m := harness.Embed(t, 0, nil)
		program := installed(m, harness.Program).Path
		require.NoError(t, os.Remove(filepath.Join(filepath.Dir(program), name)))
		for _, w := range words {
			cmd := exec.Command(program, w...)
			cmd.Dir, cmd.Env = t.TempDir(), []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TMPDIR=" + m.Tmp}
			o := harness.Finish(t, cmd)
			assert.Equal(t, map[string]int{"run": 125, "call": 1}[w[0]], o.Code)
			assert.Contains(t, o.Stderr, name+" is not installed beside ")
			assert.Contains(t, o.Stderr, "make build builds it")
			assert.Equal(t, 1, strings.Count(o.Stderr, "\n"), o.Stderr)
			m.Clean()
		}
	}
}
