package cli

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// afterRun are the commands about what agents do and have done, and what they print of the project one, in it and below it, and of all
// projects elsewhere. A text that begins with 2 is that of bad usage.
var afterRun = []struct{ words, project, outside, running, runningOutside string }{
	{"changes", `^one-\S+, the last session: \d change`, `(?s)^LAST .*scopefs changes --dir \S+/two\n.*1 removed, 2 created: f, sub/ +scopefs changes --dir \S+/one\n$`,
		`^one-\S+, the last session: \d change`, `(?s)/two\n.*/one\n`},
	{"changes --all", `(?s)scopefs changes --dir \S+/two\n.*scopefs changes --dir \S+/one\n`, `(?s)/two\n.*/one\n`, `(?s)/two\n.*/one\n`, `(?s)/two\n.*/one\n`},
	{"undo --session last -n", `^one-\S+, undo, the last session, not done`, `2which agent: .* the last is scopefs changes --dir \S+/two\n$`,
		`^one-\S+, undo, the last session, not done`, `2which agent: .*/two\n$`},
	{"ps", `^nothing runs in \S+/one: scopefs changes has`, `^nothing of yours runs: `, `(?m)^one-\S+ +mounted`, `(?m)^one-\S+ +mounted.* /\S+/one-`},
	{"top --once", `^nothing runs in \S+/one: `, `^nothing of yours runs: `, `agents: 1, sessions: 1,`, `agents: 1, sessions: 1,`},
	{"approvals", `^nothing runs in \S+/one: `, `^nothing of yours runs: `, `^$`, `^$`},
	{"audit", `one-\S+ .*1 removed, 2 created: f, sub/`, `(?s)one-\S+ .*two-\S+ `, `one-\S+ `, `(?s)one-\S+ .*two-\S+ `},
}

// TestAfterRun: what agents have done is listed at any time: in a project, below it and elsewhere, with a daemon and without one.
func TestAfterRun(t *testing.T) {
	t.Parallel()
	p := newProjects(t, "one", "two", "elsewhere")
	harness.Plant(t, filepath.Join(p.Base, "one"), "f")
	session := true
	command := func(at string, words ...string) *exec.Cmd {
		cmd := p.command(at, words...)
		cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return !session && strings.HasPrefix(v, "XDG_RUNTIME_DIR=") })
		return cmd
	}
	all := func(running bool) {
		for _, c := range afterRun {
			for _, at := range []string{"one", "one/sub", "elsewhere"} {
				want := c.project
				switch outside := at == "elsewhere"; {
				case outside && running:
					want = c.runningOutside
				case outside:
					want = c.outside
				case running:
					want = c.running
				}
				o := harness.Finish(t, command(at, strings.Fields(c.words)...))
				text, usage := strings.CutPrefix(want, "2")
				if usage {
					assert.Equal(t, 2, o.Code, "%s in %s", c.words, at)
					assert.Regexp(t, text, o.Stderr, "%s in %s", c.words, at)
					continue
				}
				assert.Zero(t, o.Code, "%s in %s: %s", c.words, at, o.Stderr)
				assert.Regexp(t, text, o.Stdout, "%s in %s: %s", c.words, at, o.Stderr)
			}
		}
	}
	session = false // of a login: no daemon stays
	o := harness.Finish(t, command("elsewhere", "changes"))
	assert.Regexp(t, `^no agent of yours has changed anything: `, o.Stdout, o.Stderr)
	require.Zero(t, harness.Finish(t, command("one", "run", "--dir", ".", "--", "sh", "-c", "rm f; mkdir sub; echo 1 >sub/new")).Code)
	require.Zero(t, harness.Finish(t, command("two", "run", "--dir", ".", "--", "sh", "-c", "echo 1 >new")).Code)
	all(false)
	var list []struct{ Dir, Lists string }
	o = harness.Finish(t, command("elsewhere", "changes", "--json"))
	require.NoError(t, json.Unmarshal([]byte(o.Stdout), &list), o.Stdout)
	require.Len(t, list, 2)
	assert.Equal(t, filepath.Join(p.Base, "two"), list[0].Dir)

	cmd := command("elsewhere", "console")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	link, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	r, err := http.Get(strings.TrimSpace(link))
	require.NoError(t, err)
	r.Body.Close()
	assert.Equal(t, http.StatusOK, r.StatusCode)
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	assert.NoError(t, cmd.Wait())
	assert.Contains(t, errs.String(), "this is about "+filepath.Join(p.Base, "two")+": --dir names another project")

	session = true
	s := p.begin("one")
	all(true)
	assert.Zero(t, p.finish("one", s))
}
