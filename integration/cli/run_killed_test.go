package cli

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestEmbeddedKilled: a run without a daemon that was killed together with the daemon
// of its own leaves a directory, which the next run removes, and nothing else.
func TestEmbeddedKilled(t *testing.T) {
	need.Once(t)
	for name, uid := range map[string]int{"root": 0, "user": 1234} {
		t.Run(name, func(t *testing.T) {
			m := harness.Embed(t, uid, map[string]string{"a": "", "b": ""})
			left := func() []string {
				names, err := filepath.Glob(m.Tmp + "/*")
				require.NoError(t, err)
				return names
			}
			begin := func(agent string, n int) (pids []int, end func()) {
				cmd := m.Command("run", "-T", agent, "--", "sh", "-c", "exec sleep "+harness.Seconds(n))
				require.NoError(t, cmd.Start())
				m.Eventually("it runs", func() bool { return len(harness.Running("sleep", harness.Seconds(n))) == 1 })
				children := harness.ChildrenOf(cmd.Process.Pid, "scopefsd")
				require.Len(t, children, 1)
				return []int{cmd.Process.Pid, children[0]}, func() { _ = cmd.Wait() }
			}
			pids, end := begin("a", 31+uid%7)
			for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} { // neither tidies up after the other
				for _, pid := range pids {
					require.NoError(t, syscall.Kill(pid, sig))
				}
			}
			end()
			m.Eventually("its sandbox is gone", func() bool { return len(harness.Running("sleep", harness.Seconds(31+uid%7))) == 0 })
			killed := left()
			require.Len(t, killed, 1)
			m.Eventually("the killed processes are gone, and their lock", func() bool {
				dir, err := os.Open(killed[0])
				require.NoError(t, err)
				defer dir.Close()
				return unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
			})

			// What is not left by us.
			precious := filepath.Join(m.Base, "precious")
			theirs := filepath.Join(m.Tmp, "scopefs-run-theirs")
			for _, dir := range []string{precious, theirs, filepath.Join(m.Tmp, "scopefs-other")} {
				require.NoError(t, os.MkdirAll(filepath.Join(dir, "views"), 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "lock"), nil, 0o644))
			}
			require.NoError(t, os.Lchown(theirs, 4321, 4321))
			require.NoError(t, os.Symlink(precious, filepath.Join(m.Tmp, "scopefs-run-link")))
			pids, end = begin("b", 41+uid%7) // which holds its own
			assert.NoDirExists(t, killed[0], "the next run removes it")
			require.Len(t, left(), 4)

			out := m.Run("a", "--", "true")
			assert.Zero(t, out.Code, out.Stderr)
			assert.Len(t, left(), 4, "one that is used stays")
			assert.Len(t, harness.Running("sleep", harness.Seconds(41+uid%7)), 1)
			for _, dir := range []string{precious, theirs, filepath.Join(m.Tmp, "scopefs-other")} {
				assert.FileExists(t, filepath.Join(dir, "lock"))
				assert.DirExists(t, filepath.Join(dir, "views"))
			}
			require.NoError(t, syscall.Kill(pids[0], syscall.SIGTERM))
			end()
			for _, dir := range []string{theirs, filepath.Join(m.Tmp, "scopefs-other"), filepath.Join(m.Tmp, "scopefs-run-link")} {
				require.NoError(t, os.RemoveAll(dir))
			}
			m.Clean()
		})
	}
}
