package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
)

// smallState puts the state directory on a file system of a megabyte.
func smallState(t *testing.T, h *host) (dir string) {
	t.Helper()
	dir = filepath.Join(h.base, "state")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, unix.Mount("none", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// fill takes all space of a directory, down to the last byte that the log could
// use for the line it is in.
func fill(t *testing.T, h *host, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "full")
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	for _, size := range []int{1 << 12, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	return func() { require.NoError(t, os.Remove(name)) }
}

// While the log cannot be written, changes are refused with EIO and reads go on;
// denials are answered; nothing runs; all of it is told; and it heals by itself.
func TestDaemonLogFull(t *testing.T) {
	h := layOut(t, map[string]string{"a": "view: {xattrs: true, paths: {\"ro/**\": read}}"})
	dir := smallState(t, h)
	require.NoError(t, os.Mkdir(h.scope("a", "ro"), 0o755))
	require.NoError(t, os.WriteFile(h.scope("a", "file"), []byte("text"), 0o644))
	h.start()
	m := &way{host: h, tmp: t.TempDir()}
	free := fill(t, h, dir)

	// The rest of its last page the log may still use: denials fill it.
	h.eventually("changes are refused", func() bool {
		_ = os.WriteFile(h.view("a", "ro", "new"), nil, 0o644)
		err := os.WriteFile(h.view("a", "new"), nil, 0o644)
		_ = os.Remove(h.view("a", "new"))
		return errors.Is(err, syscall.EIO)
	})
	file := h.view("a", "file")
	for name, err := range map[string]error{
		"mkdir":    os.Mkdir(h.view("a", "d"), 0o755),
		"rename":   os.Rename(file, h.view("a", "other")),
		"remove":   os.Remove(file),
		"link":     os.Link(file, h.view("a", "l")),
		"symlink":  os.Symlink("file", h.view("a", "s")),
		"chmod":    os.Chmod(file, 0o600),
		"truncate": os.Truncate(file, 0),
		"utimes":   os.Chtimes(file, time.Now(), time.Now()),
		"setxattr": unix.Setxattr(file, "user.x", []byte("y"), 0),
		"open":     opens(file, os.O_WRONLY),
	} {
		assert.ErrorIs(t, err, syscall.EIO, name)
	}
	text, err := os.ReadFile(file)
	assert.NoError(t, err)
	assert.Equal(t, "text", string(text))
	_, err = os.ReadDir(h.view("a"))
	assert.NoError(t, err)
	began := time.Now()
	for name, err := range map[string]error{
		"denied":    os.WriteFile(h.view("a", "ro", "new"), nil, 0o644),
		"violation": os.Symlink("/etc/shadow", h.view("a", "s")),
	} {
		assert.Error(t, err, name)
	}
	assert.Less(t, time.Since(began), 10*time.Second)

	o := m.run("a", "--", "touch", "ran")
	assert.Equal(t, 125, o.code)
	assert.Contains(t, o.stderr, "scopefs: nothing runs while the audit log cannot be written: ")
	assert.Contains(t, o.stderr, "no space left on device")
	assert.NoFileExists(t, h.scope("a", "ran"))
	// A view that starts now is told, too.
	h.killView("a")
	h.eventually("the view is there again", func() bool { _, err := os.ReadDir(h.view("a")); return err == nil })
	assert.ErrorIs(t, os.Mkdir(h.view("a", "d"), 0o755), syscall.EIO)

	free()
	h.eventually("changes work again", func() bool { return os.WriteFile(h.view("a", "new"), nil, 0o644) == nil })
	assert.Zero(t, m.run("a", "--", "true").code)
	assert.True(t, h.recorded("", audit.Event{Event: audit.KindAudit, Outcome: audit.OutcomeRecovered}))
	assert.FileExists(t, h.scope("a", "file"))
	seq := uint64(0)
	for _, e := range h.events("") {
		assert.Equal(t, seq+1, e.Seq)
		seq = e.Seq
	}
	h.stop()
	assert.Contains(t, h.log.String(), "audit log cannot be written: changes are refused")
	assert.Contains(t, h.log.String(), "audit log can be written again")
	assert.True(t, h.recorded("", audit.Event{Event: audit.KindAudit, Outcome: audit.OutcomeLow}))
	assert.Contains(t, h.log.String(), `outcome="low space"`)
}

func opens(name string, flags int) error {
	f, err := os.OpenFile(name, flags, 0)
	if err == nil {
		f.Close()
	}
	return err
}

// Without a daemon it is no different: nothing starts when nothing can be
// recorded.
func TestRunLogFull(t *testing.T) {
	m := embed(t, 0, map[string]string{"a": ""})
	dir := smallState(t, m.host)
	free := fill(t, m.host, dir)
	o := m.run("a", "--", "touch", "ran")
	assert.Equal(t, 125, o.code)
	assert.Contains(t, o.stderr, "no space left on device")
	assert.Equal(t, 1, strings.Count(o.stderr, "\n"), o.stderr)
	assert.NoFileExists(t, m.scope("a", "ran"))
	m.clean()
	free()
	assert.Zero(t, m.run("a", "--", "touch", "ran").code)
}

// Denials have all that one needs to find who tried what.
func TestDaemonAudit(t *testing.T) {
	h := newHost(t, map[string]string{"a": "view: {paths: {\"ro/**\": read}}", "b": ""})
	require.NoError(t, os.Mkdir(h.scope("a", "ro"), 0o755))
	m := &way{host: h, tmp: t.TempDir()}
	follow, out := exec.Command(program, "--base", h.base, "audit", "--follow", "--json", "--denied"), &bytes.Buffer{}
	r, err := follow.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, follow.Start())
	m.run("a", "--", "sh", "-c", "touch ro/x; ln -s ../../../etc/shadow l")
	m.run("b", "--", "sh", "-c", "ln -s /proc/1/root l")

	var seen []audit.Event
	for lines := bufio.NewScanner(r); len(seen) < 3 && lines.Scan(); {
		var e audit.Event
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		seen = append(seen, e)
	}
	require.NoError(t, follow.Process.Signal(os.Interrupt))
	assert.Zero(t, await(t, follow, out, out).code)

	for i, want := range []audit.Event{
		{Agent: "a", Verdict: audit.Deny, Op: "create", Path: "ro/x"},
		{Agent: "a", Verdict: audit.Violation, Op: "symlink", Path: "l", Target: "../../../etc/shadow"},
		{Agent: "b", Verdict: audit.Violation, Op: "symlink", Path: "l", Target: "/proc/1/root"},
	} {
		got := seen[i]
		assert.Equal(t, want, audit.Event{Agent: got.Agent, Verdict: got.Verdict, Op: got.Op, Path: got.Path, Target: got.Target})
		assert.NotEmpty(t, got.Rule)
		assert.NotZero(t, got.PID)
		assert.NotZero(t, got.Time)
		assert.Equal(t, audit.KindFile, got.Event)
	}
	lines := func(args ...string) int { return strings.Count(h.must(append([]string{"audit"}, args...)...), "\n") }
	assert.Equal(t, 3, lines("--denied"))
	assert.Equal(t, 2, lines("--denied", "--agent", "a"))
	assert.Equal(t, 0, lines("--since", time.Now().Add(time.Hour).Format(time.RFC3339)))
	assert.Equal(t, 3, lines("--denied", "--since", "1m"))
	assert.Contains(t, h.must("audit", "--denied", "--agent", "b"), "b              violation symlink l -> /proc/1/root")
}
