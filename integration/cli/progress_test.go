package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// slowly has programs of scopefs. The daemon of a command does not start until release is called.
type slowly struct {
	*harness.Way
	programs, dir string
}

func newSlowly(t *testing.T) *slowly {
	s := &slowly{Way: harness.Embed(t, 0, nil)}
	s.programs, s.dir = filepath.Join(s.Base, "programs"), filepath.Join(s.Base, "project")
	for _, dir := range []string{s.programs, s.dir, filepath.Join(s.Base, "home")} {
		require.NoError(t, os.Mkdir(dir, 0o755))
	}
	all, err := filepath.Glob(filepath.Dir(harness.Program) + "/scopefs*")
	require.NoError(t, err)
	for _, program := range all {
		require.NoError(t, os.Symlink(program, filepath.Join(s.programs, filepath.Base(program))))
	}
	for name, as := range map[string]string{"scopefs": "scopefs", "scopefsd": "real"} { // a program finds those beside its file, not beside a link
		text, err := os.ReadFile(filepath.Join(filepath.Dir(harness.Program), name))
		require.NoError(t, err)
		require.NoError(t, os.Remove(filepath.Join(s.programs, name)))
		harness.Executable(t, filepath.Join(s.programs, as), text)
	}
	require.NoError(t, os.WriteFile(filepath.Join(s.programs, "scopefsd"), fmt.Appendf(nil, `#!/bin/sh
case " $* " in *" --only "*) while ! test -e %[1]s/go; do kill -0 $PPID || exit; sleep 0.02; done;; esac
exec %[1]s/real "$@"
`, s.programs), 0o755))
	return s
}

// hold has the daemons of later commands wait for release.
func (s *slowly) hold() { _ = os.Remove(filepath.Join(s.programs, "go")) }

func (s *slowly) release() {
	require.NoError(s.T, os.WriteFile(filepath.Join(s.programs, "go"), nil, 0o644))
}

// command is a command in the project.
func (s *slowly) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.programs, "scopefs"), args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "HOME="+s.Base+"/home", "TMPDIR="+s.Tmp, "XDG_STATE_HOME=", "XDG_RUNTIME_DIR=", "XDG_DATA_HOME=", "XDG_CONFIG_HOME=", "SCOPEFS_BASE=")
	return cmd
}

