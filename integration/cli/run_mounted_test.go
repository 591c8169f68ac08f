package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// mounted is a project whose view a daemon has mounted.
type mounted struct {
	t       *testing.T
	dir     string
	command func(args ...string) *exec.Cmd
}

func (m *mounted) do(args ...string) harness.Outcome {
	m.t.Helper()
	return harness.Finish(m.t, m.command(args...))
}

func (m *mounted) run(flags []string, script string) harness.Outcome {
	m.t.Helper()
	return m.do(append(append([]string{"run", "--dir", m.dir}, flags...), "--", "sh", "-c", script)...)
}

func (m *mounted) definition() (file string) {
	m.t.Helper()
	found, err := filepath.Glob(filepath.Join(filepath.Dir(m.dir), ".local/state/scopefs", filepath.Base(m.dir)+"-*", "agents.d", filepath.Base(m.dir)+"-*.md"))
	require.NoError(m.t, err)
	require.Len(m.t, found, 1)
	return found[0]
}

// TestFlagsOfRunOnMounted: a flag of run holds for that run, though a daemon has the view mounted in another mode. Held changes have a view
// of their own. For another flag the view is mounted again where nobody uses it; otherwise run refuses the flag, names the session, and
// changes no file. Nothing changes the definition.
func TestFlagsOfRunOnMounted(t *testing.T) {
	t.Run("user", func(t *testing.T) {
		t.Parallel()
		p := newProjects(t, "project")
		flagsOnMounted(t, &mounted{t, filepath.Join(p.Base, "project"), func(args ...string) *exec.Cmd { return p.command("", args...) }},
			need.Rounds("SCOPEFS_TEST_MODES", 7, len(modesOnMounted)))
	})
	t.Run("root", func(t *testing.T) {
		t.Parallel()
		m := harness.Embed(t, 0, nil)
		dir := filepath.Join(m.Base, "project")
		require.NoError(t, os.Mkdir(dir, 0o755))
		command := func(args ...string) *exec.Cmd {
			cmd := exec.Command(harness.Program, args...)
			cmd.Env = append(os.Environ(), "TMPDIR="+m.Tmp, "HOME="+m.Base, "XDG_STATE_HOME=", "XDG_CONFIG_HOME=", "XDG_RUNTIME_DIR=", "SCOPEFS_BASE=")
			return cmd
		}
		of := &mounted{t, dir, command}
		require.Zero(t, of.run(nil, "true").Code)
		base := filepath.Dir(filepath.Dir(of.definition()))
		daemon := command("daemon", "--base", base)
		require.NoError(t, daemon.Start())
		t.Cleanup(func() {
			_ = command("daemon", "--base", base, "--stop").Run()
			_ = daemon.Wait()
		})
		m.Eventually("the daemon has mounted the view", func() bool {
			return strings.Contains(of.do("ps", "--dir", dir).Stdout, " mounted ")
		})
		flagsOnMounted(t, of, need.Rounds("SCOPEFS_TEST_MODES", 3, len(modesOnMounted)))

		// A process of the host uses the view, and no session does.
		require.Zero(t, of.run(nil, "true").Code)
		file, err := os.Open(filepath.Join(base, "run", "views", filepath.Base(base), "a"))
		require.NoError(t, err)
		o := of.run([]string{"--changes", "held"}, "rm a") // its definition says that by now: the layer is its own
		assert.Equal(t, 125, o.Code)
		assert.Regexp(t, `is mounted with changes: auto, and in use: a process has a file or its working directory in \S+ \(fuser -vm \S+ lists it\)`, o.Stderr)
		assert.FileExists(t, filepath.Join(dir, "a"))
		require.NoError(t, file.Close())
		o = of.run([]string{"--changes", "held"}, "rm a")
		assert.Zero(t, o.Code, o.Stderr)
		assert.FileExists(t, filepath.Join(dir, "a"))
	})
}

// modesOnMounted are all pairs of modes of changes. The first three have each mode that differs on both sides; the first seven have two
// that are alike as well.
var modesOnMounted = [][2]string{
	{"direct", "held"}, {"held", "kept"}, {"kept", "direct"}, {"auto", "held"}, {"held", "auto"}, {"kept", "auto"}, {"held", "held"},
	{"direct", "kept"}, {"direct", "auto"}, {"kept", "held"}, {"held", "direct"}, {"auto", "direct"},
	{"auto", "kept"}, {"direct", "direct"}, {"kept", "kept"}, {"auto", "auto"},
}

