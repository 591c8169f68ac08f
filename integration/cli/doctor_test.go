package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/companion"
	"github.com/scopefs/scopefs/internal/need"
)

type doctorLine struct{ User, Check, Status, Part, Detail, Remedy string }

// doctorOf returns the lines of a doctor --json, by user and check.
func doctorOf(t *testing.T, o harness.Outcome) map[string]doctorLine {
	t.Helper()
	var lines []doctorLine
	require.NoError(t, json.Unmarshal([]byte(o.Stdout), &lines), "%s%s", o.Stdout, o.Stderr)
	all := map[string]doctorLine{}
	for _, l := range lines {
		assert.Contains(t, []string{"ok", "degraded", "missing"}, l.Status, "%+v", l)
		assert.Contains(t, []string{"views", "sandboxes"}, l.Part, "%+v", l)
		assert.NotEmpty(t, l.Detail, "%+v", l)
		all[l.User+" "+l.Check] = l
	}
	return all
}

// TestDoctor: what a host lacks is found by trying, with the remedy, and the exit status
// says what does not work. Nothing is left.
func TestDoctor(t *testing.T) {
	doctor := []string{harness.Program, "doctor", "--json"}
	_, set, _ := strings.Cut(harness.ReadAll(t, "../../packaging/scopefs.service"), "\nCapabilityBoundingSet=")
	set, _, _ = strings.Cut(set, "\n")
	withUnit := func(m *harness.Way, set string) *exec.Cmd {
		return withProgram(m, "systemctl", "printf 'LoadState=loaded\nCapabilityBoundingSet=%s\n' '"+strings.ToLower(set)+"'", "doctor", "--json")
	}
	for name, c := range map[string]struct {
		uid  int
		cmd  func(m *harness.Way) *exec.Cmd // nil: as it is
		code int
		want map[string]string // user and check → status
		says map[string]string // → in the line
	}{
		"root": {0, func(m *harness.Way) *exec.Cmd { return harness.Privately(m.T, harness.ClosedFUSE, doctor...) }, 0, map[string]string{"root fuse": "ok", "root passthrough": "ok", "root sandbox": "ok", "root cgroups": "ok", "nobody device": "degraded"}, nil},
		"user": {1234, nil, 0, map[string]string{"1234 fuse": "ok", "1234 passthrough": "degraded", "1234 sandbox": "ok", "1234 cgroups": "degraded", "1234 git identity": "degraded"},
			map[string]string{"1234 git identity": "git config --global user.name NAME", "1234 cgroups": "Delegate=yes"}},
		"no /dev/fuse": {0, func(m *harness.Way) *exec.Cmd { return harness.Privately(m.T, noFUSE, doctor...) }, 3,
			map[string]string{"root device": "missing", "root fuse": "missing", "root sandbox": "ok"}, map[string]string{"root device": "modprobe fuse"}},
		"closed /dev/fuse": {1234, func(m *harness.Way) *exec.Cmd {
			return harness.Privately(m.T, harness.ClosedFUSE, harness.Setpriv(1234, doctor...)...)
		}, 3, map[string]string{"1234 namespaces": "ok", "1234 device": "missing"}, map[string]string{"1234 device": "mode 0600chmod 666 /dev/fuse"}},
		"no CAP_SYS_ADMIN": {0, func(m *harness.Way) *exec.Cmd { return exec.Command("setpriv", append(noAdmin, doctor...)...) }, 3,
			map[string]string{"root namespaces": "missing", "root fuse": "missing"},
			map[string]string{"root namespaces": "--cap-add SYS_ADMIN", "root kernel": "CAP_SYS_ADMIN is missing"}},
		"no CAP_DAC_READ_SEARCH": {0, func(m *harness.Way) *exec.Cmd {
			return exec.Command("setpriv", append([]string{"--bounding-set", "-dac_read_search", "--inh-caps", "-all", "--"}, doctor...)...)
		}, 3, map[string]string{"root fuse": "missing", "root kernel": "ok"}, map[string]string{"root fuse": "CAP_DAC_READ_SEARCH"}},
		"no CAP_SETFCAP": {0, func(m *harness.Way) *exec.Cmd {
			return exec.Command("setpriv", append([]string{"--bounding-set", "-setfcap", "--inh-caps", "-all", "--"}, doctor...)...)
		}, 1, map[string]string{"root fuse": "ok", "root sandbox": "ok", "root sandbox of root": "missing"},
			map[string]string{"root sandbox of root": "CapabilityBoundingSet"}},
		"the unit": {0, func(m *harness.Way) *exec.Cmd { return withUnit(m, set) }, 0,
			map[string]string{"root sandbox of root": "ok", "scopefs.service capabilities": "ok"}, nil},
		"a unit without CAP_SETFCAP": {0, func(m *harness.Way) *exec.Cmd { return withUnit(m, strings.ReplaceAll(set, "CAP_SETFCAP", "")) }, 1,
			map[string]string{"root sandbox of root": "ok", "scopefs.service sandbox of root": "missing"},
			map[string]string{"scopefs.service sandbox of root": "CAP_SETFCAP is missing"}},
		"a unit without CAP_SYS_ADMIN": {0, func(m *harness.Way) *exec.Cmd { return withUnit(m, strings.ReplaceAll(set, "CAP_SYS_ADMIN", "")) }, 3,
			map[string]string{"root fuse": "ok", "scopefs.service fuse": "missing"}, nil},
		"a unit that cannot be tried": {0, func(m *harness.Way) *exec.Cmd { return withUnit(m, set+" CAP_NOSUCH") }, 0,
			map[string]string{"scopefs.service capabilities": "degraded"}, map[string]string{"scopefs.service capabilities": "not tried"}},
		"an old kernel": {0, func(m *harness.Way) *exec.Cmd {
			return without(unix.ENOSYS, []uint32{unix.SYS_OPENAT2, unix.SYS_LANDLOCK_CREATE_RULESET}, doctor...)
		}, 3,
			map[string]string{"root kernel": "missing", "root landlock": "missing"}, map[string]string{"root kernel": "openat2, landlock_create_ruleset"}},
		"a container's filter": {0, func(m *harness.Way) *exec.Cmd {
			return without(unix.EPERM, []uint32{unix.SYS_FSOPEN, unix.SYS_MOVE_MOUNT}, doctor...)
		}, 3,
			map[string]string{"root kernel": "missing"}, map[string]string{"root kernel": "allow these system calls"}},
		"no fanotify": {0, func(m *harness.Way) *exec.Cmd {
			return without(unix.EPERM, []uint32{unix.SYS_FANOTIFY_INIT}, doctor...)
		}, 0,
			map[string]string{"root fanotify": "degraded"}, nil},
		"no user namespaces": {0, func(m *harness.Way) *exec.Cmd {
			return exec.Command("unshare", append([]string{"-Urm", "sh", "-c", `echo 0 >/proc/sys/user/max_user_namespaces; "$@"`, "sh"}, doctor...)...)
		}, 1, map[string]string{"root sandbox": "missing", "root fuse": "ok"}, map[string]string{"root sandbox": "user.max_user_namespaces=0"}},
		"no executable memory": {0, func(m *harness.Way) *exec.Cmd {
			return exec.Command("unshare", append([]string{"--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", `echo 2 >/proc/sys/vm/memfd_noexec; "$@"`, "sh"}, doctor...)...)
		}, 1, map[string]string{"root program in memory": "missing"}, nil},
		"no bubblewrap": {0, func(m *harness.Way) *exec.Cmd {
			cmd := exec.Command(doctor[0], doctor[1:]...)
			cmd.Env = []string{"PATH=/nowhere"}
			return cmd
		}, 1, map[string]string{"root bubblewrap": "missing", "root git identity": "degraded"}, map[string]string{"root bubblewrap": "apt-get install bubblewrap"}},
		"no other program": {0, func(m *harness.Way) *exec.Cmd {
			return exec.Command("sh", append([]string{"-c", `cp "$1" "$1d" "$0" && shift && exec "$0/scopefs" "$@"`, m.T.TempDir()}, doctor...)...)
		}, 3, map[string]string{"root programs": "missing", "root programs of sandboxes": "missing"}, map[string]string{
			"root programs": "scopefs-holder (the daemon) is not installed; scopefs-log (the log, and so the daemon) is not installed; scopefs-view (views) is not installed; scopefs-agent (the network of sandboxes)", "root programs of sandboxes": "scopefs-init (sandboxes) is not installed"}},
		"no drivers": {0, func(m *harness.Way) *exec.Cmd { return installed(m, doctor...) }, 0,
			map[string]string{"root programs": "degraded", "root programs of sandboxes": "ok"}, map[string]string{"root programs": "scopefs-stores (stores of agents) is not installed"}},
		"another build": {0, func(m *harness.Way) *exec.Cmd {
			cmd := installed(m, doctor...)
			out, err := exec.Command("go", "build", "-tags=scopefs_v9", "-o", filepath.Dir(cmd.Path), "github.com/scopefs/scopefs/cmd/scopefs-init").CombinedOutput()
			require.NoError(m.T, err, "%s", out)
			return cmd
		}, 1, map[string]string{"root programs of sandboxes": "missing"}, map[string]string{
			"root programs of sandboxes": "scopefs-init (sandboxes) is of another build: v9, scopefs is unknownmake build builds it"}},
		"few files": {0, func(m *harness.Way) *exec.Cmd {
			return exec.Command("prlimit", append([]string{"--nofile=2000", "--"}, doctor...)...)
		}, 0, map[string]string{"root open files": "degraded"}, map[string]string{"root open files": "at most 2000"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := harness.Embed(t, c.uid, nil)
			groups := controlGroups(t)
			cmd := m.Command("doctor", "--json")
			if c.cmd != nil {
				cmd = through(m, c.cmd(m))
			}
			o := harness.Finish(t, cmd)
			assert.Equal(t, c.code, o.Code)
			assert.Empty(t, o.Stderr)
			lines := doctorOf(t, o)
			for check, status := range c.want {
				assert.Equal(t, status, lines[check].Status, "%s: %+v", check, lines[check])
				if status == "missing" {
					assert.NotEqual(t, "", lines[check].Remedy+lines[check].Detail)
				}
			}
			for _, l := range lines {
				assert.False(t, l.Status == "missing" && o.Code == 0, "the exit status hides %+v", l)
			}
			for check, text := range c.says {
				assert.Contains(t, lines[check].Detail+lines[check].Remedy, text, check)
			}
			m.Clean()
			assert.Subset(t, groups, controlGroups(t), "control groups are left")
			mounts, err := os.ReadFile("/proc/self/mounts")
			require.NoError(t, err)
			assert.NotContains(t, string(mounts), m.Base)
		})
	}
}

