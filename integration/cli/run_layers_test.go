package cli

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// layered calls f with a project that has the files a and b: one of a user with a daemon, and one without.
func layered(t *testing.T, f func(t *testing.T, m *mounted, daemon bool)) {
	plant := func(m *mounted, uid int) {
		harness.Plant(m.t, m.dir, "a=one\n", "b=one\n")
		for _, name := range []string{"a", "b"} {
			require.NoError(m.t, os.Chown(filepath.Join(m.dir, name), uid, uid))
		}
		require.Zero(m.t, m.run([]string{"-q"}, "true").Code)
	}
	t.Run("daemon", func(t *testing.T) {
		t.Parallel()
		p := newProjects(t, "project")
		m := &mounted{t, filepath.Join(p.Base, "project"), func(args ...string) *exec.Cmd { return p.command("", args...) }}
		plant(m, accountUID)
		f(t, m, true)
	})
	t.Run("alone", func(t *testing.T) {
		t.Parallel()
		const uid = 1234
		w := harness.Embed(t, uid, nil)
		m := &mounted{t, filepath.Join(w.Base, "project"), func(args ...string) *exec.Cmd {
			cmd := harness.AsUser(t, uid, append([]string{harness.Program}, args...)...)
			cmd.Env = append(cmd.Env, "TMPDIR="+w.Tmp, "HOME="+w.Base, "XDG_RUNTIME_DIR=",
				"XDG_STATE_HOME="+filepath.Join(w.Base, ".local/state"), "SCOPEFS_BASE=")
			return cmd
		}}
		require.NoError(t, os.Mkdir(m.dir, 0o755))
		require.NoError(t, os.Chown(m.dir, uid, uid))
		plant(m, uid)
		f(t, m, false)
	})
}

// pausing starts a run of a script, and returns when it prints a line. finish has it go on behind its first read, and returns what it
// prints then.
func (m *mounted) pausing(flags []string, script string) (finish func() string) {
	m.t.Helper()
	cmd := m.command(slices.Concat([]string{"run", "-q", "--dir", m.dir}, flags, []string{"--", "sh", "-c", script})...)
	in, err := cmd.StdinPipe()
	require.NoError(m.t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(m.t, err)
	var errs strings.Builder
	cmd.Stderr = &errs
	require.NoError(m.t, cmd.Start())
	lines := bufio.NewReader(out)
	_, err = lines.ReadString('\n')
	if err != nil {
		_ = cmd.Wait()
	}
	require.NoError(m.t, err, &errs)
	return func() string {
		m.t.Helper()
		in.Close()
		var rest strings.Builder
		_, _ = lines.WriteTo(&rest)
		require.NoError(m.t, cmd.Wait(), &errs)
		return rest.String()
	}
}

func (m *mounted) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(m.dir, name))
	return string(text)
}

// TestHeldRunsShareLayer: run --changes held holds for that run alone and writes no key of the definition, whatever other sessions do.
// All such runs of a project have one layer, one after the other, which no other session sees; its HOME is the project's.
func TestHeldRunsShareLayer(t *testing.T) {
	layered(t, func(t *testing.T, m *mounted, daemon bool) {
		held := []string{"-q", "--changes", "held"}
		text, err := os.ReadFile(m.definition())
		require.NoError(t, err)
		require.Zero(t, m.run([]string{"-q"}, "echo mine >~/login").Code)
		plain := m.pausing(nil, "echo began; read x; cat a b")
		o := m.run(held, "cat ~/login; echo two >a; rm b; echo new >c; echo theirs >~/login")
		require.Zero(t, o.Code, o.Stderr)
		assert.Equal(t, "mine\n", o.Stdout)
		assert.Equal(t, "one\none\n", plain(), "a session that began before")
		assert.Equal(t, "a\nb\nc\n", m.do("diff", "--dir", m.dir, "--name-only").Stdout)
		o = m.run([]string{"-q"}, "cat a b ~/login; echo more >d; test ! -e c")
		require.Zero(t, o.Code, o.Stderr)
		assert.Equal(t, "one\none\ntheirs\n", o.Stdout, "a session afterwards")
		assert.Equal(t, "more\n", m.read("d"), "is not held")
		o = m.run(held, "cat a c d; test ! -e b; echo three >a")
		require.Zero(t, o.Code, o.Stderr)
		assert.Equal(t, "two\nnew\nmore\n", o.Stdout, "the next one has the layer of the first")

		first := m.pausing([]string{"--changes", "held"}, "echo began; read x; cat e")
		o = m.run(held, "echo four >e; cat a")
		require.Zero(t, o.Code, o.Stderr)
		assert.Equal(t, "three\n", o.Stdout)
		assert.Equal(t, "four\n", first(), "two at once have one layer")

		assert.Equal(t, "one\n", m.read("a"))
		now, err := os.ReadFile(m.definition())
		require.NoError(t, err)
		assert.Equal(t, string(text), string(now))
		o = m.do("commit", "--dir", m.dir)
		require.Zero(t, o.Code, o.Stderr)
		assert.Equal(t, "three\n", m.read("a"))
		assert.Equal(t, "four\n", m.read("e"))
		assert.NoFileExists(t, filepath.Join(m.dir, "b"))
		o = m.do("diff", "--dir", m.dir)
		assert.Contains(t, o.Stdout, "nothing differs", o.Stderr)
	})
}