// TestProgress: what takes longer than a second says what it does on a terminal, and erases that before its answer. An interrupt
// leaves nothing.
func TestProgress(t *testing.T) {
	t.Parallel()
	s := newSlowly(t)
	harness.Plant(t, s.dir, "f=1\n")
	for _, c := range []struct {
		says, answers string
		words         []string
	}{
		{"starting the agent project-", "done", []string{"run", "--dir", ".", "--", "sh", "-c", "echo 2 >f; echo done"}},
		{"opening the history of project-", "1 change", []string{"changes", "--stat"}},
		{"opening the history of project-", "1 rewritten", []string{"undo", "--session", "last"}},
	} {
		for _, interrupted := range []bool{true, false} {
			s.hold()
			cmd := s.command(c.words...)
			ptmx, k := harness.OnTerminal(t, cmd, 30, 90)
			k.Expect("\r\x1b[Kscopefs: " + c.says)
			if interrupted {
				_, err := ptmx.WriteString("\x03")
				require.NoError(t, err)
				assert.Error(t, cmd.Wait())
				assert.Equal(t, syscall.SIGINT, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
				s.Eventually("nothing of it runs", func() bool { return len(harness.ProcessesOf(s.programs)) == 0 })
				continue
			}
			s.release()
			assert.Regexp(t, `\r\x1b\[K[^\n]*$`, k.Expect(c.answers))
			require.NoError(t, cmd.Wait(), c.words)
		}
	}
	text, err := os.ReadFile(filepath.Join(s.dir, "f"))
	require.NoError(t, err)
	assert.Equal(t, "1\n", string(text))
	left, err := os.ReadDir(s.Tmp)
	require.NoError(t, err)
	assert.Empty(t, left)

	o := harness.Finish(t, s.command("changes"))
	assert.NotContains(t, o.Stderr, "\x1b", "standard error is no terminal")

	heads := filepath.Join(s.Base, "heads")
	require.NoError(t, syscall.Mkfifo(heads, 0o600))
	writer, err := os.OpenFile(heads, os.O_RDWR, 0) // the command waits for what follows
	require.NoError(t, err)
	cmd := s.command("audit", "verify", "--checkpoint", heads)
	_, k := harness.OnTerminal(t, cmd, 30, 90)
	k.Expect("\r\x1b[Kscopefs: reading the log, 1 s")
	_, err = writer.WriteString(harness.Finish(t, s.command("audit", "head")).Stdout)
	require.NoError(t, errors.Join(err, writer.Close()))
	assert.Regexp(t, `\r\x1b\[K[^\n]*$`, k.Expect("valid: "))
	assert.NoError(t, cmd.Wait())
}

// gate is a connection to which so many bytes are written, those to others counted, and no more before it is open.
type gate struct {
	net.Conn
	left *atomic.Int64
	open chan struct{}
}

func (g gate) Write(p []byte) (int, error) {
	if g.left.Add(-int64(len(p))) < 0 {
		<-g.open
	}
	return g.Conn.Write(p)
}

// TestProgressOfLists: a list of many files reports its progress. Its second page is delayed.
func TestProgressOfLists(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t, map[string]string{"a": "view: {changes: kept}"})
	h.Must("run", "-q", "a", "--", "sh", "-c", "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); : >f$i; done")
	var firstPage atomic.Int64
	firstPage.Store(128 << 10)
	run, release := t.TempDir(), make(chan struct{})
	l, err := net.Listen("unix", filepath.Join(run, "control.sock"))
	require.NoError(t, err)
	defer l.Close()
	go func() {
		for client, err := l.Accept(); err == nil; client, err = l.Accept() {
			daemon, err := net.Dial("unix", filepath.Join(h.Base, "run/control.sock"))
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(daemon, client); daemon.Close() }()
			go func() {
				_, _ = io.Copy(gate{client, &firstPage, release}, daemon)
				client.Close()
			}()
		}
	}()
	cmd := exec.Command(harness.Program, "--base", h.Base, "--run", run, "changes", "a", "--name-only")
	_, k := harness.OnTerminal(t, cmd, 30, 90)
	assert.Regexp(t, `\r\x1b\[Kscopefs: listing \d+$`, k.Expect(" of 3000, "))
	close(release)
	k.Expect("\r\x1b[Kf1\r\n")
	k.Drain()
	assert.NoError(t, cmd.Wait())
}

// TestProgressOfCommit: a commit says how many of its steps are done, and an interrupt what becomes of it. Both are gone from the line
// before the answer, and no file is lost. The daemon's answer about its progress is a stand-in's, so that the commit is in its midst.
func TestProgressOfCommit(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t, map[string]string{"a": "view: {changes: held}"})
	h.Must("run", "-q", "a", "--", "sh", "-c", "echo 1 >new")
	run, release := t.TempDir(), make(chan struct{})
	to := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "daemon" },
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(h.Base, "run/control.sock"))
		}},
	}
	l, err := net.Listen("unix", filepath.Join(run, "control.sock"))
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		switch {
		case bytes.Contains(text, []byte(`"progress":true`)):
			_, _ = io.WriteString(w, `{"done":3,"total":7}`)
			return
		case bytes.Contains(text, []byte(`"commit":`)):
			<-release
		}
		r.Body = io.NopCloser(bytes.NewReader(text))
		to.ServeHTTP(w, r)
	})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	cmd := exec.Command(harness.Program, "--base", h.Base, "--run", run, "commit", "a")
	ptmx, k := harness.OnTerminal(t, cmd, 30, 90)
	k.Expect("\r\x1b[Kscopefs: commit: 3 of 7 steps, ")
	_, err = ptmx.WriteString("\x03")
	require.NoError(t, err)
	k.Expect("\r\x1b[Kscopefs: interrupted: the commit ends, or finishes if it has begun")
	close(release)
	assert.Equal(t, "\r\na, commit: ", k.Expect("a, commit: ")+"a, commit: ")
	k.Expect("1 change taken")
	k.Drain()
	assert.NoError(t, cmd.Wait())
	assert.Equal(t, "1\n", harness.ReadAll(t, h.Scope("a", "new")))
}
