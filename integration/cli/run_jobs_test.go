package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// jobs is an interactive bash on a terminal of 90 by 30. $S is the program on a base.
type jobs struct {
	*harness.Talk
	*harness.Way
	ptmx  *os.File
	modes string // of the terminal, as stty -g prints them
}

const prompt = "PROMPT>"

// modes are what stty -g prints.
var modes = regexp.MustCompile(`[0-9a-f]+(:[0-9a-f]+){20,}`)

func startJobs(t *testing.T, m *harness.Way) *jobs {
	t.Helper()
	need.Program(t, "bash")
	shell := []string{"bash", "--norc", "--noprofile", "-i"}
	cmd := exec.Command(shell[0], shell[1:]...)
	if m.User != 0 {
		cmd = harness.AsUser(t, m.User, shell...)
	}
	cmd.Env = append(m.Command().Env, "PS1="+prompt, "TERM=dumb", "HISTFILE=", "INPUTRC=/dev/null", "S="+harness.Program+" --base "+m.Base)
	s := &jobs{Way: m}
	s.ptmx, s.Talk = harness.OnTerminal(t, cmd, 30, 90)
	s.Expect(prompt)
	s.modes = modes.FindString(s.do("stty -g"))
	require.NotEmpty(t, s.modes)
	return s
}

// line types a line. Texts that a test expects are divided by quotes there, so that the echo does not have them.
func (s *jobs) line(format string, args ...any) {
	s.Talk.T.Helper()
	enter(s.Talk, fmt.Sprintf(format, args...)+"\r")
}

// do types a line and returns what the terminal shows up to the next prompt.
func (s *jobs) do(format string, args ...any) string {
	s.Talk.T.Helper()
	s.line(format, args...)
	return s.Expect(prompt)
}

// begin starts a job in the background, and returns its process when it has printed "begun".
func (s *jobs) begin(format string, args ...any) (pid int) {
	s.Talk.T.Helper()
	s.line(format+` & echo "pi""d=$!."`, args...)
	before := s.Expect("pid=")
	pid, err := strconv.Atoi(s.Expect("."))
	require.NoError(s.Talk.T, err)
	if !strings.Contains(before, "begun") {
		s.Expect("begun")
	}
	return pid
}

// usable checks that the shell has the terminal: its keys, and its modes.
func (s *jobs) usable() {
	s.Talk.T.Helper()
	s.line("")
	for i := range 5 {
		s.line("echo he''re%d", i)
		s.Expect(fmt.Sprintf("here%d", i))
		s.Expect(prompt)
	}
	assert.Equal(s.Talk.T, s.modes, modes.FindString(s.do("stty -g")))
}

// fg brings a job to the foreground, and waits until it has the terminal.
func (s *jobs) fg(pid int, raw bool) {
	s.Talk.T.Helper()
	s.line("fg")
	s.Eventually("the job has the terminal", func() bool {
		group := 0
		s.control(func(fd int) (err error) { group, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP); return err })
		return group == pid && s.raw() == raw
	})
}

// resize sets the size of the terminal.
func (s *jobs) resize(rows, cols uint16) {
	s.Talk.T.Helper()
	s.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}

// raw reports whether the terminal is in raw mode. It is not while bash reads a line.
func (s *jobs) raw() bool {
	var modes *unix.Termios
	s.control(func(fd int) (err error) { modes, err = unix.IoctlGetTermios(fd, unix.TCGETS); return err })
	return modes.Lflag&unix.ISIG == 0
}

// control calls f with the terminal's descriptor. Fd would make the reads of Talk block.
func (s *jobs) control(f func(fd int) error) {
	s.Talk.T.Helper()
	conn, err := s.ptmx.SyscallConn()
	require.NoError(s.Talk.T, err)
	require.NoError(s.Talk.T, conn.Control(func(fd uintptr) { err = f(int(fd)) }))
	require.NoError(s.Talk.T, err)
}

