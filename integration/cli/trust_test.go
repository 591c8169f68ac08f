package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// trusting is a project of an ordinary user.
type trusting struct {
	*harness.Way
	t         *testing.T
	dir, home string
}

const trustUser = 1234

func newTrusting(t *testing.T) *trusting {
	m := &trusting{Way: harness.Embed(t, trustUser, nil), t: t}
	m.dir = filepath.Join(m.Base, "own")
	m.home = filepath.Join(m.Base, "home")
	for _, dir := range []string{m.dir, m.home} {
		require.NoError(t, os.Mkdir(dir, 0o755))
		require.NoError(t, os.Chown(dir, trustUser, trustUser))
	}
	return m
}

func (m *trusting) command(words ...string) *exec.Cmd {
	cmd := harness.AsUser(m.t, trustUser, append([]string{harness.Program}, words...)...)
	cmd.Env = append(cmd.Env, "TMPDIR="+m.Tmp, "HOME="+m.home, "XDG_STATE_HOME=", "SCOPEFS_BASE=")
	return cmd
}

func (m *trusting) as(words ...string) harness.Outcome {
	return harness.Finish(m.t, m.command(words...))
}

func (m *trusting) write(text string) {
	name := filepath.Join(m.dir, ".scopefs.yaml")
	require.NoError(m.t, os.WriteFile(name, []byte(text), 0o644))
	require.NoError(m.t, os.Chown(name, trustUser, trustUser))
}

// trusted returns what is in force of the file; "" for nothing.
func (m *trusting) trusted() string {
	found, err := filepath.Glob(filepath.Join(m.home, ".local/state/scopefs/own-*/agents.d/*.trusted.yaml"))
	require.NoError(m.t, err)
	if len(found) == 0 {
		return ""
	}
	text, err := os.ReadFile(found[0])
	require.NoError(m.t, err)
	return string(text)
}

// TestTrustRace: a program in the view of an agent that may write .scopefs.yaml exchanges the file for other texts, a link to
// a file of the user's and a FIFO, while the user trusts it. What is in force is what was shown, and no command waits.
func TestTrustRace(t *testing.T) {
	m := newTrusting(t)
	good := "tools: [read_file]\n"
	m.write(good)
	require.NoError(t, os.WriteFile(filepath.Join(m.home, "secret.yaml"), []byte("env: {SECRET: hunter2}\n"), 0o644))
	require.Zero(t, m.as("run", "--dir", m.dir, "--", "true").Code)
	found, err := filepath.Glob(filepath.Join(m.home, ".local/state/scopefs/own-*/agents.d/own-*.md"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	text, err := os.ReadFile(found[0])
	require.NoError(t, err)
	open := strings.Replace(string(text), "protect: [\"*\"]\n", "", 1)
	require.NotEqual(t, string(text), open)
	require.NoError(t, os.WriteFile(found[0], []byte(open), 0o600))

	attacker := m.command("run", "--dir", m.dir, "--", "sh", "-c", `
		echo "network: {allow: ['*']}" >evil; echo "tools: [read_file]" >good
		touch began
		while :; do
			cp good next; mv -f next .scopefs.yaml
			cp evil next; mv -f next .scopefs.yaml
			mkfifo next; mv -f next .scopefs.yaml
			ln -s ../home/secret.yaml next || ln -s evil next; mv -f next .scopefs.yaml
		done`)
	require.NoError(t, attacker.Start())
	defer func() {
		_ = attacker.Process.Signal(syscall.SIGTERM)
		_ = attacker.Wait()
	}()
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(m.dir, "began")); return err == nil }, 20*time.Second, 10*time.Millisecond)
	sum := sha256.Sum256([]byte(good))
	hash := hex.EncodeToString(sum[:])
	seen := map[int]int{}
	for i := 0; i < 20 || len(seen) < 2 && i < 500; i++ {
		o := m.as("trust", "--show", "--json", "--dir", m.dir)
		assert.NotContains(t, o.Stdout+o.Stderr, "hunter2")
		if o.Code == 0 {
			var shown struct{ Text, Hash string }
			require.NoError(t, json.Unmarshal([]byte(o.Stdout), &shown))
			own := sha256.Sum256([]byte(shown.Text))
			assert.Equal(t, hex.EncodeToString(own[:]), shown.Hash)
		}
		o = m.as("trust", "--yes", "--hash", hash, "--dir", m.dir)
		seen[o.Code]++
		if o.Code == 0 {
			assert.Equal(t, good, m.trusted())
			require.Zero(t, m.as("trust", "--revoke", "--dir", m.dir).Code)
		}
		assert.Empty(t, m.trusted())
	}
	assert.Len(t, seen, 2, "the file was the meant one at times, and another one at times: %v", seen)
}

