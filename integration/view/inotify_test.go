package view

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

func init() {
	harness.Roles["inotify"] = watchInside
	harness.Roles["append"] = appendInside
	harness.Roles["disturb"] = disturbInside
}

// watchInside prints the events of inotify(7) for its arguments, a line each, until its standard input ends.
func watchInside(args []string) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return err
	}
	paths := map[int32]string{}
	for _, name := range args {
		wd, err := unix.InotifyAddWatch(fd, name, unix.IN_MODIFY|unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVE|unix.IN_DELETE_SELF|unix.IN_ATTRIB)
		if err != nil {
			return err
		}
		paths[int32(wd)] = name
	}
	fmt.Println("ready")
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	out := bufio.NewWriter(os.Stdout)
	for buf := make([]byte, 1<<16); ; out.Flush() {
		n, err := unix.Read(fd, buf)
		if err != nil {
			return err
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			size := binary.NativeEndian.Uint32(b[12:])
			name, _, _ := bytes.Cut(b[16:16+size], []byte{0})
			mask := binary.NativeEndian.Uint32(b[4:])
			for bit, what := range map[uint32]string{unix.IN_MODIFY: "modify", unix.IN_CREATE: "create", unix.IN_DELETE: "delete",
				unix.IN_DELETE_SELF: "gone", unix.IN_ATTRIB: "attrib", unix.IN_Q_OVERFLOW: "overflow"} {
				if mask&bit != 0 {
					fmt.Fprintln(out, filepath.Join(paths[int32(binary.NativeEndian.Uint32(b))], string(name)), what)
				}
			}
			b = b[16+size:]
		}
	}
}

// appendInside appends a byte to a file at a time, as often as its argument says.
func appendInside(args []string) error {
	f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	n := 0
	if _, err := fmt.Sscan(args[1], &n); err != nil {
		return err
	}
	fmt.Println("ready")
	for range n {
		if _, err := f.Write([]byte("x")); err != nil {
			return err
		}
	}
	return nil
}

// disturbInside kills or stops the process that repeats changes, again and again, until its standard input ends.
func disturbInside([]string) error {
	ended := make(chan struct{})
	go func() { defer close(ended); _, _ = io.Copy(io.Discard, os.Stdin) }()
	fmt.Println("ready")
	for n := 0; ; n++ {
		select {
		case <-ended:
			return nil
		case <-time.After(time.Duration(n%7) * 3 * time.Millisecond):
		}
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			return err
		}
		for _, at := range all {
			pid, sig := 0, unix.SIGKILL
			if n%20 == 0 {
				sig = unix.SIGSTOP
			}
			if text, _ := os.ReadFile(at); bytes.HasSuffix(text, []byte("\x00ports\x00")) {
				if _, err := fmt.Sscanf(at, "/proc/%d/", &pid); err == nil && unix.Kill(pid, sig) == nil {
					fmt.Println("hit")
				}
			}
		}
	}
}

// watching is a program in a sandbox that prints lines.
type watching struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Closer

	mu    sync.Mutex
	lines []string
}

func startInside(t *testing.T, cmd *exec.Cmd) *watching {
	w := &watching{t: t, cmd: cmd}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	w.stdin = in
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			w.mu.Lock()
			w.lines = append(w.lines, s.Text())
			w.mu.Unlock()
		}
	}()
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	w.wait("ready")
	return w
}

// seen returns the lines since the last call.
func (w *watching) seen() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := w.lines
	w.lines = nil
	return lines
}

// wait waits for lines in an order, and forgets all lines up to the last of them.
func (w *watching) wait(want ...string) {
	w.t.Helper()
	left := want
	require.Eventually(w.t, func() bool {
		for _, line := range w.seen() {
			if len(left) > 0 && line == left[0] {
				left = left[1:]
			}
		}
		return len(left) == 0
	}, time.Minute, 10*time.Millisecond, "%v of %v", left, want)
}