// flagsOnMounted goes through the first pairs of modesOnMounted, then through the rules in each mode.
func flagsOnMounted(t *testing.T, m *mounted, pairs int) {
	plant := func() {
		o := m.run([]string{"--changes", "direct"}, "echo one >a; echo one >b")
		require.Zero(t, o.Code, o.Stderr)
	}
	read := func(name string) string { text, _ := os.ReadFile(filepath.Join(m.dir, name)); return string(text) }
	plant()
	text, err := os.ReadFile(m.definition())
	require.NoError(t, err)
	written := func() string { now, _ := os.ReadFile(m.definition()); return string(now) }
	// busy starts a command that uses the view until end is called.
	busy := func(flags ...string) (end func()) {
		cmd := m.command(slices.Concat([]string{"run", "--dir", m.dir}, flags, []string{"--", "sh", "-c", "echo began; read x"})...)
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = out.Read(make([]byte, 6))
		require.NoError(t, err, flags)
		return func() { in.Close(); _ = cmd.Wait() }
	}
	for _, modes := range modesOnMounted[:pairs] {
		from, to := modes[0], modes[1]
		for _, used := range []bool{false, true} {
			at := fmt.Sprintf("%s, then --changes %s, in use: %v", from, to, used)
			if read("a") != "one\n" || read("b") != "one\n" {
				plant()
			}
			end := func() {}
			if used {
				end = busy("--changes", from)
			} else {
				o := m.run([]string{"--changes", from}, "true")
				require.Zero(t, o.Code, "%s: %s", at, o.Stderr)
			}
			client := m.do("mcp", "--dir", m.dir, "--changes", to) // its input ends at once
			o := m.run([]string{"--changes", to}, "echo two >a; rm b; cat a")
			end()
			refused := used && from != to && from != "held" && to != "held"
			assert.Equal(t, string(text), written(), at)
			assert.Equal(t, refused, client.Code != 0, at+client.Stderr)
			if refused {
				assert.Contains(t, client.Stderr, "scopefs: --changes "+to+": another command has --changes "+from+" for project-", at)
				assert.Equal(t, 125, o.Code, at)
				assert.Contains(t, o.Stderr, "scopefs: --changes "+to+": another command has --changes "+from+" for project-", at)
				assert.Equal(t, "one\n", read("a"), at)
				assert.Equal(t, "one\n", read("b"), at)
				continue
			}
			require.Zero(t, o.Code, "%s: %s", at, o.Stderr)
			assert.Equal(t, "two\n", o.Stdout, at)
			diff := m.do("diff", "--dir", m.dir, "--name-only")
			if to == "held" {
				assert.Equal(t, "one\n", read("a"), at)
				assert.Equal(t, "one\n", read("b"), at)
				assert.Equal(t, "a\nb\n", diff.Stdout, at+diff.Stderr)
				o = m.run(nil, "cat a b")
				assert.Equal(t, "one\none\n", o.Stdout, "%s: a run without the flag has the directory: %s", at, o.Stderr)
				require.Zero(t, m.do("discard", "--dir", m.dir, "--all").Code)
				continue
			}
			assert.Equal(t, "two\n", read("a"), at)
			assert.NoFileExists(t, filepath.Join(m.dir, "b"), at)
			if kept := m.do("changes", "--dir", m.dir, "--name-only"); to != "direct" {
				assert.Equal(t, "a\nb\n", kept.Stdout, at+kept.Stderr)
			}
		}
	}
	plant()
	end := busy()
	o := m.run([]string{"--changes", "direct"}, "rm a")
	assert.Equal(t, 125, o.Code)
	assert.Regexp(t, `scopefs: --changes direct: the view of project-\S+ is mounted with changes: auto, and in use: session (\S+) `+
		`\(run sh -c .*\) has it since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d: end it with scopefs kill \S+; or scopefs down project-\S+ ends all of it\n`, o.Stderr)
	assert.Equal(t, "one\n", read("a"))
	end()

	// Secrets are shown for the run alone, in a view of each mode and on a branch, and to no session that has begun without.
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, ".env"), []byte("SECRET\n"), 0o644))
	require.Zero(t, m.do("branch", "one", "--dir", m.dir).Code)
	for _, mode := range []string{"direct", "kept", "held", "branch"} {
		flags := []string{"--changes", mode}
		if mode == "branch" {
			flags = []string{"--branch", "one"}
		}
		for range 2 {
			o := m.run(flags, "cat .env")
			assert.NotZero(t, o.Code, mode)
			o = m.run(append(flags, "--show-secrets"), "cat .env")
			assert.Equal(t, "SECRET\n", o.Stdout, "%s: %s", mode, o.Stderr)
		}
	}
	end = busy()
	o = m.run([]string{"--show-secrets"}, "cat .env")
	assert.Equal(t, 125, o.Code)
	assert.Regexp(t, `scopefs: --show-secrets: the view of project-\S+ is in use: session \S+ \(run sh -c .*\) has it since`, o.Stderr)
	end()
	assert.Equal(t, string(text), written())
	log := m.do("audit", "--dir", m.dir).Stdout
	assert.Contains(t, log, "flags hold --changes kept --show-secrets")
	assert.Contains(t, log, "flags end --changes kept --show-secrets")
	o = m.run([]string{"--branch", "one", "--changes", "kept"}, "true")
	assert.Equal(t, 125, o.Code, o.Stderr)

	// What waits for another mount is named.
	require.Zero(t, m.run(nil, "true").Code)
	front, body, _ := strings.Cut(written(), `protect: ["*"]`+"\n")
	require.NoError(t, os.WriteFile(m.definition(), []byte(front+"protect: {answer: hold}\nlimits: {open_files: 2000}\n"+strings.Replace(body, "changes: auto", "changes: held\n  data: mediated", 1)), 0o600))
	const keys = "limits.open_files, protect, view.changes, view.data"
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // the daemon reads a changed definition within a second
		if shown := m.do("ps", "--dir", m.dir).Stdout; strings.Contains(shown, keys+" of the definition: waits for scopefs down project-") {
			break
		} else if time.Now().After(end) {
			t.Fatal("ps does not say what waits: " + shown)
		}
	}
	assert.Contains(t, m.do("agents", "check", "--dir", m.dir).Stdout, keys+" of the definition: waits for scopefs down project-")
	assert.Contains(t, m.do("reload", "--dir", m.dir).Stdout, ": waits for scopefs down and up: "+keys+"\n")
}

