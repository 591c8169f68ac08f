package cli

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// noFUSE is a host without the device.
const noFUSE = `mkdir "$D/dev"; mount --bind /dev "$D/dev"; mount -t tmpfs -o mode=755 none /dev;
	for n in null zero full random urandom tty; do touch /dev/$n; mount --bind "$D/dev/$n" /dev/$n; done;`

// inAllWays runs a test in all the ways in which run works.
func inAllWays(t *testing.T, agents map[string]string, f func(t *testing.T, m *harness.Way)) {
	t.Run("daemon", func(t *testing.T) {
		m := &harness.Way{Host: harness.NewHost(t, agents), Tmp: t.TempDir()}
		f(t, m)
	})
	for name, uid := range map[string]int{"root": 0, "nobody": 65534, "user": 1234} {
		t.Run(name, func(t *testing.T) { f(t, harness.Embed(t, uid, agents)) })
	}
}

func TestRunExitStatus(t *testing.T) {
	inAllWays(t, map[string]string{"a": "", "hurried": "limits: {timeout: 700ms}"}, func(t *testing.T, m *harness.Way) {
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
			"not found":         {[]string{"a", "--", "no-such-program"}, 127, "", "scopefs: no-such-program: not installed in the sandbox\n"},
			"not executable":    {[]string{"a", "--", "/etc/passwd"}, 126, "", "scopefs: /etc/passwd: permission denied\n"},
			"timed out":         {[]string{"hurried", "--", "sleep", "100"}, 124, "", "scopefs: the agent's time limit was reached\n"},
			"left in the back":  {[]string{"a", "--", "sh", "-c", "sleep 100 & echo x"}, 0, "x\n", ""},
			"unknown agent":     {[]string{"b", "--", "true"}, 125, "", "scopefs: unknown agent \"b\": define it in " + m.Base + "/agents.d/b.md\n"},
			"no such directory": {[]string{"-C", "nowhere", "a", "--", "pwd"}, 125, "", "scopefs: -C nowhere: no directory of the view that the agent may enter\n"},
		} {
			t.Run(name, func(t *testing.T) {
				o := m.Run(c.args...)
				assert.Equal(t, c.code, o.Code)
				assert.Equal(t, c.out, o.Stdout)
				assert.Equal(t, c.errs, o.Stderr)
			})
		}
	})
}

// What the agent makes is its user's, on the host too, and nothing else is there.
func TestRunWorkspace(t *testing.T) {
	inAllWays(t, map[string]string{"a": ""}, func(t *testing.T, m *harness.Way) {
		require.NoError(t, os.WriteFile(m.Scope("a", "given"), []byte("text"), 0o644))
		o := m.Run("a", "--", "sh", "-c", "cat given; echo made >made; ls -A / | tr '\\n' ' '; ls -A /proc/self/fd | wc -l")
		assert.Zero(t, o.Code, o.Stderr)
		assert.Regexp(t, `^textbin dev etc .*workspace 4\n$`, o.Stdout) // 0, 1, 2 and that of ls
		st, err := os.Stat(m.Scope("a", "made"))
		require.NoError(t, err)
		assert.EqualValues(t, m.User, st.Sys().(*syscall.Stat_t).Uid)
	})
}

// Every run is in the log, with its end, when run returns.
func TestRunRecorded(t *testing.T) {
	inAllWays(t, map[string]string{"a": "limits: {timeout: 500ms}"}, func(t *testing.T, m *harness.Way) {
		for cmd, want := range map[string]string{
			"exit 3":      "exit 3",
			"kill -9 $$":  "signal 9",
			"sleep 100":   "timed out",
			"echo a\nb >": "exit 2",
		} {
			m.Run("a", "--", "sh", "-c", cmd)
			var mine []audit.Event
			for _, e := range m.Events("a") {
				if e.Op == "exec" && e.Target == audit.Escape("sh -c "+strconv.Quote(cmd)) {
					mine = append(mine, e)
				}
			}
			require.Len(t, mine, 2, cmd)
			assert.Equal(t, audit.KindSandbox, mine[0].Event)
			assert.NotEmpty(t, mine[0].Session)
			assert.Equal(t, audit.OutcomeBegin, mine[0].Outcome)
			assert.Equal(t, mine[0].Session, mine[1].Session)
			assert.Equal(t, want, mine[1].Outcome)
			assert.Positive(t, mine[1].DurationUS)
		}
		m.Run("a", "--", "no-such-program", strings.Repeat("x", 10000))
		assert.True(t, m.Recorded("a", audit.Event{Op: "exec", Outcome: "not started: no-such-program: not installed in the sandbox"}))
		last := m.Events("a")
		assert.Less(t, len(last[len(last)-2].Target), 5000)
		ended := 0
		for _, e := range m.Events("a") {
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
			m := harness.Embed(t, uid, map[string]string{"a": "", "b": ""})
			first := m.Command("run", "a", "--", "sh", "-c", "echo here; read x; ln -s /etc/shadow l; echo $x")
			in, err := first.StdinPipe()
			require.NoError(t, err)
			out, err := first.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, first.Start())
			_, err = io.ReadFull(out, make([]byte, 5))
			require.NoError(t, err)
			for _, id := range []string{"a", "b"} {
				assert.Zero(t, m.Run(id, "--", "sh", "-c", "! ln -s /etc/shadow l2").Code)
			}
			io.WriteString(in, "word\n")
			rest, _ := io.ReadAll(out)
			assert.Equal(t, "word\n", string(rest))
			assert.Zero(t, harness.Await(t, first, &bytes.Buffer{}, &bytes.Buffer{}).Code)

			seq, violations := uint64(0), map[string]int{}
			for _, e := range m.Events("") {
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
