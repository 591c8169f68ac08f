package harness

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Talk is the output of a command that runs.
type Talk struct {
	T    *testing.T
	R    *os.File
	seen string
}

// Expect reads until want appears, drops the output up to its end and returns what came
// before it.
func (k *Talk) Expect(want string) string {
	k.T.Helper()
	_ = k.R.SetReadDeadline(time.Now().Add(30 * time.Second))
	buf := make([]byte, 4096)
	for !strings.Contains(k.seen, want) {
		n, err := k.R.Read(buf)
		k.seen += string(buf[:n])
		if err != nil {
			require.Contains(k.T, k.seen, want, err)
		}
	}
	before, after, _ := strings.Cut(k.seen, want)
	k.seen = after
	return before
}

// Forget drops the output so far.
func (k *Talk) Forget() {
	buf := make([]byte, 1<<16)
	_ = k.R.SetReadDeadline(time.Now().Add(time.Millisecond))
	for {
		if _, err := k.R.Read(buf); err != nil {
			break
		}
	}
	k.seen = ""
}

// StartTalking starts a shell of agent a; run itself is the process, without a
// shell or setpriv before it, by the time it talks.
func StartTalking(t *testing.T, m *Way, script string) (*exec.Cmd, *Talk) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	t.Cleanup(func() { r.Close() })
	cmd := m.Command("run", "a", "--", "sh", "-c", script)
	cmd.Stdout = w
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd, &Talk{T: t, R: r}
}
