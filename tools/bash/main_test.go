package bash

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

// TestMain also runs process 1 of the tests' sandboxes.
func TestMain(m *testing.M) {
	child.Play(map[string]func() int{child.Init: pid1.Main, child.Files: nil})
	os.Exit(m.Run())
}

const agentUID = 1000

// newSandbox starts a session whose view is an ordinary directory.
func newSandbox(t testing.TB) *sandbox.Session {
	t.Helper()
	if err := sandbox.Check(context.Background(), sandbox.Config{}); err != nil {
		need.Skip(t, "no sandbox here: ", err)
	}
	host, err := sandbox.Open(sandbox.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, host.Close()) })
	uid := os.Geteuid()
	if uid == 0 {
		uid = agentUID
	}
	dir, err := os.MkdirTemp("", "view")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.Chown(dir, uid, uid))
	view, err := os.Open(dir)
	require.NoError(t, err)
	defer view.Close()
	s, err := host.Start(context.Background(), sandbox.Spec{Agent: "tester", UID: uint32(uid), GID: uint32(uid), View: view})
	require.NoError(t, err)
	return s
}

// newTestShell returns a Shell on a new sandbox.
func newTestShell(t testing.TB) (*Shell, *sandbox.Session) {
	t.Helper()
	session := newSandbox(t)
	s := NewShell(session)
	t.Cleanup(func() {
		assert.NoError(t, s.Close())
		assert.EqualValues(t, maxKept, s.budget.free.Load(), "all memory is freed")
	})
	return s, session
}

var env = tools.Env{Agent: "tester", Call: "c1"}

// bash runs a command and waits for its result.
func bash(t *testing.T, s *Shell, command string) runResult {
	t.Helper()
	r, err := s.run(context.Background(), env, runArgs{Command: command})
	require.NoError(t, err)
	return r
}

// background starts a command in the background and returns its process id.
func background(t *testing.T, s *Shell, command string) string {
	t.Helper()
	r, err := s.run(context.Background(), env, runArgs{Command: command, Background: true})
	require.NoError(t, err)
	require.NotEmpty(t, r.ProcessID)
	return r.ProcessID
}

func read(t *testing.T, s *Shell, in readArgs) readResult {
	t.Helper()
	r, err := s.read(context.Background(), env, in)
	require.NoError(t, err)
	return r
}

// seconds returns a time that no process of another run of tests sleeps: two runs on one host must not meet.
func seconds(n int) string { return fmt.Sprintf("%d.%d", n, os.Getpid()) }

// runs counts the host's processes whose command line begins with words.
func runs(t *testing.T, words ...string) (n int) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, name := range names {
		if text, _ := os.ReadFile(name); strings.HasPrefix(string(text), strings.Join(words, "\x00")+"\x00") {
			n++
		}
	}
	return n
}

func code(n int) *int { return &n }