// TestRunJobs: a run in the background of an interactive shell does not stop, leaves the terminal to the shell, and has the
// terminal's input, modes and size in the foreground, also when fg brings it there.
func TestRunJobs(t *testing.T) {
	t.Parallel()
	ways := map[string]*harness.Way{
		"daemon": {Host: harness.NewHost(t, map[string]string{"a": ""}), Tmp: t.TempDir()},
		"alone":  harness.Embed(t, 0, map[string]string{"a": ""}),
	}
	const reads = `read x; echo "got <$x>"; exit 7`
	for way, m := range ways {
		for _, flag := range []string{"", "-T"} {
			for _, from := range []string{"", "</dev/null"} {
				tty := flag == "" && from == ""
				word, want := "", "got <>"
				if from == "" {
					word, want = "word\r", "got <word>"
				}
				name := fmt.Sprintf("%s %s%s ", way, flag, from)
				t.Run(name+"foreground", func(t *testing.T) {
					s := startJobs(t, m)
					s.line(`$S run %s a -- sh -c 'echo be""gun; %s' %s`, flag, reads, from)
					s.Expect("begun")
					assert.Equal(t, tty, s.raw())
					enter(s.Talk, word)
					s.Expect(want)
					s.Expect(prompt)
					assert.Contains(t, s.do("echo st''atus=$?"), "status=7")
					s.usable()
				})
				t.Run(name+"background", func(t *testing.T) {
					s := startJobs(t, m)
					s.line(`$S run %s a -- sh -c 'echo be""gun; exit 7' %s & wait $!; echo st""atus=$?`, flag, from)
					s.Expect("begun")
					s.Expect("status=")
					assert.Equal(t, "7", s.Expect("\r\n"))
					s.Expect(prompt)
					s.usable()
				})
				t.Run(name+"background, then fg", func(t *testing.T) {
					s := startJobs(t, m)
					pid := s.begin(`$S run %s a -- sh -c 'echo be""gun; until test -e go; do sleep .05; done; echo go""es; stty size; %s' %s`, flag, reads, from)
					t.Cleanup(func() { _ = os.Remove(m.Scope("a", "go")) })
					s.usable()
					assert.NotContains(t, "Tt", string(harness.StateOf(pid)))
					s.resize(40, 100)
					s.fg(pid, tty)
					require.NoError(t, os.WriteFile(m.Scope("a", "go"), nil, 0o644))
					s.Expect("goes")
					if tty {
						s.Expect("40 100")
					}
					enter(s.Talk, word)
					s.Expect(want)
					s.Expect(prompt)
					assert.Contains(t, s.do("echo st''atus=$?"), "status=7")
					s.usable()
				})
			}
		}
	}
}

// TestRunJobForms: a run ends in the background whatever has started it there.
func TestRunJobForms(t *testing.T) {
	t.Parallel()
	need.Program(t, "make")
	m := &harness.Way{Host: harness.NewHost(t, map[string]string{"a": ""}), Tmp: t.TempDir()}
	makefile := filepath.Join(t.TempDir(), "Makefile")
	require.NoError(t, os.WriteFile(makefile, []byte("all:\n\t@$(S) run $(FLAG) a -- echo said\n"), 0o644))
	for name, line := range map[string]string{
		"loop":                           `for i in 1 2 3; do $S run $FLAG a -- echo sa""id; done & wait $!`,
		"loop in the foreground":         `for i in 1 2 3; do $S run $FLAG a -- echo sa""id; done`,
		"loop that a command feeds":      `while read i; do $S run $FLAG a -- echo sa""id </dev/tty; done < <(seq 3) & wait $!`,
		"make":                           `make -f ` + makefile + ` & wait $!`,
		"make in the foreground":         `make -f ` + makefile,
		"substitution":                   `{ x=$($S run $FLAG a -- echo sa""id); echo "$x"; } & wait $!`,
		"substitution in the foreground": `x=$($S run $FLAG a -- echo sa""id); echo "$x"`,
		"subshell":                       `( $S run $FLAG a -- echo sa""id ) & wait $!`,
		"pipeline":                       `$S run $FLAG a -- echo sa""id | cat & wait $!`,
		"end of a pipeline":              `echo sa""id | $S run $FLAG a -- cat & wait $!`,
		"a shell with set -m":            `bash -c 'set -m; $S run $FLAG a -- echo sa""id & wait $!'`,
		"a terminal with tostop":         `stty tostop; $S run $FLAG a -- echo sa""id & wait $!; stty -tostop; (exit $?)`,
	} {
		for _, flag := range []string{"-T", "-t"} {
			t.Run(name+" "+flag, func(t *testing.T) {
				s := startJobs(t, m)
				s.do("export FLAG=%s", flag)
				s.line(`%s; echo st""atus=$?`, line)
				s.Expect("said")
				s.Expect("status=")
				assert.Equal(t, "0", s.Expect("\r\n"))
				s.Expect(prompt)
				s.usable()
			})
		}
	}
}