// installed runs a copy of the program, words[0], with those that it needs beside it.
func installed(m *harness.Way, words ...string) *exec.Cmd {
	dir := m.T.TempDir()
	names := []string{"scopefs"}
	for name, p := range companion.Programs() {
		if p.Part != "" {
			names = append(names, name)
		}
	}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(words[0]), name))
		require.NoError(m.T, err)
		harness.Executable(m.T, filepath.Join(dir, name), text)
	}
	return exec.Command(filepath.Join(dir, "scopefs"), words[1:]...)
}

// controlGroups returns the control groups of doctors.
func controlGroups(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, depth := range []string{"*", "*/*", "*/*/*", "*/*/*/*"} {
		found, err := filepath.Glob("/sys/fs/cgroup/" + depth + "/scopefs-*-doctor")
		require.NoError(t, err)
		all = append(all, found...)
	}
	return all
}

// TestDoctorHangs: a program that never answers, and whose children keep its output, does
// not keep the doctor. All are ended.
func TestDoctorHangs(t *testing.T) {
	need.Once(t)
	m := harness.Embed(t, 0, nil)
	seconds := harness.Seconds(41)
	cmd := withBwrap(m, "sleep "+seconds+" & sleep "+seconds, "doctor", "--json")
	began := time.Now()
	o := harness.Finish(t, cmd)
	assert.Less(t, time.Since(began), 20*time.Second)
	assert.Equal(t, 1, o.Code, o.Stderr)
	lines := doctorOf(t, o)
	assert.Equal(t, "missing", lines["root bubblewrap"].Status)
	assert.Contains(t, lines["root bubblewrap"].Detail, "no answer within 6s")
	assert.Equal(t, "ok", lines["root fuse"].Status)
	m.Eventually("nothing of it runs", func() bool { return len(harness.Running("sleep", seconds)) == 0 })
}