// TestInotify: a program in a sandbox gets the events of what the host does, with true names and attributes; no time changes, no event is
// recorded as the agent's, and what the program does itself is reported once.
func TestInotify(t *testing.T) {
	for name, view := range map[string]string{
		"passthrough": "view: {record: all, paths: {hidden: hide}}",
		"mediated":    "view: {data: mediated, record: all, paths: {hidden: hide}}",
	} {
		t.Run(name, func(t *testing.T) {
			h := harness.NewHost(t, map[string]string{"w": view})
			on := func(name string) string { return h.Scope("w", name) }
			write := func(name, text string) { require.NoError(t, os.WriteFile(on(name), []byte(text), 0o644)) }
			require.NoError(t, os.Mkdir(on("d"), 0o755))
			write("d/f", "one")
			write("d/alone", "one")
			w := startInside(t, h.InSandbox("w", "inotify", ".", "d", "d/alone"))

			write("d/f", "two two")
			w.wait("d/f modify")
			before, err := statOf(on("d/f"))
			require.NoError(t, err)
			write("new", "text")
			w.wait("new create", "new modify")
			require.NoError(t, os.Remove(on("new")))
			w.wait("new delete")
			require.NoError(t, os.Mkdir(on("dir"), 0o755))
			w.wait("dir create")
			require.NoError(t, os.Remove(on("dir")))
			w.wait("dir delete")
			require.NoError(t, os.Symlink("d/f", on("link")))
			w.wait("link create")
			require.NoError(t, os.Rename(on("d/f"), on("d/g")))
			w.wait("d/g create")
			write(".tmp", "other")
			require.NoError(t, os.Rename(on(".tmp"), on("d/alone")))
			w.wait("d/alone gone", "d/alone create")
			in, err := statOf(h.View("w", "d/g"))
			require.NoError(t, err)
			assert.Equal(t, []any{before.Mtim, before.Size}, []any{in.Mtim, in.Size}, "nothing has changed the file")
			text, err := os.ReadFile(h.View("w", "d/alone"))
			require.NoError(t, err)
			assert.Equal(t, "other", string(text))

			w.seen()
			write("hidden", "secret")
			write("last", "x")
			w.wait("last create")
			for _, line := range w.seen() {
				assert.NotContains(t, line, "hidden")
			}
			for _, e := range h.Events("w") {
				switch e.Op {
				case "unlink", "rmdir", "mkdir", "mknod", "symlink", "setattr":
					assert.Failf(t, "recorded", "%s %s", e.Op, e.Path)
				}
			}
		})
	}
}

// TestInotifyWriter: what a program appends while changes of the same file are repeated is all there.
func TestInotifyWriter(t *testing.T) {
	for name, view := range map[string]string{"passthrough": "view: {data: passthrough}", "mediated": "view: {data: mediated}"} {
		t.Run(name, func(t *testing.T) {
			h := harness.NewHost(t, map[string]string{"w": view})
			const most = 20_000
			require.NoError(t, os.WriteFile(h.Scope("w", "f"), nil, 0o644))
			w := startInside(t, h.InSandbox("w", "inotify", "."))
			writer := startInside(t, h.InSandbox("w", "append", "f", fmt.Sprint(most)))
			ended := make(chan struct{})
			go func() { defer close(ended); _ = writer.cmd.Wait() }()
			for going := true; going; {
				require.NoError(t, os.Chmod(h.Scope("w", "f"), 0o600))
				select {
				case <-ended:
					going = false
				case <-time.After(time.Millisecond):
				}
			}
			st, err := statOf(h.Scope("w", "f"))
			require.NoError(t, err)
			assert.EqualValues(t, most, st.Size)
			in, err := statOf(h.View("w", "f"))
			require.NoError(t, err)
			assert.EqualValues(t, most, in.Size)
			require.NoError(t, os.WriteFile(h.Scope("w", "f"), []byte("y"), 0o644))
			w.wait("f modify")
		})
	}
}

// TestInotifyDisturbed: a program in the sandbox kills and stops the process that repeats changes. The view serves others meanwhile,
// what the host and the programs do is all there, each removal by a program is recorded, and later the watchers get events again.
func TestInotifyDisturbed(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"w": "view: {record: writes}"})
	w := startInside(t, h.InSandbox("w", "inotify", "."))
	disturb := startInside(t, h.InSandbox("w", "disturb"))
	own, hits, slowest := 0, 0, time.Duration(0)
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); own++ {
		name := fmt.Sprint("own", own)
		require.NoError(t, os.WriteFile(h.Scope("w", "host"), fmt.Append(nil, own), 0o644))
		require.NoError(t, os.WriteFile(h.Scope("w", name), []byte("text"), 0o644))
		began := time.Now()
		require.NoError(t, os.Truncate(h.View("w", name), 1))
		st, err := statOf(h.Scope("w", name))
		require.NoError(t, err)
		require.EqualValues(t, 1, st.Size)
		require.NoError(t, os.Remove(h.View("w", name)))
		require.NoFileExists(t, h.Scope("w", name))
		slowest = max(slowest, time.Since(began))
		text, err := os.ReadFile(h.Scope("w", "host"))
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(own), string(text))
		for _, line := range disturb.seen() {
			hits += strings.Count(line, "hit")
		}
	}
	assert.Positive(t, hits)
	assert.Less(t, slowest, 5*time.Second)
	removed := 0
	for _, e := range h.Events("w") {
		if e.Op == "unlink" && strings.HasPrefix(e.Path, "own") {
			removed++
		}
	}
	assert.Equal(t, own, removed)
	t.Logf("%d rounds, %d hits, the slowest took %v", own, hits, slowest)
	disturb.stdin.Close()
	require.NoError(t, disturb.cmd.Wait())
	w.seen()
	require.Eventually(t, func() bool { // a change that a killed process had is not repeated again
		require.NoError(t, os.WriteFile(h.Scope("w", "host"), []byte("x"), 0o644))
		for _, line := range w.seen() {
			if line == "host modify" {
				return true
			}
		}
		return false
	}, time.Minute, 100*time.Millisecond)
}

