package cli

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// TestReadme runs the commands of README.md in its order, in one shell, in a copy
// of the sources, and compares what they print with what README.md says. Times,
// process ids and call ids differ between runs, and so does the order in which
// a command's standard output and standard error arrive.
//
// It needs no root: `scopefs run` mounts a view in a user namespace.
func TestReadme(t *testing.T) {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		need.Skip(t, err)
	}
	f.Close()
	dir := t.TempDir()
	for _, name := range []string{"Makefile", "go.mod", "go.sum", "README.md"} {
		text, err := os.ReadFile(filepath.Join("../..", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
	for _, name := range []string{"audit", "cmd", "fs", "internal", "scope", "tools"} {
		if _, err := os.Stat(filepath.Join("../..", name)); err == nil {
			require.NoError(t, os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join("../..", name))))
		}
	}
	commands := readmeCommands(t, filepath.Join(dir, "README.md"))
	require.GreaterOrEqual(t, len(commands), 8)

	var script strings.Builder
	for _, c := range commands {
		script.WriteString(c.line + "\nprintf '%s\\n' '" + readmeMark + "'\n")
	}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	shell := exec.CommandContext(ctx, "bash", "-c", "exec 2>&1\n"+script.String())
	shell.Dir = dir
	shell.Env = append(os.Environ(), "XDG_STATE_HOME="+filepath.Join(dir, "state-home"))
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
		assert.Equal(t, readmeLines(strings.Join(c.output, "\n")), readmeLines(printed[i]), c.line)
	}
}

const readmeMark = "--- end of a command of README.md ---"

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
	regexp.MustCompile(`\b(hello)-[0-9a-f]{16}\b`),
	regexp.MustCompile(`\b(call) [a-z0-9]{13}\b`),
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
