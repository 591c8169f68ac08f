package cli

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestDirAnew: a directory that was deleted and made anew has an agent of its own: with the restrictions of the one before, without
// its grants, its log and its changes. What that one held is listed and taken over by its name alone. A daemon of the old one serves
// the new directory neither.
func TestDirAnew(t *testing.T) {
	const uid = 1234
	m := harness.Embed(t, uid, nil)
	state := filepath.Join(m.Base, "agents", "state")
	dir := filepath.Join(m.Base, "hello")
	command := func(args ...string) *exec.Cmd {
		cmd := harness.AsUser(t, uid, append([]string{harness.Program}, args...)...)
		cmd.Env = append(cmd.Env, "TMPDIR="+m.Tmp, "HOME="+filepath.Join(m.Base, "agents"), "XDG_STATE_HOME="+state, "SCOPEFS_BASE=")
		return cmd
	}
	scopefs := func(args ...string) harness.Outcome { return harness.Finish(t, command(args...)) }
	remake := func() {
		require.NoError(t, os.RemoveAll(dir))
		require.NoError(t, os.Mkdir(dir, 0o755))
		harness.Plant(t, dir, "f=1\n", "secret=1\n")
		for _, name := range []string{dir, dir + "/f", dir + "/secret"} {
			require.NoError(t, os.Chown(name, uid, uid))
		}
	}
	remake()
	o := scopefs("run", "-q", "--dir", dir, "--changes", "held", "--", "sh", "-c", "echo 2 >f; echo 3 >added; echo >~/of-home")
	require.Zero(t, o.Code, o.Stderr)
	for _, words := range [][]string{{"allow", "--yes", "granted.example"}, {"deny", "--yes", "secret"}} {
		o = scopefs(append(words, "--dir", dir)...)
		require.Zero(t, o.Code, o.Stderr)
	}

	// Its daemon runs while the directory is replaced.
	running := command("run", "-q", "--dir", dir, "--", "sh", "-c", "echo on; read x")
	stdin, err := running.StdinPipe()
	require.NoError(t, err)
	stdout, err := running.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, running.Start())
	_, err = io.ReadFull(stdout, make([]byte, 3))
	require.NoError(t, err)
	remake()

	o = scopefs("audit", "--dir", dir)
	assert.Contains(t, o.Stderr, "was made anew")
	old := regexp.MustCompile(`hello-[0-9a-f]{16}`).FindString(o.Stderr)
	require.NotEmpty(t, old, o.Stderr)
	o = scopefs("run", "--dir", dir, "--", "sh", "-c", "cat f; ls -A; ls -A ~; cat secret")
	assert.Contains(t, o.Stdout, "1\nf\n", "neither what was held nor the old HOME: %s", o.Stderr)
	assert.NotContains(t, o.Stdout, "secret")
	assert.NotContains(t, o.Stdout, "of-home")
	assert.Contains(t, o.Stderr, old)
	require.NoError(t, stdin.Close())
	_ = running.Wait() // its directory is gone

	o = scopefs("check", "--dir", dir, "--network", "https://granted.example/")
	assert.NotZero(t, o.Code, o.Stdout)
	o = scopefs("audit", "--dir", dir, "--json")
	assert.NotEmpty(t, o.Stdout)
	assert.NotContains(t, o.Stdout, old)
	o = scopefs("changes", "--dir", dir)
	assert.NotContains(t, o.Stdout+o.Stderr, "added")
	o = scopefs("diff", "--dir", dir)
	assert.Empty(t, o.Stdout, "nothing is held by the new one: %s", o.Stderr)

	o = scopefs("audit", "--agent", old)
	assert.Contains(t, o.Stdout, old, o.Stderr)
	o = scopefs("diff", old)
	assert.Contains(t, o.Stdout, "held: 2 changes", o.Stderr)
	o = scopefs("changes")
	listed := regexp.MustCompile(`scopefs changes --base \S+ held`).FindString(o.Stdout)
	require.Contains(t, listed, old, "the command is about the old directory: %s", o.Stdout)
	o = scopefs(strings.Fields(listed)[1:]...)
	assert.Contains(t, o.Stdout, "held: 2 changes", o.Stderr)
	o = scopefs("run", old, "--", "true")
	assert.NotZero(t, o.Code)
	assert.Contains(t, o.Stderr, "is not the directory that "+old+" was made for")
	o = scopefs("commit", "--dir", dir)
	assert.NoFileExists(t, filepath.Join(dir, "added"), o.Stdout)
	o = scopefs("commit", old, "--path", "added")
	assert.Zero(t, o.Code, o.Stderr)
	assert.FileExists(t, filepath.Join(dir, "added"))
}