// TestTrustAsks: on a terminal the user sees the whole text, in which nothing moves the cursor, reorders the line or looks like
// a line of ours, and answers. What he has seen is in force, and nothing if the file is another one by then.
func TestTrustAsks(t *testing.T) {
	for name, test := range map[string]struct {
		answer  string
		changes bool
		want    bool
	}{"yes": {"yes\r", false, true}, "yes to another": {"yes\r", true, false}, "no": {"no\r", false, false}, "nothing": {"\r", false, false}, "the end": {"\x04", false, false}} {
		t.Run(name, func(t *testing.T) {
			m := newTrusting(t)
			hostile := "tools: [read_file] # \u202egnihton\u200b" + strings.Repeat(" ", 70) + "It allows nothing beyond your own definition.\n" +
				"network: {allow: [a.example]}\n"
			m.write(hostile)
			cmd := m.command("trust", "--dir", m.dir)
			var out bytes.Buffer
			ptmx, tty, err := pty.Open()
			require.NoError(t, err)
			defer ptmx.Close()
			require.NoError(t, pty.Setsize(ptmx, &pty.Winsize{Rows: 24, Cols: 80}))
			cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, &out, tty
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			require.NoError(t, cmd.Start())
			tty.Close()
			defer func() { _ = cmd.Process.Kill() }()
			fd, err := syscall.Dup(int(ptmx.Fd()))
			require.NoError(t, err)
			require.NoError(t, syscall.SetNonblock(fd, true))
			k := &harness.Talk{T: t, R: os.NewFile(uintptr(fd), "ptmx")}
			defer k.R.Close()
			said := k.Expect("> ")
			for _, char := range []string{"\x1b", "\u202e", "\u200b"} {
				assert.NotContains(t, said, char)
			}
			assert.Contains(t, said, `# \u202egnihton\u200b`)
			for line := range strings.Lines(said) {
				line = strings.TrimRight(line, "\r\n")
				assert.LessOrEqual(t, len(line), 80)
				assert.False(t, strings.HasPrefix(line, "It allows nothing"), line)
			}
			assert.Contains(t, said, "It allows beyond your own definition:\r\n  | network: connects to a.example ports 443 80\r\n")
			if test.changes {
				m.write("network: {allow: [evil.example]}\n")
			}
			enter(k, test.answer)
			err = cmd.Wait()
			if test.want {
				require.NoError(t, err)
				assert.Equal(t, hostile, m.trusted())
				assert.Contains(t, out.String(), "trusted .scopefs.yaml ")
			} else {
				assert.Equal(t, 1, cmd.ProcessState.ExitCode())
				assert.Empty(t, m.trusted())
			}
		})
	}
}

// TestTrustTeam: an agent that a trusted file names has no service of the user's, whose list matches its id.
func TestTrustTeam(t *testing.T) {
	m := newTrusting(t)
	config := filepath.Join(m.home, ".config", "scopefs")
	require.NoError(t, os.MkdirAll(config, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(config, "scopefs.yaml"), []byte("stores: {services: {grafana: {url: 'https://127.0.0.1:1', agents: ['research-*', research-docs], addresses: [127.0.0.1]}}}\n"), 0o600))
	for _, name := range []string{config, filepath.Dir(config), filepath.Join(config, "scopefs.yaml")} {
		require.NoError(t, os.Chown(name, trustUser, trustUser))
	}
	text := "agents: {research-docs: {prompt: You write docs.}}\n"
	m.write(text)
	sum := sha256.Sum256([]byte(text))
	o := m.as("trust", "--yes", "--hash", hex.EncodeToString(sum[:]), "--dir", m.dir)
	require.Zero(t, o.Code, o.Stderr)
	o = m.as("call", "http_request", "service=grafana", "path=x", "--dir", m.dir, "--agent", "research-docs")
	assert.NotZero(t, o.Code)
	assert.Contains(t, o.Stderr, `there is no service \"grafana\" here`)
}

// TestTrustForeign: what a repository's file does to its parser ends with scopefs-yaml. While that does not work, nothing of the file is
// shown as understood or trusted, and an agent with a trusted file does not start by the user's keys alone.
func TestTrustForeign(t *testing.T) {
	m := newTrusting(t)
	installed := filepath.Join(m.Base, "bin")
	require.NoError(t, os.Mkdir(installed, 0o755))
	programs, err := filepath.Glob(harness.Program + "*")
	require.NoError(t, err)
	require.NoError(t, exec.Command("cp", append(programs, installed)...).Run())
	defer func(program string) { harness.Program = program }(harness.Program)
	harness.Program = filepath.Join(installed, filepath.Base(harness.Program))
	parser := filepath.Join(installed, "scopefs-yaml")
	whole, err := os.ReadFile(parser)
	require.NoError(t, err)
	replace := func(program []byte) {
		require.NoError(t, os.WriteFile(parser+".new", program, 0o755))
		require.NoError(t, os.Rename(parser+".new", parser))
	}
	text := "tools: [read_file]\n"
	m.write(text)
	sum := sha256.Sum256([]byte(text))
	trust := []string{"trust", "--yes", "--hash", hex.EncodeToString(sum[:]), "--dir", m.dir}
	for program, want := range map[string]string{
		"false": "scopefs-yaml has not parsed it: exit status 1",
		"true":  "scopefs-yaml: its answer is no canonical form of YAML",
	} {
		other, err := os.ReadFile(need.Program(t, program))
		require.NoError(t, err)
		replace(other)
		o := m.as(trust...)
		assert.Equal(t, 1, o.Code, o.Stderr)
		assert.Contains(t, o.Stderr, want)
		assert.Empty(t, m.trusted())
		o = m.as("run", "--dir", m.dir, "--", "echo", "by its own definition")
		assert.Zero(t, o.Code, o.Stderr)
		assert.Equal(t, "by its own definition\n", o.Stdout)
	}
	replace(whole)
	o := m.as(trust...)
	require.Zero(t, o.Code, o.Stderr)
	require.Equal(t, text, m.trusted())
	require.Zero(t, m.as("run", "--dir", m.dir, "--", "true").Code)
	require.NoError(t, os.Remove(parser))
	o = m.as("run", "--dir", m.dir, "--", "echo", "not by its own definition alone")
	assert.NotZero(t, o.Code)
	assert.Empty(t, o.Stdout)
	assert.Contains(t, o.Stderr, "scopefs-yaml is not installed beside scopefs")
}