// TestRunJobStopped: a run that was stopped goes on in the background, and gets the terminal again by fg.
func TestRunJobStopped(t *testing.T) {
	t.Parallel()
	m := &harness.Way{Host: harness.NewHost(t, map[string]string{"a": ""}), Tmp: t.TempDir()}
	for _, flag := range []string{"", "-T"} {
		t.Run(flag, func(t *testing.T) {
			s := startJobs(t, m)
			pid := s.begin(`$S run %s a -- sh -c 'echo be""gun; read x; echo "got <$x>"; read y; exit 7'`, flag)
			for range 2 {
				s.fg(pid, flag == "")
				if flag == "-T" {
					enter(s.Talk, "\x1a")
				} else {
					require.NoError(t, syscall.Kill(pid, syscall.SIGTSTP)) // ^Z is the command's
				}
				s.Expect("Stopped")
				s.Expect(prompt)
				assert.Equal(t, "T", string(harness.StateOf(pid)))
				s.usable()
				s.do("bg")
				m.Eventually("it goes on", func() bool { return harness.StateOf(pid) != 'T' })
				s.usable()
				assert.NotEqual(t, "T", string(harness.StateOf(pid)))
			}
			s.fg(pid, flag == "")
			enter(s.Talk, "word\r")
			s.Expect("got <word>")
			require.NoError(t, syscall.Kill(pid, syscall.SIGTSTP))
			s.Expect("Stopped")
			s.Expect(prompt)
			s.line("bg")
			s.usable()
			s.do("kill %%1; wait %%1")
			s.usable()
		})
	}
}

// TestRunJobAsks: a question of a run in the background waits for the foreground, and a line says so.
func TestRunJobAsks(t *testing.T) {
	t.Parallel()
	need.Program(t, "curl")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello\n") }))
	defer server.Close()
	m := harness.Embed(t, 0, map[string]string{"a": fmt.Sprintf("network: {ask: [{host: once.test, ports: [80], address: '%s'}]}", server.Listener.Addr())})
	s := startJobs(t, m)
	pid := s.begin(`$S run a -- sh -c 'echo be""gun; curl -sS --max-time 60 http://once.test'`)
	s.Expect("scopefs: a question waits: bring the run to the foreground")
	s.usable()
	s.fg(pid, true)
	_, code := question(s.Talk)
	answer(s.Talk, m.Host, "o"+code)
	s.Expect("hello")
	s.Expect(prompt)
	s.usable()
}

// TestQuestionJobs: in the background nothing asks, and what watches goes on; fg gives it the keys.
func TestQuestionJobs(t *testing.T) {
	t.Parallel()
	m := &harness.Way{Host: harness.NewHost(t, map[string]string{"a": ""}), Tmp: t.TempDir()}
	presets, trust := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(presets, "go.mod"), []byte("module x\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(trust, ".scopefs.yaml"), []byte("tools: [read_file]\n"), 0o644))
	state := "env -u XDG_RUNTIME_DIR XDG_STATE_HOME=" + t.TempDir() + " " + harness.Program + " "
	for name, c := range map[string]struct{ line, want string }{
		"allow":                {`$S allow proxy.golang.org --agent a`, "give --yes"},
		"run in a new project": {state + `run --dir ` + presets + ` -- echo sa""id`, "said"},
		"trust":                {state + `trust --dir ` + trust, "give --yes"},
		"call":                 {`$S call --agent a --list`, "read_file"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startJobs(t, m)
			s.line(`%s & wait $!; echo st""atus=$?`, c.line)
			s.Expect(c.want)
			s.Expect("status=")
			s.Expect(prompt)
			s.usable()
		})
	}
	for name, line := range map[string]string{"watch": "approvals watch", "top": "top"} {
		t.Run(name, func(t *testing.T) {
			s := startJobs(t, m)
			s.do("TERM=xterm")
			pid := s.begin(`{ echo be""gun; exec $S %s; }`, line)
			m.Eventually("it runs", func() bool {
				return len(harness.Running(append([]string{"--base", m.Base}, strings.Fields(line)...)...)) > 0
			})
			s.usable()
			assert.NotEqual(t, "T", string(harness.StateOf(pid)))
			s.fg(pid, true)
			if name == "top" {
				s.Expect("wait for approval")
			}
			enter(s.Talk, "q")
			s.Expect(prompt)
			s.usable()
		})
	}
}

// TestRunIgnoresNothing: a command stops in the background of the sandbox's terminal also where run ignores what stops it.
func TestRunIgnoresNothing(t *testing.T) {
	t.Parallel()
	m := harness.Embed(t, 0, map[string]string{"a": ""})
	cmd := exec.Command("sh", "-c", `trap '' TTIN TTOU; exec $S run a -- sed -n 's/SigIgn://p' /proc/self/status`)
	cmd.Env = append(m.Command().Env, "S="+harness.Program+" --base "+m.Base)
	o := harness.Finish(t, cmd)
	ignored, err := strconv.ParseUint(strings.TrimSpace(o.Stdout), 16, 64)
	require.NoError(t, err, o.Stderr)
	assert.Zero(t, ignored&(1<<(unix.SIGTTIN-1)|1<<(unix.SIGTTOU-1)))
}