// TestFlagsOfTwoRuns: a command does not start with other flags than one that has not ended, and none keeps nothing because another one
// said so.
func TestFlagsOfTwoRuns(t *testing.T) {
	t.Parallel()
	p := newProjects(t, "project")
	m := &mounted{t, filepath.Join(p.Base, "project"), func(args ...string) *exec.Cmd { return p.command("", args...) }}
	require.Zero(t, m.run(nil, "true").Code)
	variables := filepath.Join(p.Base, "variables")
	require.NoError(t, unix.Mkfifo(variables, 0o600))
	require.NoError(t, os.Chmod(variables, 0o666))
	kept := make(chan harness.Outcome, 1)
	go func() {
		kept <- m.run([]string{"--changes", "kept", "--env-file", variables}, "echo one >a")
	}()
	file, err := os.OpenFile(variables, os.O_WRONLY, 0) // when kept holds
	require.NoError(t, err)
	o := m.run([]string{"--changes", "direct"}, "echo two >a")
	assert.Equal(t, 125, o.Code, o.Stderr)
	assert.Contains(t, o.Stderr, "--changes direct: another command has --changes kept for project-")
	o = m.run([]string{"--changes", "held"}, "echo three >a")
	assert.Zero(t, o.Code, o.Stderr)
	assert.NoFileExists(t, filepath.Join(m.dir, "a"))
	require.NoError(t, file.Close())
	o = <-kept
	assert.Zero(t, o.Code, o.Stderr)
	assert.FileExists(t, filepath.Join(m.dir, "a"))

	direct := m.pausing([]string{"--changes", "direct"}, "echo began; read x; true")
	o = m.run(nil, "rm a")
	assert.Equal(t, 125, o.Code, o.Stderr)
	assert.Contains(t, o.Stderr, "another command has --changes direct for project-")
	assert.FileExists(t, filepath.Join(m.dir, "a"))
	for mode, text := range map[string]string{"direct": "one\n", "held": "three\n"} {
		o = m.run([]string{"-q", "--changes", mode}, "cat a")
		assert.Equal(t, text, o.Stdout, "%s: %s", mode, o.Stderr)
	}
	direct()
	o = m.run([]string{"-q"}, "rm a")
	require.Zero(t, o.Code, o.Stderr)
	require.Zero(t, m.do("undo", "--dir", m.dir, "--session", "last").Code)
	assert.FileExists(t, filepath.Join(m.dir, "a"))
}

