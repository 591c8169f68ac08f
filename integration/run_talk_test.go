package integration

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// talk is what a command says, as it says it.
type talk struct {
	t    *testing.T
	r    *os.File
	seen string
}

// expect reads until want appears, and forgets what came before it.
func (k *talk) expect(want string) string {
	k.t.Helper()
	_ = k.r.SetReadDeadline(time.Now().Add(30 * time.Second))
	buf := make([]byte, 4096)
	for !strings.Contains(k.seen, want) {
		n, err := k.r.Read(buf)
		k.seen += string(buf[:n])
		if err != nil {
			require.Contains(k.t, k.seen, want, err)
		}
	}
	before, after, _ := strings.Cut(k.seen, want)
	k.seen = after
	return before
}

// forget drops what was said so far.
func (k *talk) forget() {
	buf := make([]byte, 1<<16)
	_ = k.r.SetReadDeadline(time.Now().Add(time.Millisecond))
	for {
		if _, err := k.r.Read(buf); err != nil {
			break
		}
	}
	k.seen = ""
}

// startTalking starts a shell of agent a; run itself is the process, without a
// shell or setpriv before it, by the time it talks.
func startTalking(t *testing.T, m *way, script string) (*exec.Cmd, *talk) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	t.Cleanup(func() { r.Close() })
	cmd := m.scopefs("run", "a", "--", "sh", "-c", script)
	cmd.Stdout = w
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd, &talk{t: t, r: r}
}

// state is a process's, as /proc has it: R, S, T...; 0 when it is gone.
func state(pid int) byte {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	return text[bytes.LastIndexByte(text, ')')+2]
}

// sandboxed finds a process in a sandbox of this host's by a word of its
// command line, and returns the one that was started last, or 0.
func (m *way) sandboxed(word string) int {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	found := 0
	for _, name := range names {
		text, _ := os.ReadFile(name)
		dir, _ := os.Readlink(filepath.Join(filepath.Dir(name), "cwd"))
		if dir != "/workspace" && dir != "/" || !bytes.Contains(text, []byte(word)) || bytes.Contains(text, []byte(program)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil && pid > found {
			if state(pid) != 'Z' {
				found = pid
			}
		}
	}
	return found
}

// as makes a command an ordinary user's.
func as(cmd *exec.Cmd, uid uint32) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
}

// testProgram is this test binary where other users can start it.
func testProgram(t *testing.T, h *host) string {
	t.Helper()
	name := filepath.Join(h.base, "test-program")
	text, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, text, 0o755))
	return name
}