// TestLayersAreFound: diff, commit and discard are about the layer that holds changes. Where several do, they list them and ask for one.
func TestLayersAreFound(t *testing.T) {
	layered(t, func(t *testing.T, m *mounted, daemon bool) {
		id := strings.TrimSuffix(filepath.Base(m.definition()), ".md")
		o := m.do("diff", "--dir", m.dir)
		assert.Equal(t, 1, o.Code)
		assert.Contains(t, o.Stderr, "are not held: give --changes held to run")
		require.Zero(t, m.do("branch", "one", "--dir", m.dir).Code)
		require.Zero(t, m.run([]string{"-q", "--branch", "one"}, "echo 1 >of-one; mkdir d; rmdir d").Code)
		assert.Equal(t, "of-one\n", m.do("diff", "--dir", m.dir, "--name-only").Stdout, "the only layer with changes")
		require.Zero(t, m.run([]string{"-q", "--changes", "held"}, "echo 1 >of-held; test ! -e of-one").Code)
		for _, words := range [][]string{{"diff"}, {"commit"}, {"discard", "--all"}} {
			o = m.do(append(words, "--dir", m.dir)...)
			assert.Equal(t, 2, o.Code, words)
			assert.Empty(t, o.Stdout, words)
			assert.Regexp(t, `(?m)^held +`+id+` .* 1 +2 +0 +-$`, o.Stderr, words)
			assert.Regexp(t, `(?m)^one +`+id+` .* 1 +2 +0 +-$`, o.Stderr, words)
			assert.Contains(t, o.Stderr, "scopefs: which changes: give --branch held, or --branch one\n", words)
		}
		assert.Equal(t, "of-held\n", m.do("diff", "--dir", m.dir, "--branch", "held", "--name-only").Stdout)
		o = m.do("commit", "--dir", m.dir, "--branch", "one")
		require.Zero(t, o.Code, o.Stderr)
		o = m.do("diff", "--dir", m.dir, "--name-only")
		assert.Equal(t, "of-held\n", o.Stdout, "one holds nothing any more: %s", o.Stderr)
		require.Zero(t, m.do("set", "view.changes", "held", "--yes", "--dir", m.dir).Code)
		if daemon {
			require.Zero(t, m.do("down", "--dir", m.dir).Code)
			require.Zero(t, m.do("up", "--dir", m.dir).Code)
		}
		require.Zero(t, m.run([]string{"-q"}, "echo 1 >of-own").Code)
		o = m.do("commit", "--dir", m.dir)
		assert.Contains(t, o.Stderr, "scopefs: which changes: give --branch held, or --branch "+id+"\n")
		o = m.do("commit", "--dir", m.dir, "--branch", id)
		require.Zero(t, o.Code, o.Stderr)
		assert.Equal(t, "1\n", m.read("of-own"))
		o = m.do("discard", "--dir", m.dir, "--all")
		require.Zero(t, o.Code, o.Stderr)
		assert.NoFileExists(t, filepath.Join(m.dir, "of-held"))
	})
}