// TestFlagsOfRunThatDoesNotStart: after a command that does not start, and after one that is killed, the view that a daemon has
// mounted is as the definition says.
func TestFlagsOfRunThatDoesNotStart(t *testing.T) {
	t.Parallel()
	p := newProjects(t, "project")
	m := &mounted{t, filepath.Join(p.Base, "project"), func(args ...string) *exec.Cmd { return p.command("", args...) }}
	require.Zero(t, m.run(nil, "true").Code)
	o := m.do("set", "view.changes", "held", "--yes", "--dir", m.dir)
	require.Zero(t, o.Code, o.Stderr)
	assert.Contains(t, o.Stdout, "-view.changes: auto\n+view.changes: held\n")
	before, err := os.ReadFile(m.definition())
	require.NoError(t, err)
	o = m.do("run", "--dir", m.dir, "--changes", "direct", "--", "no-such-program")
	require.Equal(t, 127, o.Code, o.Stderr)
	cmd := m.command("run", "--dir", m.dir, "--changes", "direct", "--show-secrets", "--", "sh", "-c", "echo began; sleep 100")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = out.Read(make([]byte, 6))
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	after, err := os.ReadFile(m.definition())
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) { // until the sandbox of the killed one has ended
		o = m.run([]string{"--changes", "held"}, "true")
		if o.Code == 0 || time.Now().After(end) {
			break
		}
	}
	o = m.run(nil, "echo one >a; cat .env")
	assert.NoFileExists(t, filepath.Join(m.dir, "a"), o.Stderr)
	assert.Equal(t, "a\n", m.do("diff", "--dir", m.dir, "--name-only").Stdout)
}

// TestSetWithoutDaemon: what set writes while no daemon runs is an event of the next one's log.
func TestSetWithoutDaemon(t *testing.T) {
	t.Parallel()
	m := harness.Embed(t, 0, nil)
	dir := filepath.Join(m.Base, "project")
	require.NoError(t, os.Mkdir(dir, 0o755))
	of := &mounted{t, dir, func(args ...string) *exec.Cmd {
		cmd := exec.Command(harness.Program, args...)
		cmd.Env = append(os.Environ(), "TMPDIR="+m.Tmp, "HOME="+m.Base, "XDG_STATE_HOME=", "XDG_CONFIG_HOME=", "XDG_RUNTIME_DIR=", "SCOPEFS_BASE=")
		return cmd
	}}
	require.Zero(t, of.run(nil, "true").Code)
	require.Zero(t, of.run(nil, "true").Code)
	assert.NotContains(t, of.do("audit", "--dir", dir).Stdout, "definition changed")
	o := of.do("set", "limits.pids", "50", "--dir", dir)
	assert.Equal(t, 2, o.Code, "nobody was asked: %s", o.Stderr)
	o = of.do("set", "limits.pids", "50", "--yes", "--dir", dir)
	require.Zero(t, o.Code, o.Stderr)
	assert.Contains(t, o.Stdout, "+limits: {pids: 50}\n")
	require.Zero(t, of.run(nil, "true").Code)
	assert.Contains(t, of.do("audit", "--dir", dir).Stdout, "definition changed agents.d/project-")
}

// TestFlagsOfRunThatCannotBeMounted: where the view cannot be mounted as a flag says, the view from before is mounted again.
func TestFlagsOfRunThatCannotBeMounted(t *testing.T) {
	t.Parallel()
	p := newProjects(t, "project")
	m := &mounted{t, filepath.Join(p.Base, "project"), func(args ...string) *exec.Cmd { return p.command("", args...) }}
	require.Zero(t, m.run(nil, "true").Code)
	require.Zero(t, m.do("set", "view.changes", "direct", "--yes", "--dir", m.dir).Code)
	require.Zero(t, m.do("down", "--dir", m.dir).Code)
	require.Zero(t, m.do("up", "--dir", m.dir).Code)
	history := filepath.Join(filepath.Dir(filepath.Dir(m.definition())), "history")
	require.NoError(t, os.RemoveAll(history))
	require.NoError(t, os.WriteFile(history, nil, 0o600))
	for _, mode := range []string{"held", "kept"} {
		o := m.run([]string{"--changes", mode}, "true")
		assert.Equal(t, 125, o.Code, o.Stderr)
		assert.Contains(t, o.Stderr, "history: ")
		assert.Eventually(t, func() bool { return strings.Contains(m.do("ps", "--dir", m.dir).Stdout, " mounted ") }, 30*time.Second, 10*time.Millisecond, mode)
	}
}
