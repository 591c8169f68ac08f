package history

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestDiskFull: on a full disk a commit, and a change that cannot be kept, say what to do, and change nothing. Removals are kept or held.
func TestDiskFull(t *testing.T) {
	m := harness.Embed(t, 0, nil)
	at := filepath.Join(m.Base, "disk")
	require.NoError(t, os.Mkdir(at, 0o755))
	harness.NewDisk(t, at)
	p := &project{T: t, way: m, state: at + "/state", dir: at + "/project"}
	require.NoError(t, os.Mkdir(p.dir, 0o755))
	p.host("echo one >f; echo two >g")
	fill := func() {
		f, err := os.Create(at + "/fill")
		require.NoError(t, err)
		defer f.Close()
		for range 3 { // what the file system has set aside for the write-back is free after it
			for size := 1 << 20; size > 0; size /= 2 {
				for err = nil; err == nil; {
					_, err = f.Write(make([]byte, size))
				}
				require.ErrorIs(t, err, unix.ENOSPC)
			}
			require.NoError(t, f.Sync())
		}
	}
	o := p.scopefs("run", "-q", "--dir", ".", "--changes", "held", "--", "sh", "-ec", "head -c 3000000 /dev/urandom >big; echo more >>f")
	require.Zero(t, o.Code, o.Stderr)
	fill()
	o = p.scopefs("commit")
	assert.Equal(t, "scopefs: held: the file system of the directory is full: make room on it, and repeat the command\n", o.Stderr)
	assert.Equal(t, "one\n", p.host("cat f"))
	require.NoError(t, os.Remove(at+"/fill"))
	assert.Equal(t, "held, commit: 2 changes taken\n", p.scopefs("commit").Stdout)

	changes := func(kind, script string) (code int, stderr string) { // on a disk that is full once the command runs
		cmd := p.command(harness.Program, "run", "--dir", ".", "--changes", kind, "--", "sh", "-c", "echo began; read x; "+script)
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		var text strings.Builder
		cmd.Stderr = &text
		require.NoError(t, cmd.Start())
		_, err = bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		fill()
		in.Close()
		_ = cmd.Wait()
		require.NoError(t, os.Remove(at+"/fill"))
		return cmd.ProcessState.ExitCode(), text.String()
	}
	// A log on the disk that is full refuses all changes, as soon as it has something to record.
	log := strings.TrimSpace(p.host("find " + p.state + " -type d -name audit"))
	elsewhere := t.TempDir()
	require.NoError(t, os.CopyFS(elsewhere, os.DirFS(log)))
	require.NoError(t, unix.Mount(elsewhere, log, "", unix.MS_BIND, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(log, unix.MNT_DETACH)) })
	code, stderr := changes("kept", "echo three >>f")
	assert.NotZero(t, code)
	assert.Contains(t, stderr, "scopefs: refused open-write f: history: not kept: the file system is full: make room on it, "+
		"or write history: {unkept: allow}\n")
	assert.Equal(t, "one\nmore\n", p.host("cat f"))
	for _, kind := range []string{"kept", "held"} {
		p.host("mkdir -p d/e; echo z >d/e/z; echo two >g")
		before := p.host("find . -type f | sort; cat f g")
		code, stderr = changes(kind, "rm -r g d")
		assert.Zero(t, code, "%s: %s", kind, stderr)
		if kind == "kept" {
			assert.Equal(t, "f\n", p.host("ls -I big"))
		} else {
			assert.Equal(t, "d\nd/e\nd/e/z\ng\n", p.scopefs("diff", "--name-only").Stdout)
		}
		o = p.scopefs("undo", "--session", "last")
		assert.Zero(t, o.Code, o.Stdout+o.Stderr)
		assert.Equal(t, before, p.host("find . -type f | sort; cat f g"))
	}
}

// TestKeptTwice: a run with --changes kept while another one keeps the changes of the directory says what to do.
func TestKeptTwice(t *testing.T) {
	p := newProject(t, 12345)
	first := p.command(harness.Program, "run", "-q", "--dir", ".", "--changes", "kept", "--", "sh", "-c", "echo began; read x")
	in, err := first.StdinPipe()
	require.NoError(t, err)
	out, err := first.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, first.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	o := p.scopefs("run", "--dir", ".", "--changes", "kept", "--", "true")
	assert.Equal(t, 125, o.Code)
	assert.Equal(t, "scopefs: mount \""+p.dir+"\": another run keeps its changes: wait until that ends, or start scopefs daemon, "+
		"in a project with --dir, for several\n", o.Stderr)
	in.Close()
	_ = first.Wait()
}

// TestUndoTopClosed: an undo writes in the directory itself where its mode keeps the owner out, and gives the mode back.
func TestUndoTopClosed(t *testing.T) {
	p := newProject(t, 12345)
	p.host("echo one >f; echo two >g")
	o := p.scopefs("run", "-q", "--dir", ".", "--changes", "kept", "--", "sh", "-ec", "rm g; echo new >new; echo more >>f")
	require.Zero(t, o.Code, o.Stderr)
	p.host("chmod 0500 .")
	o = p.scopefs("undo", "--dir", ".", "--session", "last")
	assert.Zero(t, o.Code, o.Stdout)
	assert.Equal(t, "f\ng\none\ntwo\n500\n", p.host("ls; cat f g; stat -c %a ."))
	p.host("chmod 0755 .")
}
