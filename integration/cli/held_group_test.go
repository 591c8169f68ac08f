package cli

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestHeldGroup: an ordinary user's changes are held, and taken back, in a project whose group is not one of his: a name space of his has no such
// group, and he may not give a directory to it.
func TestHeldGroup(t *testing.T) {
	const uid, group = 1234, 4321
	m := harness.Embed(t, uid, nil)
	scopefs := func(args ...string) harness.Outcome {
		cmd := harness.AsUser(t, uid, append([]string{harness.Program}, args...)...)
		cmd.Env = append(cmd.Env, "TMPDIR="+m.Tmp, "HOME="+filepath.Join(m.Base, "agents"),
			"XDG_STATE_HOME="+filepath.Join(m.Base, "agents", "state"), "SCOPEFS_BASE=")
		return harness.Finish(t, cmd)
	}
	dir, err := os.MkdirTemp(m.Base, "project")
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(dir+"/d", 0o755))
	for _, name := range []string{"f", "g", "d/h"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("1\n"), 0o664))
	}
	require.NoError(t, filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(name, uid, uid))
	}))
	require.NoError(t, os.WriteFile(dir+"/foreign", []byte("1\n"), 0o664))
	for _, name := range []string{dir, dir + "/foreign"} {
		require.NoError(t, os.Chown(name, uid, group))
	}
	require.NoError(t, os.Chmod(dir, 0o775|os.ModeSetgid))

	o := scopefs("run", "--dir", dir, "--changes", "held", "--", "sh", "-ec", "echo 2 >f; rm g; echo 2 >d/h; echo 1 >new; mkdir made; mv d e; ls; echo 2 >foreign")
	assert.Equal(t, "e\nf\nforeign\nmade\nnew\n", o.Stdout, o.Stderr)
	assert.Zero(t, o.Code, o.Stderr)
	o = scopefs("commit", "--dir", dir)
	assert.Zero(t, o.Code, o.Stderr)
	for name, text := range map[string]string{"f": "2\n", "e/h": "2\n", "new": "1\n", "foreign": "2\n"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.Equal(t, text, string(got), name)
	}
	assert.NoFileExists(t, dir+"/g")
	o = scopefs("diff", "--dir", dir, "--name-only")
	assert.Empty(t, o.Stdout, o.Stderr)

	require.NoError(t, os.Mkdir(dir+"/of", 0o755))
	require.NoError(t, os.Chown(dir+"/of", uid, group))
	require.NoError(t, os.Chmod(dir+"/of", 0o750))
	o = scopefs("run", "--dir", dir, "--changes", "kept", "--", "rmdir", "of")
	require.Zero(t, o.Code, o.Stderr)
	o = scopefs("undo", "--dir", dir, "--session", "last")
	assert.Equal(t, 1, o.Code, o.Stderr)
	assert.Contains(t, o.Stdout, "not kept: of: its owner and group are not restored", o.Stderr)
	st, err := os.Stat(dir + "/of")
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), st.Mode().Perm(), "its group is another one now")
}