// TestLastSessionIsHeld: changes lists what the last session has changed where it is held, too, and undo takes it back there, and no earlier
// one in its place.
func TestLastSessionIsHeld(t *testing.T) {
	layered(t, func(t *testing.T, m *mounted, daemon bool) {
		require.Zero(t, m.run([]string{"-q"}, "echo 1 >kept").Code)
		wrong := m.command("run", "true")
		wrong.Dir = m.dir
		assert.Equal(t, "scopefs: \"true\" is a program and no agent: for this directory write scopefs run --dir . -- true\n",
			harness.Finish(t, wrong).Stderr)
		require.Zero(t, m.run([]string{"-q", "--changes", "held"}, "rm a").Code)
		o := m.do("changes", "--dir", m.dir, "--name-only")
		assert.Equal(t, "a\n", o.Stdout, o.Stderr)
		o = m.do("undo", "--dir", m.dir, "kept")
		assert.Equal(t, 1, o.Code, "it is not of that session: %s", o.Stdout)
		assert.FileExists(t, filepath.Join(m.dir, "kept"))
		o = m.do("undo", "--dir", m.dir, "--session", "last")
		assert.Zero(t, o.Code, o.Stderr)
		assert.Contains(t, o.Stdout, "held, undo, the last session: ")
		assert.FileExists(t, filepath.Join(m.dir, "kept"))
		assert.Empty(t, m.do("diff", "--dir", m.dir, "--branch", "held", "--name-only").Stdout)
		o = m.do("redo", "--dir", m.dir)
		assert.Zero(t, o.Code, o.Stderr)
		assert.Contains(t, o.Stdout, "held, redo, the last undo: ")
		assert.Equal(t, "a\n", m.do("diff", "--dir", m.dir, "--branch", "held", "--name-only").Stdout)
		require.Zero(t, m.run([]string{"-q"}, "echo 2 >kept").Code)
		o = m.do("undo", "--dir", m.dir, "--session", "last")
		require.Zero(t, o.Code, o.Stderr)
		assert.Equal(t, "1\n", m.read("kept"))
		o = m.do("redo", "--dir", m.dir)
		require.Zero(t, o.Code, o.Stderr)
		assert.Equal(t, "2\n", m.read("kept"), "the last undo was in the directory")
		require.Zero(t, m.do("undo", "--dir", m.dir, "--session", "last").Code)
		require.Zero(t, m.run([]string{"-q", "--changes", "held"}, "echo 1 >taken").Code)
		require.Zero(t, m.do("commit", "--dir", m.dir).Code)
		o = m.do("undo", "--dir", m.dir, "--session", "last")
		assert.Equal(t, 1, o.Code, o.Stdout)
		assert.Contains(t, o.Stderr, "scopefs: held: the changes of the last session were held until the commit at ")
		assert.FileExists(t, filepath.Join(m.dir, "kept"), "an earlier session's")
		o = m.do("redo", "--dir", m.dir, "nothing")
		assert.Contains(t, o.Stderr, "there is no undo \"nothing\" that could be taken back\n")
		require.Zero(t, m.run([]string{"-q", "--changes", "held"}, "true").Code)
		require.Zero(t, m.do("discard", "--dir", m.dir, "--all").Code)
		o = m.do("undo", "--dir", m.dir, "--since", "1h")
		require.Zero(t, o.Code, o.Stderr)
		assert.NoFileExists(t, filepath.Join(m.dir, "kept"))
	})
}

// TestHeldLayerIsTaken: an agent of the name of the layer is not used for it.
func TestHeldLayerIsTaken(t *testing.T) {
	layered(t, func(t *testing.T, m *mounted, daemon bool) {
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(m.definition()), "held.md"), []byte("---\nname: held\n---\n"), 0o644))
		o := m.run([]string{"--changes", "held"}, "rm a")
		assert.Equal(t, 125, o.Code)
		assert.Contains(t, o.Stderr, "--changes held: held is an agent already, and no branch of project-")
		assert.Equal(t, "one\n", m.read("a"))
	})
}

// TestRunsShareDaemon: without a daemon, a run works with the daemon of the first one, and its changes are kept, also after that one has
// ended or was killed. Nothing is left after the last.
func TestRunsShareDaemon(t *testing.T) {
	layered(t, func(t *testing.T, m *mounted, daemon bool) {
		for _, killed := range []bool{false, true} {
			first := m.command("run", "-q", "--dir", m.dir, "--", "sh", "-c", "echo began; read x && echo 1 >first")
			in, err := first.StdinPipe()
			require.NoError(t, err)
			out, err := first.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, first.Start())
			_, err = out.Read(make([]byte, 6))
			require.NoError(t, err)
			second := m.pausing(nil, "echo began; read x; rm a; cat first")
			if killed {
				require.NoError(t, first.Process.Kill())
				_ = first.Wait()
			} else {
				_, err = in.Write([]byte("go\n"))
				require.NoError(t, err)
				require.NoError(t, first.Wait(), "ends before the second one")
			}
			assert.Equal(t, "1\n", second())
			o := m.do("undo", "--dir", m.dir, "--session", "last")
			require.Zero(t, o.Code, o.Stderr)
			assert.Equal(t, "one\n", m.read("a"))
		}
	})
}
