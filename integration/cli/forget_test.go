package cli

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestForget: forget shows and removes all that a base keeps of an agent or a project, but the log, which has the event. It removes
// nothing that is in use, and nothing without consent.
func TestForget(t *testing.T) {
	const uid = 1234
	m := harness.Embed(t, uid, nil)
	state := filepath.Join(m.Base, "agents", "state")
	dir := filepath.Join(m.Base, "hello")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.Chown(dir, uid, uid))
	command := func(args ...string) *exec.Cmd {
		cmd := harness.AsUser(t, uid, append([]string{harness.Program}, args...)...)
		cmd.Env = append(cmd.Env, "TMPDIR="+m.Tmp, "HOME="+filepath.Join(m.Base, "agents"), "XDG_STATE_HOME="+state, "SCOPEFS_BASE=")
		return cmd
	}
	scopefs := func(args ...string) harness.Outcome { return harness.Finish(t, command(args...)) }
	o := scopefs("run", "-q", "--dir", dir, "--", "sh", "-c", "echo 1 >f; rm f; echo >u; mkdir -p ~/go/pkg/x; echo >~/go/pkg/x/y; chmod 555 ~/go/pkg/x ~/go/pkg; echo >.env; true")
	require.Zero(t, o.Code, o.Stderr)
	o = scopefs("undo", "--dir", dir, "--session", "last")
	require.Zero(t, o.Code, o.Stderr)

	running := command("run", "-q", "--dir", dir, "--", "sh", "-c", "echo on; read x")
	stdin, err := running.StdinPipe()
	require.NoError(t, err)
	stdout, err := running.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, running.Start())
	_, err = stdout.Read(make([]byte, 3))
	require.NoError(t, err)
	o = scopefs("forget", "hello", "--yes")
	assert.NotZero(t, o.Code)
	assert.Contains(t, o.Stderr, "end it")
	require.NoError(t, stdin.Close())
	_ = running.Wait() // read(1) has failed

	// What an earlier directory has left goes with it.
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.Chown(dir, uid, uid))
	o = scopefs("run", "-q", "--dir", dir, "--", "touch", "stays")
	require.Zero(t, o.Code, o.Stderr)
	o = scopefs("forget", dir)
	assert.Equal(t, 2, o.Code)
	assert.Contains(t, o.Stdout, "/history\n")
	require.NotEmpty(t, kept(t, state))
	o = scopefs("audit", "--all", "--denied")
	assert.Contains(t, o.Stderr, "scopefs why N --dir DIR", "a number is one of a project's log")
	assert.Empty(t, scopefs("audit", "--all", "--denied", "--json").Stderr)
	o = scopefs("forget", "hello", "--yes")
	require.Zero(t, o.Code, o.Stderr)
	assert.Equal(t, 2, strings.Count(o.Stdout, "forgotten"))
	assert.Empty(t, kept(t, state))
	assert.FileExists(t, filepath.Join(dir, "stays"))
	o = scopefs("audit", "--all", "--json")
	assert.Contains(t, o.Stdout, `"uid":1234`)
	assert.NotContains(t, o.Stdout, `"uid":0`, "the daemon's user namespace has the user as 0")
	assert.Equal(t, 2, strings.Count(o.Stdout, `"outcome":"forgotten"`), o.Stderr)
	o = scopefs("forget", dir)
	assert.NotZero(t, o.Code)
	o = scopefs("forget", "hello", "--yes")
	assert.Contains(t, o.Stderr, `no project is named "hello"`)

	o = scopefs("run", "-q", "--dir", dir, "--", "true")
	require.Zero(t, o.Code, o.Stderr)
	o = scopefs("forget", "--dir", dir, "--yes")
	assert.Zero(t, o.Code, o.Stderr)
	assert.Empty(t, kept(t, state))
	o = scopefs("forget")
	assert.Equal(t, 2, o.Code)
	assert.Contains(t, o.Stderr, "scopefs forget .")
}

// kept returns the files below a directory that are of no log.
func kept(t *testing.T, dir string) (all []string) {
	require.NoError(t, filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && (!strings.Contains(name, "/state/audit/") || e.Name() == "reserve") {
			all = append(all, name)
		}
		return err
	}))
	return all
}

// TestForgetAgent: what a base has of an agent goes, also after its definition. What others have stays.
func TestForgetAgent(t *testing.T) {
	m := harness.Embed(t, 0, map[string]string{"a": "view: {changes: kept}\nsandbox: {home: lasting}\nrate_limits: {bash: 5/minute}", "b": "sandbox: {home: lasting}"})
	for _, id := range []string{"a", "b"} {
		o := harness.Finish(t, m.Command("run", "-q", id, "--", "sh", "-c", "echo >~/h; echo >f; rm f"))
		require.Zero(t, o.Code, o.Stderr)
	}
	o := harness.Finish(t, m.Command("call", "--agent", "a", "bash", "command=true"))
	require.Zero(t, o.Code, o.Stderr)
	o = harness.Finish(t, m.Command("forget", "a"))
	assert.Equal(t, 2, o.Code)
	for _, part := range []string{"/home/a\n", "/history/a\n", "/rates/a\n"} {
		assert.Contains(t, o.Stdout, part)
	}
	require.NoError(t, os.Remove(filepath.Join(m.Base, "agents.d", "a.md")))
	o = harness.Finish(t, m.Command("forget", "a", "--yes"))
	require.Zero(t, o.Code, o.Stderr)
	assert.NoDirExists(t, filepath.Join(m.Base, "history", "a"))
	for _, name := range kept(t, filepath.Join(m.Base, "state")) {
		assert.NotContains(t, strings.Split(name, "/"), "a", name)
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		assert.NotContains(t, string(text), "a.md", name)
	}
	assert.FileExists(t, filepath.Join(m.Base, "state", "home", "b", "h"))
	o = harness.Finish(t, m.Command("forget", "a"))
	assert.Equal(t, "nothing is kept of a\n", o.Stdout)
	m.Put("scopefs.yaml", "stores: {messages: {channels: {team: [a]}}}\n")
	o = harness.Finish(t, m.Command("forget", "a"))
	assert.Equal(t, "leave   its messages in channels and inboxes of others, until they end there: team\nnothing is kept of a\n", o.Stdout)
}
