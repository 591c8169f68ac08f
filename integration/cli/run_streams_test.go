package cli

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// 100 MiB go in and come out the same, and so does the end of input.
func TestRunStreamIntact(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	text := make([]byte, 1<<20)
	rand.Read(text)
	want, got := sha256.New(), sha256.New()
	cmd := m.Command("run", "a", "--", "cat")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	cmd.Stdout = got
	require.NoError(t, cmd.Start())
	for i := range 100 {
		text[0] = byte(i)
		want.Write(text)
		_, err := in.Write(text)
		require.NoError(t, err)
	}
	in.Close()
	assert.Zero(t, harness.Await(t, cmd, &bytes.Buffer{}, &bytes.Buffer{}).Code)
	assert.Equal(t, want.Sum(nil), got.Sum(nil))
}

// A reader that goes away ends the command, by SIGPIPE, and run at once.
func TestRunReaderGoes(t *testing.T) {
	inAllWays(t, map[string]string{"a": ""}, func(t *testing.T, m *harness.Way) {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		cmd := m.Command("run", "a", "--", "yes")
		cmd.Stdout = w
		require.NoError(t, cmd.Start())
		w.Close()
		_, err = io.ReadFull(r, make([]byte, 2))
		require.NoError(t, err)
		r.Close()
		assert.Equal(t, 141, harness.Await(t, cmd, &bytes.Buffer{}, &bytes.Buffer{}).Code)
		assert.True(t, m.Recorded("a", audit.Event{Op: "exec", Outcome: "signal 13"}))
	})
}

// Whatever our standard streams are, the command's are pipes of the sandbox's
// own: no file of the host becomes a descriptor in it.
func TestRunNoHostDescriptor(t *testing.T) {
	need.Once(t)
	inAllWays(t, map[string]string{"a": ""}, func(t *testing.T, m *harness.Way) {
		secret := filepath.Join(m.Base, "secret")
		require.NoError(t, os.WriteFile(secret, []byte("first line\n"), 0o666))
		require.NoError(t, os.Chmod(secret, 0o666))
		const look = "l=$(for n in 0 1 2; do readlink /proc/$$/fd/$n; done); cat >/tmp/in; echo in: $(cat /tmp/in); echo \"$l\""
		for name, open := range map[string]func() (*os.File, error){
			"file":      func() (*os.File, error) { return os.OpenFile(secret, os.O_RDWR, 0) },
			"directory": func() (*os.File, error) { return os.Open(m.Base) },
			"null":      func() (*os.File, error) { return os.Open("/dev/null") },
			"closed":    func() (*os.File, error) { r, w, err := os.Pipe(); w.Close(); return r, err },
		} {
			t.Run(name, func(t *testing.T) {
				f, err := open()
				require.NoError(t, err)
				defer f.Close()
				cmd := m.Command("run", "a", "--", "sh", "-c", look)
				cmd.Stdin = f
				o := harness.Finish(t, cmd)
				assert.Zero(t, o.Code, o.Stderr)
				in := ""
				if name == "file" {
					in = " first line"
				}
				assert.Regexp(t, `^in:`+in+`\npipe:\[\d+\]\npipe:\[\d+\]\npipe:\[\d+\]\n$`, o.Stdout)
			})
		}
		text, err := os.ReadFile(secret)
		require.NoError(t, err)
		assert.Equal(t, "first line\n", string(text))
	})
}

// Standard streams that are closed altogether are no reason to fail.
func TestRunClosedStreams(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	cmd := harness.Privately(t, "", "sh", "-c", fmt.Sprintf("%s --base %s run a -- sh -c 'cat; echo x >made' <&- >&- 2>&-", harness.Program, m.Base))
	assert.Zero(t, harness.Finish(t, cmd).Code)
	assert.FileExists(t, m.Scope("a", "made"))
}

// Signals to run reach the command.
func TestRunSignals(t *testing.T) {
	need.Once(t)
	inAllWays(t, map[string]string{"a": ""}, func(t *testing.T, m *harness.Way) {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1} {
			cmd, out := harness.StartTalking(t, m, "echo ready; exec sleep 100")
			out.Expect("ready")
			require.NoError(t, cmd.Process.Signal(sig))
			o := harness.Await(t, cmd, &bytes.Buffer{}, &bytes.Buffer{})
			assert.Equal(t, 128+int(sig), o.Code, sig)
		}
		cmd, out := harness.StartTalking(t, m, "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.02; done")
		out.Expect("ready")
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		out.Expect("caught")
		assert.Equal(t, 5, harness.Await(t, cmd, &bytes.Buffer{}, &bytes.Buffer{}).Code)
	})
}

// SIGTSTP stops the command and run, SIGCONT both go on.
func TestRunStopAndContinue(t *testing.T) {
	inAllWays(t, map[string]string{"a": ""}, func(t *testing.T, m *harness.Way) {
		word := "tick" + harness.Seconds(0)
		cmd, out := harness.StartTalking(t, m, "while :; do echo "+word+"; sleep 0.02; done")
		out.Expect("tick")
		require.NoError(t, cmd.Process.Signal(syscall.SIGTSTP))
		m.Eventually("run is stopped", func() bool { return harness.StateOf(cmd.Process.Pid) == 'T' })
		m.Eventually("the command is stopped", func() bool {
			return harness.StateOf(m.Sandboxed(word)) == 'T'
		})
		require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
		m.Eventually("the command goes on", func() bool { return harness.StateOf(m.Sandboxed(word)) != 'T' })
		out.Forget()
		out.Expect("tick")
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		assert.Equal(t, 128+15, harness.Await(t, cmd, &bytes.Buffer{}, &bytes.Buffer{}).Code)
	})
}

// When run is killed, the sandbox goes, and nothing of either stays.
func TestRunKilled(t *testing.T) {
	inAllWays(t, map[string]string{"a": ""}, func(t *testing.T, m *harness.Way) {
		seconds := harness.Seconds(1)
		cmd, out := harness.StartTalking(t, m, "echo ready; setsid sleep "+seconds+" & sleep "+seconds)
		out.Expect("ready")
		pid := m.Sandboxed(seconds)
		require.NotZero(t, pid)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		m.Eventually("the sandbox is gone", func() bool { return m.Sandboxed(seconds) == 0 })
		m.Eventually("its end is recorded", func() bool {
			// Whichever ends first: the command, or an embedded daemon with all it has.
			return (m.Recorded("a", audit.Event{Op: "exec", Outcome: "signal 9"}) || m.Recorded("a", audit.Event{Op: "exec", Outcome: "sandbox ended"})) &&
				m.Recorded("a", audit.Event{Event: audit.KindSandbox, Outcome: "ended"})
		})
		m.Clean()
	})
}
