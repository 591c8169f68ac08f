package cli

import (
	"bytes"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

const ctrlC, ctrlZ = "\x03", "\x1a"

// stop types Ctrl-Z, and waits until the shell has the terminal again, as it was.
func (s *jobs) stop(job string) {
	s.Talk.T.Helper()
	enter(s.Talk, ctrlZ)
	s.stopped(job)
	s.usable()
}

// stopped waits for the shell's line about a job, and the prompt.
func (s *jobs) stopped(job string) {
	s.Talk.T.Helper()
	s.Expect("Stopped")
	assert.Contains(s.Talk.T, s.Expect("\r\n"), job)
	s.Expect(prompt)
	assert.Contains(s.Talk.T, s.do("echo st''atus=$?"), "status=148")
}

// resume types fg, and waits until the job has the terminal.
func (s *jobs) resume() {
	s.Talk.T.Helper()
	s.line("fg")
	s.Eventually("the job has the terminal", s.raw)
}

// TestRunStops: Ctrl-Z stops a command on a terminal and run with it, and fg continues both.
func TestRunStops(t *testing.T) {
	t.Parallel()
	ways := map[string]*harness.Way{
		"daemon": {Host: harness.NewHost(t, map[string]string{"a": ""}), Tmp: t.TempDir()},
		"alone":  harness.Embed(t, 0, map[string]string{"a": ""}),
		"user":   harness.Embed(t, 1234, map[string]string{"a": ""}),
	}
	for way, m := range ways {
		t.Run(way, func(t *testing.T) {
			s := startJobs(t, m)
			s.line(`$S run a -- sh -c 'echo be""gun 98.1; while read x; do echo "got <$x>"; stty size; done'`)
			s.Expect("begun")
			inside := m.Sandboxed("begun 98.1")
			s.Expect("98.1")
			for _, rows := range []uint16{40, 50} {
				s.stop("run a")
				s.Eventually("stopped inside", func() bool { return inside == 0 || harness.StateOf(inside) == 'T' })
				s.resize(rows, 100)
				s.resume()
				enter(s.Talk, "word\r")
				s.Expect("got <word>")
				s.Expect(map[uint16]string{40: "40 100", 50: "50 100"}[rows])
			}
			enter(s.Talk, ctrlC)
			s.Expect(prompt)
			assert.Contains(t, s.do("echo st''atus=$?"), "status=130")
			s.usable()

			// In the background it goes on.
			s.line(`$S run a -- sh -c 'echo be""gun; read x; echo "got <$x>"; exit 7'`)
			s.Expect("begun")
			s.stop("run a")
			s.do("bg")
			s.usable()
			s.resume()
			enter(s.Talk, "word\r")
			s.Expect("got <word>")
			s.Expect(prompt)
			assert.Contains(t, s.do("echo st''atus=$?"), "status=7")

			// The script that has started it stops too, and a pipeline inside.
			s.line(`sh -c '$S run a -- sh -c "echo be\"\"gun; cat | cat"; exit 8'`)
			s.Expect("begun")
			s.stop("sh -c")
			s.resume()
			enter(s.Talk, "word\r")
			s.Expect("word\r\nword")
			s.stop("sh -c")
			s.resume()
			enter(s.Talk, "\x04")
			s.Expect(prompt)
			assert.Contains(t, s.do("echo st''atus=$?"), "status=8")
			s.usable()
		})
	}
}

// TestRunStopForms: what stops and what does not.
func TestRunStopForms(t *testing.T) {
	t.Parallel()
	m := harness.Embed(t, 0, map[string]string{"a": ""})
	forms := map[string]func(t *testing.T, s *jobs){
		"a shell inside": func(t *testing.T, s *jobs) {
			s.line(`$S run a -- bash --norc -i`)
			s.Expect("bash-")
			s.line("echo in''side; sleep 100.31")
			s.Expect("inside\r\n")
			s.Eventually("sleep runs", func() bool { return m.Sandboxed("100.31") != 0 })
			enter(s.Talk, ctrlZ) // for the shell inside
			s.Expect("Stopped")
			s.line("suspend")
			s.stopped("run a")
			s.usable()
			s.resume()
			s.line("echo ag''ain; jobs; exit; exit")
			s.Expect("again")
			s.Expect("sleep 100.31")
			s.Expect(prompt)
			s.usable()
		},
		"ignored": func(t *testing.T, s *jobs) {
			s.line(`$S run a -- sh -c 'trap "" TSTP; echo be""gun; read x; echo "got <$x>"; kill -STOP $$; echo a""gain'`)
			s.Expect("begun")
			enter(s.Talk, ctrlZ+"word\r")
			s.Expect("got <word>") // then it stops itself
			s.stopped("run a")
			s.line("fg")
			s.Expect("again")
			s.Expect(prompt)
		},
		"a program that draws": func(t *testing.T, s *jobs) {
			need.Program(t, "less")
			s.do("export TERM=xterm")
			s.line(`$S run a -- less /etc/passwd`)
			s.Expect("\x1b[?1049h")
			s.Expect("root:")
			s.Eventually("it reads keys", func() bool { return harness.StateOf(m.Sandboxed("/etc/passwd")) == 'S' }) // less may miss a signal before
			enter(s.Talk, ctrlZ)
			s.Expect("\x1b[?1049l") // before the shell says anything
			s.stopped("run a")
			s.usable()
			s.resume()
			s.Expect("\x1b[?1049h")
			enter(s.Talk, "q")
			s.Expect("\x1b[?1049l")
			s.Expect(prompt)
			s.usable()
		},
		"an editor": func(t *testing.T, s *jobs) {
			need.Program(t, "vim")
			s.do("export TERM=xterm")
			s.line(`$S run a -- vim -u NONE --not-a-term notes`)
			s.Expect("\x1b[?1049h")
			enter(s.Talk, "ihello\x1b"+ctrlZ)
			s.Expect("\x1b[?1049l")
			s.stopped("run a")
			s.usable()
			s.resume()
			s.Expect("hello")
			s.line(":wq")
			s.Expect(prompt)
			s.usable()
			text, err := os.ReadFile(m.Scope("a", "notes"))
			require.NoError(t, err)
			assert.Equal(t, "hello\n", string(text))
		},
		"readline": func(t *testing.T, s *jobs) {
			need.Program(t, "python3")
			s.line(`$S run a -- python3 -c 'import readline; print("got", input("as" "k>"))'`)
			s.Expect("ask>")
			s.stop("run a")
			s.resume()
			s.line("word")
			s.Expect("got word")
			s.Expect(prompt)
			s.usable()
		},
		"stopped from outside": func(t *testing.T, s *jobs) {
			pid := s.begin(`$S run a -- sh -c 'echo be""gun; read x; echo "got <$x>"'`)
			s.fg(pid, true)
			require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP)) // run learns nothing of it, and cannot restore the terminal
			s.Expect("Stopped")
			s.Expect(prompt)
			s.usable()
			s.resume()
			s.line("word")
			s.Expect("got <word>")
			s.Expect(prompt)
			s.usable()
		},
		"stopped by a signal": func(t *testing.T, s *jobs) {
			pid := s.begin(`$S run a -- sh -c 'echo be""gun; read x; echo "got <$x>"'`)
			for range 2 {
				s.fg(pid, true)
				require.NoError(t, syscall.Kill(pid, syscall.SIGTSTP))
				s.stopped("run a")
				s.usable()
			}
			s.resume() // and does not stop once more, although the command has said that it has
			s.line("word")
			s.Expect("got <word>")
			s.Expect(prompt)
		},
		"killed while it is stopped": func(t *testing.T, s *jobs) {
			s.line(`$S run a -- sh -c 'echo be""gun; exec sleep 100.32'`)
			s.Expect("begun")
			s.stop("run a")
			assert.Contains(t, s.do("kill %%1; wait %%1; echo st''atus=$?"), "status=143") // kill continues it
			s.usable()
			assert.Zero(t, m.Sandboxed("100.32"))
		},
	}
	for name, form := range forms {
		t.Run(name, func(t *testing.T) { form(t, startJobs(t, m)) })
	}
}

