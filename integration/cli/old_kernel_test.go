package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestWithoutFchmodat2: before Linux 6.6 no descriptor of O_PATH changes a mode. Changes are held, committed and undone there as well.
func TestWithoutFchmodat2(t *testing.T) {
	for _, uid := range []int{0, 12345} {
		t.Run(fmt.Sprint(uid), func(t *testing.T) { withoutFchmodat2(t, uid) })
	}
}

func withoutFchmodat2(t *testing.T, uid int) {
	m := harness.Embed(t, uid, nil)
	dir, err := os.MkdirTemp(m.Base, "project")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte("1\n"), 0o640))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "g"), []byte("1\n"), 0o604))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "p"), 0o600))
	for _, name := range []string{"", "f", "g", "p"} {
		require.NoError(t, os.Chown(filepath.Join(dir, name), uid, uid))
	}
	scopefs := func(args ...string) {
		t.Helper()
		as := harness.AsUser(t, uid, append([]string{harness.Program}, args...)...)
		cmd := without(unix.ENOSYS, []uint32{unix.SYS_FCHMODAT2}, append([]string{as.Path}, as.Args[1:]...)...)
		cmd.Env = append(cmd.Env, as.Env[len(as.Env)-1], "TMPDIR="+m.Tmp, "HOME="+filepath.Join(m.Base, "agents"),
			"XDG_STATE_HOME="+filepath.Join(m.Base, "agents", "state"), "SCOPEFS_BASE=")
		o := harness.Finish(t, cmd)
		require.Zero(t, o.Code, o.Stderr)
	}
	modes := func(want map[string]os.FileMode) {
		t.Helper()
		for name, mode := range want {
			st, err := os.Lstat(filepath.Join(dir, name))
			require.NoError(t, err)
			assert.Equal(t, mode, st.Mode(), name)
		}
	}
	before := map[string]os.FileMode{"f": 0o640, "g": 0o604, "p": os.ModeNamedPipe | 0o600}
	scopefs("run", "--dir", dir, "--changes", "kept", "--", "sh", "-ec", "chmod 600 f; echo 2 >f; rm g p; echo 3 >g; chmod 640 g")
	scopefs("undo", "--dir", dir, "--session", "last")
	modes(before)
	scopefs("run", "--dir", dir, "--changes", "held", "--", "sh", "-ec", "chmod 600 f; echo 2 >f; chmod 644 g; chmod 640 p")
	modes(before)
	scopefs("commit", "--dir", dir)
	modes(map[string]os.FileMode{"f": 0o600, "g": 0o644, "p": os.ModeNamedPipe | 0o640})
	scopefs("branch", "--dir", dir, "one")
	scopefs("run", "--dir", dir, "--branch", "one", "--", "sh", "-ec", "mkdir -p d/e; : >d/e/f; chmod 0 d/e d")
	scopefs("branch", "remove", "--dir", dir, "one")
}
