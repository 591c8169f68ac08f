package integration

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
)

// privately runs a script as root in a mount namespace of its own, where it may
// change what /dev has; $D is a directory for it.
func privately(t *testing.T, script string, argv ...string) *exec.Cmd {
	t.Helper()
	words := []string{"-m", "--propagation", "private", "sh", "-ec", `mount -t tmpfs -o mode=755 none "$D"; ` + script + ` exec "$@"`, "sh"}
	cmd := exec.Command("unshare", append(words, argv...)...)
	cmd.Env = append(os.Environ(), "D="+t.TempDir())
	return cmd
}

// asUser runs a command as an ordinary user of a host where /dev/fuse is open to
// all, as it is everywhere but here.
func asUser(t *testing.T, uid int, argv ...string) *exec.Cmd {
	t.Helper()
	id := strconv.Itoa(uid)
	return privately(t, `mknod -m 666 "$D/fuse" c 10 229; mount --bind "$D/fuse" /dev/fuse;`,
		append([]string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--"}, argv...)...)
}

// noFUSE is a host without the device.
const noFUSE = `mkdir "$D/dev"; mount --bind /dev "$D/dev"; mount -t tmpfs -o mode=755 none /dev;
	for n in null zero full random urandom tty; do touch /dev/$n; mount --bind "$D/dev/$n" /dev/$n; done;`

// outcome is what came of a command.
type outcome struct {
	stdout, stderr string
	code           int // -1 when a signal ended it
	signal         syscall.Signal
}

// finish runs a command to its end, which must come within twenty seconds.
func finish(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &out
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &errs
	}
	require.NoError(t, cmd.Start())
	return await(t, cmd, &out, &errs)
}

func await(t *testing.T, cmd *exec.Cmd, out, errs *bytes.Buffer) outcome {
	t.Helper()
	hangs := time.AfterFunc(20*time.Second, func() {
		t.Errorf("hangs: %v", cmd.Args)
		_ = cmd.Process.Kill()
	})
	err := cmd.Wait()
	hangs.Stop()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Errorf("%v: %v", cmd.Args, err)
	}
	o := outcome{out.String(), errs.String(), cmd.ProcessState.ExitCode(), 0}
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		o.signal = ws.Signal()
	}
	return o
}

// way is one in which run works.
type way struct {
	*host
	tmp  string // TMPDIR, which must be empty again
	user int    // 0 is root
}

// scopefs is the program on its base.
func (m *way) scopefs(args ...string) *exec.Cmd {
	argv := append([]string{program, "--base", m.base}, args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	if m.user != 0 {
		cmd = asUser(m.t, m.user, argv...)
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, "TMPDIR="+m.tmp)
	return cmd
}

func (m *way) run(args ...string) outcome {
	m.t.Helper()
	return finish(m.t, m.scopefs(append([]string{"run"}, args...)...))
}

// embed makes a way without a daemon, for a user.
func embed(t *testing.T, uid int, agents map[string]string) *way {
	t.Helper()
	m := &way{host: layOut(t, agents), user: uid, tmp: filepath.Join(t.TempDir())}
	m.tmp = filepath.Join(m.base, "tmp")
	require.NoError(t, os.Mkdir(m.tmp, 0o755))
	require.NoError(t, filepath.WalkDir(m.base, func(name string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(name, uid, uid))
	}))
	t.Cleanup(func() { m.clean() })
	return m
}

// clean sees that nothing was left in TMPDIR.
func (m *way) clean() {
	m.t.Helper()
	var names []string
	for end := time.Now().Add(15 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if names, _ = filepath.Glob(m.tmp + "/*"); len(names) == 0 || time.Now().After(end) {
			break
		}
	}
	assert.Empty(m.t, names, "left in TMPDIR")
}

// inAllWays runs a test in all the ways in which run works.
func inAllWays(t *testing.T, agents map[string]string, f func(t *testing.T, m *way)) {
	t.Run("daemon", func(t *testing.T) {
		m := &way{host: newHost(t, agents), tmp: t.TempDir()}
		f(t, m)
	})
	for name, uid := range map[string]int{"root": 0, "nobody": 65534, "user": 1234} {
		t.Run(name, func(t *testing.T) { f(t, embed(t, uid, agents)) })
	}
}