// TestInotifyFlood: a checkout of 10,000 files by the host is reported to the end, and the view serves others meanwhile.
func TestInotifyFlood(t *testing.T) {
	const most = 10_000
	h := harness.NewHost(t, map[string]string{"w": "view: {data: passthrough}"})
	require.NoError(t, os.Mkdir(h.Scope("w", "d"), 0o755))
	w := startInside(t, h.InSandbox("w", "inotify", ".", "d"))
	for i := range most {
		require.NoError(t, os.WriteFile(h.Scope("w", "d", fmt.Sprint(i)), nil, 0o644))
	}
	require.NoError(t, os.WriteFile(h.Scope("w", "last"), nil, 0o644))
	began, slowest := time.Now(), time.Duration(0)
	created, attrib, last := 0, 0, false
	require.Eventually(t, func() bool {
		at := time.Now()
		_, err := os.ReadDir(h.View("w"))
		require.NoError(t, err)
		slowest = max(slowest, time.Since(at))
		for _, line := range w.seen() {
			switch {
			case line == "last create" || line == "last modify":
				last = true
			case line == "d attrib":
				attrib++
			case strings.HasPrefix(line, "d/") && strings.HasSuffix(line, " create"):
				created++
			}
		}
		return last && (created == most || attrib > 0)
	}, 2*time.Minute, 10*time.Millisecond)
	t.Logf("%d created, %d of the directory, after %v; the slowest listing took %v", created, attrib, time.Since(began), slowest)
	require.NoError(t, os.WriteFile(h.Scope("w", "d", "after"), nil, 0o644))
	w.wait("d/after create")
}

// TestInotifyRoots: what the host changes in a further directory is reported at its path, and so is everything after the daemon was killed:
// the next one has the sandbox from the view and process 1, not from a session.
func TestInotifyRoots(t *testing.T) {
	lib, lent := t.TempDir(), t.TempDir()
	h := harness.NewHost(t, map[string]string{"w": "view: {record: writes, roots: [{dir: " + lib + "}, {dir: " + lent + ", access: read}]}"})
	dirs := map[string]string{".": h.Scope("w"), lib: lib, lent: lent}
	cmd := h.InSandbox("w", "inotify", ".", lib, lent)
	w := startInside(t, cmd)
	for _, round := range []string{"first", "after a restart", "after another"} {
		for at, dir := range dirs {
			name := strings.ReplaceAll(round, " ", "-")
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("text"), 0o644))
			w.wait(filepath.Join(at, name) + " create")
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("others"), 0o644))
			w.wait(filepath.Join(at, name) + " modify")
			require.NoError(t, os.Remove(filepath.Join(dir, name)))
			w.wait(filepath.Join(at, name) + " delete")
		}
		h.Kill()
		require.NoError(t, os.WriteFile(filepath.Join(lib, "meanwhile"), nil, 0o644))
		require.NoError(t, os.Remove(filepath.Join(lib, "meanwhile")))
		h.Start()
	}
	for _, e := range h.Events("w") {
		switch e.Op {
		case "unlink", "rmdir", "mkdir", "mknod", "symlink", "setattr":
			assert.Failf(t, "recorded", "%s %s", e.Op, e.Path)
		}
	}
}

// TestInotifyPolling: where the view learns of no change, programs poll, and a line says so.
func TestInotifyPolling(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"w": "view: {cache: none}", "other": "", "own": "view: {cache: none}\nenv: {CHOKIDAR_USEPOLLING: '0'}"})
	for id, want := range map[string]string{"w": "1true", "other": "", "own": "0true"} {
		stdout, stderr, code := h.Try("run", "-T", id, "--", "sh", "-c", "echo $CHOKIDAR_USEPOLLING$WATCHPACK_POLLING")
		assert.Zero(t, code, stderr)
		assert.Equal(t, want, strings.TrimSpace(stdout), id)
		assert.Equal(t, want != "", strings.Contains(stderr, "watchers in the sandbox get no events"), "%s: %s", id, stderr)
	}
}
