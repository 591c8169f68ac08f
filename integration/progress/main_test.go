package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/internal/need"
)

// build builds the program.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "progress")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// TestReport reads what go test -json prints, also until it is killed: no output of a test that has not passed is lost.
func TestReport(t *testing.T) {
	program := build(t)
	line := func(action, test, output string) string {
		return fmt.Sprintf(`{"Action":%q,"Package":"p","Test":%q,"Output":%q}`, action, test, output) + "\n"
	}
	passed := line("run", "TestA", "") + line("output", "TestA", "quiet\n") + line("pass", "TestA", "")
	hangs := line("run", "TestB", "") + line("output", "TestB", "panic: test timed out after 3s\n") + line("output", "TestB", "goroutine 17 [running]:\n")
	for name, c := range map[string]struct {
		in    string
		code  int
		shows []string
	}{
		"passes": {passed + line("output", "", "ok p 1s\n") + line("pass", "", ""), 0, []string{"ok p 1s", "1 passed, 0 failed"}},
		"with its processor time": {passed + line("output", "", "PASS\n") + line("output", "", processor+"7 s\n") + line("output", "", "ok p 1s\n") +
			line("pass", "", ""), 0, []string{"ok p 1s\t" + processor + "7 s\n"}},
		"fails":             {passed + line("run", "TestB", "") + line("output", "TestB", "why\n") + line("fail", "TestB", ""), 1, []string{"why", "1 passed, 1 failed"}},
		"ends by a timeout": {passed + hangs + line("output", "", "FAIL p 3s\n") + line("fail", "", ""), 1, []string{"goroutine 17 [running]:", "FAIL p 3s"}},
		"go test is killed": {passed + hangs, 1, []string{"goroutine 17 [running]:", "p: has not ended: TestB"}},
		"nothing ran":       {"", 1, []string{"0 passed, 0 failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(program)
			cmd.Stdin = strings.NewReader(c.in)
			out, _ := cmd.CombinedOutput()
			assert.Equal(t, c.code, cmd.ProcessState.ExitCode(), "%s", out)
			for _, text := range c.shows {
				assert.Contains(t, string(out), text)
			}
			assert.NotContains(t, string(out), "quiet")
		})
	}
}

// TestLimit has a package hang whose test, and a program of it, wait in the kernel for a view that nobody serves.
func TestLimit(t *testing.T) {
	need.Root(t, "it mounts a view")
	program, tmp := build(t), t.TempDir()
	report := exec.Command("bash", "-c", `go test -json -count=1 -vet=off -timeout 5m -exec "$0 -limit 5s" -run '^TestHang$' . | "$0"`, program)
	report.Env = append(os.Environ(), "PROGRESS_HANG=1", "TMPDIR="+tmp)
	watchdog := time.AfterFunc(2*time.Minute, func() { abort(os.Stderr, tmp) })
	defer watchdog.Stop()
	began := time.Now()
	out, _ := report.CombinedOutput()
	assert.Equal(t, 1, report.ProcessState.ExitCode())
	assert.Less(t, time.Since(began), 2*time.Minute)
	for _, text := range []string{
		"has printed nothing for 5s", "state D: /proc/", `"stat\x00-L\x00`, "goroutine 1 ", "progress.TestHang(", "progress: abort " + tmp, "FAIL",
	} {
		assert.Contains(t, string(out), text)
	}
	table, err := os.ReadFile("/proc/self/mountinfo") // a sandbox of another test may have copied it meanwhile
	require.NoError(t, err)
	assert.NotContains(t, string(table), tmp+"/")
}

// TestNamespace: what a package mounts is in a namespace of its own, which no sandbox of another package copies, and ends with the package.
func TestNamespace(t *testing.T) {
	need.Root(t, "it mounts")
	at := t.TempDir()
	cmd := exec.Command(build(t), "-limit", "1m", "mount", "-t", "tmpfs", "tmpfs", at)
	out, _ := cmd.CombinedOutput()
	assert.Equal(t, 1, cmd.ProcessState.ExitCode())
	assert.Regexp(t, `left mounted: .* `+at+` `, string(out))
	table, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	if !assert.NotContains(t, string(table), at) {
		require.NoError(t, unix.Unmount(at, 0))
	}
}

// TestOrphan kills go test: the tests end.
func TestOrphan(t *testing.T) {
	program := build(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	parent := exec.Command("bash", "-c", `"$0" -limit 10m bash -c "echo runs; exec sleep 60" & wait`, program)
	parent.Stdout = w
	require.NoError(t, parent.Start())
	w.Close()
	watchdog := time.AfterFunc(30*time.Second, func() { r.Close() })
	defer watchdog.Stop()
	begun := make([]byte, len("runs\n"))
	_, err = io.ReadFull(r, begun)
	require.NoError(t, err)
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait()
	_, err = io.ReadAll(r) // until no process has the pipe
	assert.NoError(t, err)
}

// TestHang is what hangs in TestLimit.
func TestHang(t *testing.T) {
	if os.Getenv("PROGRESS_HANG") == "" {
		return
	}
	at := t.TempDir()
	dev, err := fusemount.Mount(at, fusemount.MountOptions{})
	require.NoError(t, err)
	defer dev.Close()
	stat := exec.Command("stat", "-L", at)
	require.NoError(t, stat.Start())
	var st unix.Stat_t
	t.Log(unix.Stat(at, &st))
}

// TestMemory: with -memory a package has an ext4 with a journal in memory as TMPDIR, which every user may write to, and nothing of it is
// left.
func TestMemory(t *testing.T) {
	need.Root(t, "it mounts")
	tmp := t.TempDir()
	loops := func() string {
		out, err := exec.Command("losetup", "--list", "--noheadings", "--output", "BACK-FILE").CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	if err := exec.Command("losetup", "--find").Run(); err != nil {
		need.Skip(t, "needs loop devices: ", err)
	}
	cmd := exec.Command(build(t), "-limit", "1m", "-memory", "sh", "-ec",
		`findmnt -no FSTYPE,SOURCE --mountpoint "$TMPDIR"; stat -c %a "$TMPDIR"; echo x >"$TMPDIR/x"; losetup --list --noheadings --output BACK-FILE`)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Regexp(t, `ext4\s+/dev/loop`, string(out))
	assert.Contains(t, string(out), "\n1777\n")
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	assert.Empty(t, left)
	assert.NotContains(t, loops(), tmp)
}