// TestRunStopsNobody: where nobody could continue run, Ctrl-Z stops nothing for long, as the kernel has it for any program.
func TestRunStopsNobody(t *testing.T) {
	t.Parallel()
	m := harness.Embed(t, 0, map[string]string{"a": ""})
	cmd, _, k := onTerminal(t, m, "a", "--", "sh", "-c", "echo begun; read x; echo got $x; read y; exit 5")
	k.Expect("begun")
	enter(k, ctrlZ)
	enter(k, "word\r")
	k.Expect("got word")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTSTP))
	enter(k, "word\r")
	assert.Equal(t, 5, harness.Await(t, cmd, &bytes.Buffer{}, &bytes.Buffer{}).Code)
}

// TestRunStopHangUp: the end of the terminal ends a run that is stopped, and all of it.
func TestRunStopHangUp(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]*harness.Way{
		"daemon": {Host: harness.NewHost(t, map[string]string{"a": ""}), Tmp: t.TempDir()},
		"alone":  harness.Embed(t, 0, map[string]string{"a": ""}),
	} {
		t.Run(name, func(t *testing.T) {
			s := startJobs(t, m)
			s.line(`$S run a -- bash --norc -i`)
			s.Expect("bash-")
			s.line("sleep 100.33 & sleep 100.34 | cat")
			s.Eventually("sleep runs", func() bool { return m.Sandboxed("100.34") != 0 })
			enter(s.Talk, ctrlZ)
			s.Expect("Stopped")
			s.line("suspend")
			s.stopped("run a")
			s.R.Close()
			s.ptmx.Close()
			s.Eventually("nothing is left", func() bool {
				return m.Sandboxed("100.33") == 0 && m.Sandboxed("100.34") == 0 && len(harness.Running("run", "a", "--", "bash", "--norc", "-i")) == 0
			})
		})
	}
}

// TestRunLeavesTerminal: what a command does to its terminal, and to the user's by control sequences, does not outlive the run, nor a stop.
func TestRunLeavesTerminal(t *testing.T) {
	t.Parallel()
	m := harness.Embed(t, 0, map[string]string{"a": ""})
	s := startJobs(t, m)
	for _, end := range []string{"exit 0", "kill -9 $$"} {
		s.line(`$S run a -- sh -c 'stty raw -echo; printf "\033[?1003;1006h\033[?25l"; echo be""gun; kill -STOP $$; echo a""gain; %s'`, end)
		s.Expect("begun")
		for range 2 {
			s.Expect("\x1b[?1003l\x1b[?25h")
			if end != "" {
				s.stopped("run a")
				s.usable()
				s.line("fg")
				s.Expect("\x1b[?1003h\x1b[?25l")
				s.Expect("again")
			}
			end = ""
		}
		s.Expect(prompt)
		s.usable()
	}
}
