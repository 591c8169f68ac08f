package cli

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestReadme runs the commands of README.md in its order, in one shell, in a copy
// of the sources, and compares what they print with what README.md says. Times,
// process ids and call ids differ between runs, and so does the order in which
// a command's standard output and standard error arrive.
//
// It needs no root: `scopefs run` mounts a view in a user namespace.
func TestReadme(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "integration"), 0o755))
	for _, name := range []string{"Makefile", "go.mod", "go.sum", "go.work", "go.work.sum", "integration/go.mod", "integration/go.sum"} {
		text, err := os.ReadFile(filepath.Join("../..", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
	for _, name := range []string{"audit", "cmd", "fs", "internal", "packaging", "scope", "tools"} {
		if _, err := os.Stat(filepath.Join("../..", name)); err == nil {
			require.NoError(t, os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join("../..", name))))
		}
	}
	typePage(t, "../../README.md", dir)
}

// TestStart runs the commands of docs/start.md in an empty directory. For root it
// leaves out --user, as the page says.
func TestStart(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", filepath.Dir(harness.Program)+":"+os.Getenv("PATH"))
	typePage(t, "../../docs/start.md", dir)
}

// typePage runs the commands of a page in one shell, which starts in dir.
func typePage(t *testing.T, page, dir string) {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		need.Skip(t, err)
	}
	f.Close()
	commands := readmeCommands(t, page)
	require.GreaterOrEqual(t, len(commands), 7)

	var script strings.Builder
	for _, c := range commands {
		line := strings.Replace(c.line, "make build", "make build OTHERS=", 1) // make test builds those
		if os.Getuid() == 0 {
			line = strings.Replace(line, " --user", "", 1)
		}
		script.WriteString(line + "\n")
		if strings.HasSuffix(line, "& sleep 1") { // a daemon, which takes longer on a busy host
			script.WriteString("until scopefs ps 2>/dev/null | grep -q mounted; do sleep 0.05; done\n")
		}
		script.WriteString("printf '%s\\n' '" + readmeMark + "'\n")
	}
	ctx := t.Context()
	if end, limited := t.Deadline(); limited { // the compiler takes its time on a busy host
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, end.Add(-time.Minute))
		defer stop()
	}
	shell := exec.CommandContext(ctx, "bash", "-c", "exec 2>&1\n"+script.String())
	shell.Dir = dir
	shell.Env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_STATE_HOME="+filepath.Join(dir, "state-home"), "XDG_CONFIG_HOME=")
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH"} { // the compiler's work is not done anew for a new HOME
		value, err := exec.Command("go", "env", name).Output()
		require.NoError(t, err)
		shell.Env = append(shell.Env, name+"="+strings.TrimSpace(string(value)))
	}
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // at the end of ctx the page's daemon ends, too
	shell.Cancel = func() error { return syscall.Kill(-shell.Process.Pid, syscall.SIGTERM) }
	shell.WaitDelay = 5 * time.Second
	out, err := shell.CombinedOutput()
	require.NoError(t, ctx.Err(), "%s", out)
	require.NotNil(t, shell.ProcessState, "%v", err)
	printed := strings.Split(string(out), readmeMark+"\n")
	require.Len(t, printed, len(commands)+1, "%s", out)
	for i, c := range commands {
		if strings.HasPrefix(c.line, "make ") {
			continue // its output is the compiler's
		}
		got := strings.ReplaceAll(printed[i], filepath.Join(dir, "state-home"), "/home/me/.local/state")
		got = strings.ReplaceAll(got, dir, "/home/me")
		assert.Equal(t, readmeLines(strings.Join(c.output, "\n")), readmeLines(got), c.line)
	}
}

const readmeMark = "--- end of a command of the page ---"

// A readmeCommand is a line that begins with a prompt, and the lines below it.
type readmeCommand struct {
	line   string
	output []string
}

func readmeCommands(t *testing.T, file string) (all []readmeCommand) {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	inside := false
	for line := range strings.Lines(string(text)) {
		line, indented := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "    ")
		command, prompt := strings.CutPrefix(line, "$ ")
		switch {
		case indented && prompt:
			all, inside = append(all, readmeCommand{line: command}), true
		case indented && inside:
			last := &all[len(all)-1]
			last.output = append(last.output, line)
		default:
			inside = false
		}
	}
	return all
}

var readmeVaries = []*regexp.Regexp{
	regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+`),
	regexp.MustCompile(`\b(pid) \d+`),
	regexp.MustCompile(`\b(hello|repo)-[0-9a-f]{16}\b`),
	regexp.MustCompile(`\b()[a-z2-7]{13}\b`), // ids of calls and approvals
	regexp.MustCompile(`\b(in) \d+\.\d s\b`),
	regexp.MustCompile(`( |until )\d\d:\d\d:\d\d\b`),
}

// readmeLines returns the lines of an output, sorted, without what differs
// between two runs.
func readmeLines(output string) []string {
	for _, varies := range readmeVaries {
		output = varies.ReplaceAllString(output, "$1")
	}
	lines := strings.Split(strings.TrimSpace(output), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	slices.Sort(lines)
	return lines
}