func TestRunExitStatus(t *testing.T) {
	inAllWays(t, map[string]string{"a": "", "hurried": "limits: {timeout: 700ms}"}, func(t *testing.T, m *way) {
		for name, c := range map[string]struct {
			args []string
			code int
			out  string
			errs string
		}{
			"done":              {[]string{"a", "--", "true"}, 0, "", ""},
			"without dashes":    {[]string{"a", "echo", "-n", "x"}, 0, "x", ""},
			"status":            {[]string{"a", "--", "sh", "-c", "exit 3"}, 3, "", ""},
			"signal":            {[]string{"a", "--", "sh", "-c", "kill -9 $$"}, 137, "", ""},
			"workspace":         {[]string{"a", "--", "pwd"}, 0, "/workspace\n", ""},
			"directory":         {[]string{"-C", "/tmp", "a", "--", "pwd"}, 0, "/tmp\n", ""},
			"environment":       {[]string{"-e", "X=1=2", "a", "--", "sh", "-c", "echo $X"}, 0, "1=2\n", ""},
			"streams":           {[]string{"a", "--", "sh", "-c", "echo o; echo e >&2"}, 0, "o\n", "e\n"},
			"not found":         {[]string{"a", "--", "no-such-program"}, 127, "", "scopefs: no-such-program: no such file or directory\n"},
			"not executable":    {[]string{"a", "--", "/etc/passwd"}, 126, "", "scopefs: /etc/passwd: permission denied\n"},
			"timed out":         {[]string{"hurried", "--", "sleep", "100"}, 124, "", "scopefs: the agent's time limit was reached\n"},
			"left in the back":  {[]string{"a", "--", "sh", "-c", "sleep 100 & echo x"}, 0, "x\n", ""},
			"unknown agent":     {[]string{"b", "--", "true"}, 125, "", "scopefs: unknown agent \"b\": define it in " + m.base + "/agents.d/b.md\n"},
			"no such directory": {[]string{"-C", "nowhere", "a", "--", "pwd"}, 127, "", "scopefs: pwd in nowhere: no such file or directory\n"},
		} {
			t.Run(name, func(t *testing.T) {
				o := m.run(c.args...)
				assert.Equal(t, c.code, o.code)
				assert.Equal(t, c.out, o.stdout)
				assert.Equal(t, c.errs, o.stderr)
			})
		}
	})
}

// What the agent makes is its user's, on the host too, and nothing else is there.
func TestRunWorkspace(t *testing.T) {
	inAllWays(t, map[string]string{"a": ""}, func(t *testing.T, m *way) {
		require.NoError(t, os.WriteFile(m.scope("a", "given"), []byte("text"), 0o644))
		o := m.run("a", "--", "sh", "-c", "cat given; echo made >made; ls -A / | tr '\\n' ' '; ls -A /proc/self/fd | wc -l")
		assert.Zero(t, o.code, o.stderr)
		assert.Regexp(t, `^textbin dev etc .*workspace 4\n$`, o.stdout) // 0, 1, 2 and that of ls
		st, err := os.Stat(m.scope("a", "made"))
		require.NoError(t, err)
		assert.EqualValues(t, m.user, st.Sys().(*syscall.Stat_t).Uid)
	})
}

// Every run is in the log, with its end, when run returns.
func TestRunRecorded(t *testing.T) {
	inAllWays(t, map[string]string{"a": "limits: {timeout: 500ms}"}, func(t *testing.T, m *way) {
		for cmd, want := range map[string]string{
			"exit 3":      "exit 3",
			"kill -9 $$":  "signal 9",
			"sleep 100":   "timed out",
			"echo a\nb >": "exit 2",
		} {
			m.run("a", "--", "sh", "-c", cmd)
			var mine []audit.Event
			for _, e := range m.events("a") {
				if e.Op == "exec" && e.Target == audit.Escape("sh -c "+strconv.Quote(cmd)) {
					mine = append(mine, e)
				}
			}
			require.Len(t, mine, 2, cmd)
			assert.Equal(t, audit.KindSandbox, mine[0].Event)
			assert.NotEmpty(t, mine[0].Session)
			assert.Empty(t, mine[0].Outcome)
			assert.Equal(t, mine[0].Session, mine[1].Session)
			assert.Equal(t, want, mine[1].Outcome)
			assert.Positive(t, mine[1].DurationUS)
		}
		m.run("a", "--", "no-such-program", strings.Repeat("x", 10000))
		assert.True(t, m.recorded("a", audit.Event{Op: "exec", Outcome: "not started: no-such-program: no such file or directory"}))
		last := m.events("a")
		assert.Less(t, len(last[len(last)-2].Target), 5000)
		ended := 0
		for _, e := range m.events("a") {
			if e.Event == audit.KindSandbox && e.Outcome == "ended" {
				ended++
			}
		}
		assert.Equal(t, 5, ended)
	})
}

// Two runs without a daemon share a state: both are in the log, without a gap.
func TestRunTwoWithoutDaemon(t *testing.T) {
	for name, uid := range map[string]int{"root": 0, "user": 1234} {
		t.Run(name, func(t *testing.T) {
			m := embed(t, uid, map[string]string{"a": "", "b": ""})
			first := m.scopefs("run", "a", "--", "sh", "-c", "echo here; read x; ln -s /etc/shadow l; echo $x")
			in, err := first.StdinPipe()
			require.NoError(t, err)
			out, err := first.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, first.Start())
			_, err = io.ReadFull(out, make([]byte, 5))
			require.NoError(t, err)
			for _, id := range []string{"a", "b"} {
				assert.Zero(t, m.run(id, "--", "sh", "-c", "! ln -s /etc/shadow l2").code)
			}
			io.WriteString(in, "word\n")
			rest, _ := io.ReadAll(out)
			assert.Equal(t, "word\n", string(rest))
			assert.Zero(t, await(t, first, &bytes.Buffer{}, &bytes.Buffer{}).code)

			seq, violations := uint64(0), map[string]int{}
			for _, e := range m.events("") {
				assert.Equal(t, seq+1, e.Seq)
				seq = e.Seq
				if e.Verdict == audit.Violation {
					violations[e.Agent]++
				}
			}
			assert.Equal(t, map[string]int{"a": 2, "b": 1}, violations)
		})
	}
}
