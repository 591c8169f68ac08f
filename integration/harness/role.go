package harness

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Role returns a command that runs a role of this test binary.
func Role(role string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), RoleEnv+"="+role)
	cmd.Stderr = os.Stderr
	return cmd
}

// RoleAs is Role as another user of the host, in a directory.
func (h *Host) RoleAs(uid uint32, dir, role string, args ...string) *exec.Cmd {
	h.T.Helper()
	at := filepath.Join(h.Base, "client")
	if _, err := os.Stat(at); err != nil {
		self, err := os.ReadFile("/proc/self/exe")
		require.NoError(h.T, err)
		require.NoError(h.T, os.WriteFile(at, self, 0o755))
	}
	cmd := Role(role, args...)
	cmd.Path, cmd.Dir = at, dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return cmd
}

// InSandbox returns a command that runs a role inside an agent's sandbox: the
// test program is planted in the scope for it.
func (h *Host) InSandbox(agent, role string, args ...string) *exec.Cmd {
	h.T.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(h.T, err)
	at := h.Scope(agent, "test-program")
	if _, err := os.Stat(at); err != nil {
		require.NoError(h.T, os.WriteFile(at, self, 0o755))
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.Timeout)
	h.T.Cleanup(cancel)
	words := append([]string{"--base", h.Base, "run", "-T", "-e", RoleEnv + "=" + role, "-e",
		"GORACE=atexit_sleep_ms=0", agent, "--", "/workspace/test-program"}, args...)
	cmd := exec.CommandContext(ctx, Program, words...)
	cmd.Stderr = os.Stderr
	return cmd
}

// TestBinary copies this test binary to where other users can start it.
func TestBinary(t testing.TB, h *Host) string {
	t.Helper()
	name := filepath.Join(h.Base, "test-program")
	text, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, text, 0o755))
	return name
}

// Stream starts a process and returns a function that waits for its next line.
func Stream(t testing.TB, cmd *exec.Cmd) func() string {
	t.Helper()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	in := bufio.NewScanner(out)
	return func() string {
		require.True(t, in.Scan(), "the process ended: %v", in.Err())
		return in.Text()
	}
}

// Lines starts a process and returns its lines. The channel is closed when the process has ended.
func Lines(t testing.TB, cmd *exec.Cmd) <-chan string {
	t.Helper()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := make(chan string)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			lines <- in.Text()
		}
	}()
	return lines
}