// TestDoctorState: a full or read-only disk under the state or the log is found before an agent
// runs on it.
func TestDoctorState(t *testing.T) {
	for name, c := range map[string]struct {
		script string // with an empty file system of 4 MiB at $D/state
		want   map[string]string
		says   string
		base   string // below $D
	}{
		"room":           {"", map[string]string{"root state": "ok"}, "are free", ""},
		"full":           {"dd if=/dev/zero of=$D/state/x bs=4k 2>/dev/null || true;", map[string]string{"root state": "missing"}, "free space", ""},
		"nearly full":    {"dd if=/dev/zero of=$D/state/x bs=4k count=990 2>/dev/null || true;", map[string]string{"root state": "degraded"}, "free space", ""},
		"read-only":      {"mount -o remount,ro $D/state;", map[string]string{"root state": "missing"}, "read-only file system", ""},
		"a full log":     {"mkdir $D/state/audit; mount -t tmpfs -o size=64k none $D/state/audit; dd if=/dev/zero of=$D/state/audit/x bs=4k 2>/dev/null || true;", map[string]string{"root state": "ok", "root log": "missing"}, "free space", ""},
		"not there":      {"", map[string]string{"root state": "missing"}, "does not exist", "/nowhere"},
		"not there, yet": {`mkdir "$D/state/base";`, map[string]string{"root state": "ok"}, "are free", "/state/base"},
	} {
		t.Run(name, func(t *testing.T) {
			script := `mkdir "$D/state"; mount -t tmpfs -o size=4m none "$D/state"; ` + c.script + ` set -- "$@" --base "$D` + c.base + `";`
			o := harness.Finish(t, harness.Privately(t, script, harness.Program, "doctor", "--json"))
			lines, code, text := doctorOf(t, o), 0, ""
			for check, status := range c.want {
				assert.Equal(t, status, lines[check].Status, "%+v", lines[check])
				if status == "missing" {
					code = 3
				}
			}
			for _, check := range []string{"root state", "root log"} {
				text += lines[check].Detail + lines[check].Remedy
			}
			assert.Contains(t, text, c.says)
			assert.Equal(t, code, o.Code)
		})
	}
}

// TestDoctorText: one line for each check, with its status first.
func TestDoctorText(t *testing.T) {
	m := harness.Embed(t, 1234, nil)
	o := harness.Finish(t, m.Command("doctor"))
	assert.Zero(t, o.Code, o.Stderr)
	for line := range strings.Lines(o.Stdout) {
		assert.Regexp(t, `^(ok|degraded|missing) +1234 +[a-z]`, line)
	}
	assert.Regexp(t, `(?m)^degraded +1234 +passthrough +.*: only a daemon of root has passthrough$`, o.Stdout)
}
