package cli

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestRunDir: an ordinary user runs a program in a directory that is open to him, also one
// of another owner or group. The program runs as that user.
func TestRunDir(t *testing.T) {
	const uid = 1234
	m := harness.Embed(t, uid, nil)
	for name, owner := range map[string][2]int{"own": {uid, uid}, "shared": {uid, 4321}, "other": {4321, 4321}} {
		dir := filepath.Join(m.Base, name)
		require.NoError(t, os.Mkdir(dir, 0o777))
		require.NoError(t, os.Chmod(dir, 0o777))
		require.NoError(t, os.Chown(dir, owner[0], owner[1]))
		// The state is where the user may write, and the directory apart from it.
		cmd := harness.AsUser(t, uid, harness.Program, "run", "--dir", dir, "--", "sh", "-c", "echo made >made; ls -A")
		cmd.Env = append(cmd.Env, "TMPDIR="+m.Tmp, "HOME="+filepath.Join(m.Base, "agents"), "XDG_STATE_HOME=", "SCOPEFS_BASE=")
		o := harness.Finish(t, cmd)
		assert.Equal(t, "made\n", o.Stdout, "%s: %s", name, o.Stderr)
		st, err := os.Stat(filepath.Join(dir, "made"))
		if assert.NoError(t, err) {
			assert.EqualValues(t, uid, st.Sys().(*syscall.Stat_t).Uid)
		}
	}
}

// TestRunMerge: an ordinary user's commit merges what the program and the user changed in a text.
func TestRunMerge(t *testing.T) {
	const uid = 1234
	m := harness.Embed(t, uid, nil)
	dir := filepath.Join(m.Base, "own")
	require.NoError(t, os.Mkdir(dir, 0o755))
	harness.Plant(t, dir, "f=1\n2\n3\n4\n")
	for _, name := range []string{dir, dir + "/f"} {
		require.NoError(t, os.Chown(name, uid, uid))
	}
	as := func(words ...string) harness.Outcome {
		cmd := harness.AsUser(t, uid, append([]string{harness.Program}, words...)...)
		cmd.Env = append(cmd.Env, "TMPDIR="+m.Tmp, "HOME="+filepath.Join(m.Base, "agents"), "XDG_STATE_HOME=", "SCOPEFS_BASE=")
		return harness.Finish(t, cmd)
	}
	o := as("run", "--dir", dir, "--changes", "held", "--", "sed", "-i", "s/4/four/", "f")
	require.Zero(t, o.Code, o.Stderr)
	harness.Plant(t, dir, "f=one\n2\n3\n4\n")
	o = as("commit", "--dir", dir, "--merge")
	assert.Zero(t, o.Code, o.Stderr)
	assert.Contains(t, o.Stdout, "merged: f\n")
	text, err := os.ReadFile(dir + "/f")
	require.NoError(t, err)
	assert.Equal(t, "one\n2\n3\nfour\n", string(text))
	o = as("diff", "--dir", dir)
	assert.Contains(t, o.Stdout, "nothing differs")
}

// TestRunShell: without a command run starts a shell: one that reads standard input, or
// one on a terminal. Flags may come after the agent.
func TestRunShell(t *testing.T) {
	m := harness.Embed(t, 0, map[string]string{"a": ""})
	require.NoError(t, os.Mkdir(m.Scope("a", "sub"), 0o755))
	cmd := m.Command("run", "a", "-C", "sub", "--env", "X=1")
	in, err := os.Open(write(t, "pwd; echo $X; exit 4"))
	require.NoError(t, err)
	defer in.Close()
	cmd.Stdin = in
	o := harness.Finish(t, cmd)
	assert.Equal(t, "/workspace/sub\n1\n", o.Stdout)
	assert.Equal(t, 4, o.Code)

	_, _, k := onTerminal(t, m, "a", "--tty")
	enter(k, "tty; echo 'se'en\r")
	assert.Contains(t, k.Expect("seen"), "/dev/pts/")
}

func write(t *testing.T, text string) string {
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}
