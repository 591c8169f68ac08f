package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestRunEnv: a command has the variables of scopefs.yaml, of the definition, of the
// files and of the flags; the later ones win. Only the words of the user's own command
// line are in a list of arguments.
func TestRunEnv(t *testing.T) {
	const secret = "sesame-4713"
	held := "held-" + harness.Seconds(4)
	t.Setenv("HELD", secret+"-held")
	t.Setenv("TERM", "xterm")
	h := harness.LayOut(t, map[string]string{"a": "env: {B: agent, C: agent, D: agent, KEY: '${HELD}'}", "b": ""})
	h.Put("scopefs.yaml", "sandbox: {env: {A: host, B: host}}\n")
	h.Put("variables", "# comment\n\n  C=of a \"file\" \r\nD=file\nHELD\nEMPTY=\n")
	h.Start()
	words := []string{"-e", "D=flag=1", "--env-file", h.Base + "/variables", "-e", "HOLD=" + held, "-e", "TERM=dumb"}
	run := func(script string) string {
		return h.Must(append(append([]string{"run"}, words...), "a", "--", "sh", "-c", script)...)
	}
	assert.Equal(t, "host|agent|of a \"file\" |flag=1|"+secret+"-held|"+secret+"-held||dumb\n", run(`echo "$A|$B|$C|$D|$KEY|$HELD|$EMPTY|$TERM"`))
	assert.Equal(t, "host host\n", h.Must("run", "b", "--", "sh", "-c", "echo $A $B $KEY"))
	assert.Equal(t, "agent", h.Connect("a").Bash("echo $B"), "tools have them as well")

	// While the command runs, with what it was started by.
	for range 2 {
		cmd := exec.Command(harness.Program, append(append([]string{"--base", h.Base, "run", "-T"}, words...), "a", "--", "sh", "-c", "echo started; read line; true")...)
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = out.Read(make([]byte, 8))
		require.NoError(t, err)
		lists, err := filepath.Glob("/proc/[0-9]*/cmdline")
		require.NoError(t, err)
		seen := 0
		for _, list := range lists {
			text, _ := os.ReadFile(list)
			assert.NotContains(t, string(text), secret, list)
			seen += strings.Count(string(text), held)
		}
		assert.Equal(t, 1, seen, "the flag of the command line, and no other process")
		in.Close()
		require.NoError(t, cmd.Wait())
		h.Stop() // then without a daemon
	}
	log, err := exec.Command("grep", "-rc", secret, h.Base+"/state").CombinedOutput()
	assert.Error(t, err, "nothing is recorded: %s", log)
	assert.NotContains(t, h.Must("agents", "show", "a"), secret)
}
