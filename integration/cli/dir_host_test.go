package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestDirAtHost: inside, the project's path on the host leads to the view, so that absolute paths of editors and of build
// files hold. A program that tries has the view there by the same rules, and nothing else of the host: not what is beside the
// project, nor above it.
func TestDirAtHost(t *testing.T) {
	const uid = 1234
	m := harness.Embed(t, uid, nil)
	top, err := os.MkdirTemp("/opt", "scopefs-integration-") // not below /tmp, which is another one inside
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(top)) })
	require.NoError(t, os.Chmod(top, 0o755))
	dir := filepath.Join(top, "me", "project")
	harness.Plant(t, top, "me/", "me/project/", "me/beside/")
	for name, text := range map[string]string{"me/secret": "sesame", "me/beside/secret": "sesame", "me/project/f": "text", "me/project/.env": "sesame"} {
		require.NoError(t, os.WriteFile(filepath.Join(top, name), []byte(text), 0o644))
	}
	for _, name := range []string{"me", "me/project", "me/project/f", "me/project/.env", "me/beside"} {
		require.NoError(t, os.Chown(filepath.Join(top, name), uid, uid))
	}
	run := func(script string) harness.Outcome {
		cmd := harness.AsUser(t, uid, harness.Program, "run", "--dir", dir, "--", "sh", "-c", script, "sh", dir)
		cmd.Env = append(cmd.Env, "TMPDIR="+m.Tmp, "HOME="+m.Base, "XDG_STATE_HOME="+m.Base+"/state", "XDG_CONFIG_HOME=", "SCOPEFS_BASE=")
		return harness.Finish(t, cmd)
	}
	o := run(`cat "$1/f"; cd "$1" && echo made >"$1/made" && mv "$1/made" /workspace/moved && pwd -P`)
	assert.Equal(t, "text/workspace\n", o.Stdout, o.Stderr)
	assert.Equal(t, "made\n", harness.ReadAll(t, filepath.Join(dir, "moved")))

	o = run(`cd "$1/.."; ls -A . .. ../..; cat "$1/.env" "$1/../secret" "${1%/*}/secret" "${1%/*}/beside/secret" ../me/beside/secret
		ln -s ../secret "$1/up"; cat "$1/up"; ln -s "${1%/*}/secret" "$1/abs"; cat "$1/abs"
		rm "$1" || mv "$1" x || ln -sfn / "$1"; touch "${1%/*}/new" "${1%/*/*}/new"; mkdir "$1/.vscode"
		find / -xdev -name secret 2>/dev/null; grep -c /opt/ /proc/self/mountinfo`)
	assert.NotContains(t, o.Stdout+o.Stderr, "sesame")
	assert.Contains(t, o.Stdout, ".:\nproject\n")
	assert.Contains(t, o.Stdout, "..:\nme\n")
	assert.NotContains(t, o.Stdout, "beside\n")
	assert.NotContains(t, o.Stdout, "/secret")
	assert.Regexp(t, `\n0\n$`, o.Stdout, "no mount of it")
	assert.Regexp(t, `rm: cannot remove .*/me/project'`, o.Stderr)
	for _, name := range []string{"me/new", "new", "me/project/.vscode"} {
		_, err := os.Lstat(filepath.Join(top, name))
		assert.ErrorIs(t, err, os.ErrNotExist, name)
	}
}
