package integration

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What the attackers share: the length of a race, a picture of a tree, and
// operations that any process can be told to do.

// attackTime is how long a race runs: 3 s, or SCOPEFS_ATTACK_SECONDS.
func attackTime(t *testing.T) time.Duration {
	t.Helper()
	seconds := 3
	if s := os.Getenv("SCOPEFS_ATTACK_SECONDS"); s != "" {
		var err error
		seconds, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	return time.Duration(seconds) * time.Second
}

// attackHost is newHost with time for a race.
func attackHost(t *testing.T, agents map[string]string) *host {
	t.Helper()
	h := layOut(t, agents)
	h.timeout = time.Minute + 4*attackTime(t)
	return h
}

// startAll starts the daemon and waits until every agent is mounted.
func (h *host) startAll() {
	h.t.Helper()
	h.start()
	h.eventually("every view is mounted", func() bool {
		return !slices.ContainsFunc(h.ps(), func(a agent) bool { return a.State != "mounted" })
	})
}

// plant makes files on the host: "d/" is a directory, "a => b" a link, "f" a
// file that holds its own name, "f=text" one that holds the text.
func plant(t *testing.T, dir string, entries ...string) {
	t.Helper()
	for _, e := range entries {
		name, target, link := strings.Cut(e, " => ")
		name, text, ok := strings.Cut(name, "=")
		if !ok {
			text = name
		}
		at := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		switch {
		case link:
			require.NoError(t, os.Symlink(target, at))
		case strings.HasSuffix(name, "/"):
			require.NoError(t, os.MkdirAll(at, 0o755))
		default:
			require.NoError(t, os.WriteFile(at, []byte(text), 0o644))
		}
	}
}

// picture is all that a change of a tree would change: names, kinds, owners,
// modes, contents and the time of the last change of any of it.
func picture(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(at, &st)
		}
		if err != nil {
			return err
		}
		what := fmt.Sprintf("%o %d:%d %d links, %d bytes, changed %d.%09d", st.Mode, st.Uid, st.Gid, st.Nlink, st.Size, st.Ctim.Sec, st.Ctim.Nsec)
		if d.Type().IsRegular() {
			text, err := os.ReadFile(at)
			if err != nil {
				return err
			}
			what += fmt.Sprintf(" %x", sha256.Sum256(text))
		}
		rel, _ := filepath.Rel(dir, at)
		all[rel] = what
		return nil
	}))
	return all
}

// doOps has another process do operations, started in dir, and returns how
// each ended: "ok" or the name of the errno.
func doOps(t *testing.T, cmd *exec.Cmd, ops []string) []string {
	t.Helper()
	cmd.Stdin = strings.NewReader(strings.Join(ops, "\n") + "\n")
	out, err := cmd.Output()
	require.NoError(t, err, "%s", out)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Len(t, lines, len(ops), "%s", out)
	return lines
}

// hostOps runs operations in a directory as another process of the host.
func hostOps(t *testing.T, dir string, ops ...string) []string {
	t.Helper()
	cmd := client("ops")
	cmd.Dir = dir
	return doOps(t, cmd, ops)
}

// inSandbox returns a command that runs a role inside an agent's sandbox: the
// test program is planted in the scope for it.
func (h *host) inSandbox(agent, role string, args ...string) *exec.Cmd {
	h.t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(h.t, err)
	at := h.scope(agent, "test-program")
	if _, err := os.Stat(at); err != nil {
		require.NoError(h.t, os.WriteFile(at, self, 0o755))
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.timeout)
	h.t.Cleanup(cancel)
	words := append([]string{"--base", h.base, "run", "-T", "-e", roleEnv + "=" + role, "-e", "GORACE=atexit_sleep_ms=0", agent, "--", "/workspace/test-program"}, args...)
	cmd := exec.CommandContext(ctx, program, words...)
	cmd.Stderr = os.Stderr
	return cmd
}

func init() {
	// The race detector has every process wait a second at its end otherwise.
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	roles["ops"] = func([]string) error {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			fmt.Println(errnoOf(doOp(in.Text())))
		}
		return nil
	}
}

// doOp does "name argument...".
func doOp(line string) error {
	words := strings.Fields(line)
	do := attackOps[words[0]]
	if do == nil {
		return fmt.Errorf("no operation %q", words[0])
	}
	return do(append(words[1:], "", ""))
}

func errnoOf(err error) string {
	var errno unix.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return "error: " + err.Error()
}

// stream starts a process and returns a function that waits for its next line.
func stream(t *testing.T, cmd *exec.Cmd) func() string {
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

// foreign reports whether what was read is somebody else's.
func foreign(b []byte) bool { return bytes.Contains(b, []byte("FOREIGN")) }
