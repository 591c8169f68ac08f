package cli

import (
	"bufio"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestConsoleAlone: in a project scopefs console serves without a daemon, beside other commands, and leaves nothing running.
func TestConsoleAlone(t *testing.T) {
	p := newProjects(t, "one")
	command := func(args ...string) *exec.Cmd {
		cmd := p.command("one", args...)
		cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "XDG_RUNTIME_DIR=") }) // no login session, so no daemon
		return cmd
	}
	require.Zero(t, harness.Finish(t, command("run", "--dir", ".", "--", "true")).Code)
	cmd := command("console")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	link, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	r, err := http.Get(strings.TrimSpace(link))
	require.NoError(t, err)
	page, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	assert.Contains(t, string(page), "<title>scopefs console</title>")
	r.Body.Close()
	o := harness.Finish(t, command("run", "--dir", ".", "--", "sh", "-c", "echo 1 >made"))
	require.Zero(t, o.Code, o.Stderr)
	assert.NotContains(t, o.Stderr, "not kept", "the console has no view")
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	assert.NoError(t, cmd.Wait())

	cmd = command("console", "pair")
	ptmx, k := harness.OnTerminal(t, cmd, 60, 200)
	k.Expect("serves this until Ctrl-C")
	_, err = ptmx.WriteString("\x03")
	require.NoError(t, err)
	k.Drain()
	assert.NoError(t, cmd.Wait())
	assert.Empty(t, p.processes(daemonOf))
}
