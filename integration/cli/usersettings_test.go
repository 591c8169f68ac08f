package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestUserSettings: the settings of an ordinary user hold in his daemon and in his projects, which run in user namespaces. No
// agent of his gets the directory, and what another user writes there counts nowhere.
func TestUserSettings(t *testing.T) {
	a := newAccount(t)
	a.env = append(a.env, "XDG_CONFIG_HOME=")
	a.define("a", `protect: ["*"]`)
	user, one := filepath.Join(a.Base, ".config/scopefs"), filepath.Join(a.Base, "one")
	sh := func(uid int, script string) harness.Outcome { return a.as(uid, "sh", "-c", script, "sh", user) }
	project := func(argv ...string) harness.Outcome {
		cmd := harness.AsUser(t, accountUID, append([]string{harness.Program, "run", "--dir", one, "--"}, argv...)...)
		cmd.Env = append(a.env, cmd.Env[len(cmd.Env)-1])
		return harness.Finish(t, cmd)
	}
	o := sh(accountUID, `umask 022; mkdir -p "$1/protect.d" "$1/../../one" && echo 'paths: [mine.sh]' >"$1/protect.d/mine.yaml" &&
		echo 'sandbox: {env: {WHOSE: user}}' >"$1/scopefs.yaml"`)
	require.Zero(t, o.Code, o.Stderr)
	a.define("b", "dir: "+filepath.Join(a.Base, ".config"))
	a.start()

	const try = `echo "$WHOSE"; echo >mine.sh`
	for _, o := range []harness.Outcome{a.scopefs("run", "a", "--", "sh", "-c", try), project("sh", "-c", try)} {
		assert.Equal(t, "user\n", o.Stdout, o.Stderr)
		assert.Contains(t, o.Stderr, "mine.sh: Permission denied")
	}
	o = a.scopefs("run", "b", "--", "sh", "-c", "echo >scopefs/scopefs.yaml")
	assert.NotZero(t, o.Code)
	assert.Contains(t, o.Stderr, "choose a directory apart from")
	o = a.scopefs("run", "--dir", filepath.Join(a.Base, ".config"), "--", "true")
	assert.Equal(t, 125, o.Code)

	// Another user writes where he can.
	require.NoError(t, os.Chmod(filepath.Join(user, "protect.d"), 0o777))
	for dir := user; dir != filepath.Dir(a.Base); dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	o = sh(otherUID, `rm "$1/protect.d/mine.yaml"; echo 'paths: [other.sh]' >"$1/protect.d/other.yaml"`)
	require.Zero(t, o.Code, o.Stderr)
	o = a.scopefs("run", "a", "--", "sh", "-c", "echo >mine.sh")
	assert.Contains(t, o.Stderr, "mine.sh: Permission denied", "a running daemon keeps the last good list")
	o = project("true")
	assert.Equal(t, 125, o.Code)
	assert.Contains(t, o.Stderr, "a list in protect.d does not load")
	require.NoError(t, os.Chmod(filepath.Join(user, "protect.d"), 0o755))
	o = project("true")
	assert.Equal(t, 125, o.Code, "the file is still the other's")
	require.NoError(t, os.Remove(filepath.Join(user, "protect.d/other.yaml")))
	o = project("true")
	assert.Zero(t, o.Code, o.Stderr)
}
