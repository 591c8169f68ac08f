package daemon

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// While the log cannot be written, changes are refused with EIO and reads go on;
// denials are answered; nothing runs; the daemon reports the state, and recovers by itself.
func TestDaemonLogFull(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "view: {xattrs: true, paths: {\"ro/**\": read}}"})
	dir := harness.SmallState(t, h)
	require.NoError(t, os.Mkdir(h.Scope("a", "ro"), 0o755))
	require.NoError(t, os.WriteFile(h.Scope("a", "file"), []byte("text"), 0o644))
	h.Start()
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	free := harness.Fill(t, h, dir)

	// The rest of its last page the log may still use: denials fill it.
	h.Eventually("changes are refused", func() bool {
		_ = os.WriteFile(h.View("a", "ro", "new"), nil, 0o644)
		err := os.WriteFile(h.View("a", "new"), nil, 0o644)
		_ = os.Remove(h.View("a", "new"))
		return errors.Is(err, syscall.EIO)
	})
	assert.Contains(t, h.Must("ps"), "changes are refused: the audit log cannot be written: ")
	file := h.View("a", "file")
	for name, err := range map[string]error{
		"mkdir":    os.Mkdir(h.View("a", "d"), 0o755),
		"rename":   os.Rename(file, h.View("a", "other")),
		"remove":   os.Remove(file),
		"link":     os.Link(file, h.View("a", "l")),
		"symlink":  os.Symlink("file", h.View("a", "s")),
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
	_, err = os.ReadDir(h.View("a"))
	assert.NoError(t, err)
	began := time.Now()
	for name, err := range map[string]error{
		"denied":    os.WriteFile(h.View("a", "ro", "new"), nil, 0o644),
		"violation": os.Symlink("/etc/shadow", h.View("a", "s")),
	} {
		assert.Error(t, err, name)
	}
	assert.Less(t, time.Since(began), 10*time.Second)

	o := m.Run("a", "--", "touch", "ran")
	assert.Equal(t, 125, o.Code)
	assert.Contains(t, o.Stderr, "scopefs: nothing runs while the audit log cannot be written: ")
	assert.Contains(t, o.Stderr, "no space left on device")
	assert.NoFileExists(t, h.Scope("a", "ran"))
	// A view that starts now gets the state, too.
	killView(h, "a")
	h.Eventually("the view is there again", func() bool { _, err := os.Stat(h.View("a", "absent")); return errors.Is(err, os.ErrNotExist) })
	assert.ErrorIs(t, os.Mkdir(h.View("a", "d"), 0o755), syscall.EIO)

	free()
	h.Eventually("ps knows it", func() bool { return !strings.Contains(h.Must("ps"), "cannot be written") })
	h.Eventually("changes work again", func() bool { return os.WriteFile(h.View("a", "new"), nil, 0o644) == nil })
	assert.Zero(t, m.Run("a", "--", "true").Code)
	h.Eventually("the log says so", func() bool {
		return h.Recorded("", audit.Event{Event: audit.KindAudit, Outcome: audit.OutcomeRecovered})
	})
	assert.FileExists(t, h.Scope("a", "file"))
	seq := uint64(0)
	for _, e := range h.Events("") {
		assert.Equal(t, seq+1, e.Seq)
		seq = e.Seq
	}
	h.Stop()
	assert.Contains(t, h.Log.String(), "audit log cannot be written: changes are refused")
	assert.Contains(t, h.Log.String(), "audit log can be written again")
	assert.True(t, h.Recorded("", audit.Event{Event: audit.KindAudit, Outcome: audit.OutcomeLow}))
	assert.Contains(t, h.Log.String(), `outcome="low space"`)
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
	m := harness.Embed(t, 0, map[string]string{"a": ""})
	dir := harness.SmallState(t, m.Host)
	free := harness.Fill(t, m.Host, dir)
	o := m.Run("a", "--", "touch", "ran")
	assert.Equal(t, 125, o.Code)
	assert.Contains(t, o.Stderr, "no space left on device")
	assert.Equal(t, 1, strings.Count(o.Stderr, "\n"), o.Stderr)
	assert.NoFileExists(t, m.Scope("a", "ran"))
	m.Clean()
	free()
	assert.Zero(t, m.Run("a", "--", "touch", "ran").Code)
}

// Denials have all that one needs to find who tried what.
func TestDaemonAudit(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {paths: {\"ro/**\": read}}", "b": ""})
	require.NoError(t, os.Mkdir(h.Scope("a", "ro"), 0o755))
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	follow, out := exec.Command(harness.Program, "--base", h.Base, "audit", "--follow", "--json", "--denied"), &bytes.Buffer{}
	r, err := follow.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, follow.Start())
	m.Run("a", "--", "sh", "-c", "touch ro/x; ln -s ../../../etc/shadow l")
	m.Run("b", "--", "sh", "-c", "ln -s /proc/1/root l")

	var seen []audit.Event
	for lines := bufio.NewScanner(r); len(seen) < 3 && lines.Scan(); {
		var e audit.Event
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		seen = append(seen, e)
	}
	require.NoError(t, follow.Process.Signal(os.Interrupt))
	assert.Zero(t, harness.Await(t, follow, out, out).Code)

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
	lines := func(args ...string) int { return strings.Count(h.Must(append([]string{"audit"}, args...)...), "\n") }
	assert.Equal(t, 3, lines("--denied"))
	assert.Equal(t, 2, lines("--denied", "--agent", "a"))
	assert.Equal(t, 0, lines("--since", time.Now().Add(time.Hour).Format(time.RFC3339)))
	assert.Equal(t, 3, lines("--denied", "--since", "1m"))
	assert.Contains(t, h.Must("audit", "--denied", "--agent", "b"), "b              violation symlink l -> /proc/1/root")
}
