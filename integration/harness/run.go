package harness

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Way is a way in which run works: with a daemon, or without one as some user.
type Way struct {
	*Host
	Tmp  string // TMPDIR, which must be empty again
	User int    // 0 is root
}

// Embed makes a way without a daemon, for a user.
func Embed(t testing.TB, uid int, agents map[string]string) *Way {
	t.Helper()
	m := &Way{Host: LayOut(t, agents), User: uid}
	m.Tmp = filepath.Join(m.Base, "tmp")
	require.NoError(t, os.Mkdir(m.Tmp, 0o755))
	require.NoError(t, filepath.WalkDir(m.Base, func(name string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(name, uid, uid))
	}))
	t.Cleanup(func() { m.Clean() })
	return m
}

// Command returns a command of the program on its base.
func (m *Way) Command(args ...string) *exec.Cmd {
	argv := append([]string{Program, "--base", m.Base}, args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	if m.User != 0 {
		cmd = AsUser(m.T, m.User, argv...)
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, "TMPDIR="+m.Tmp)
	return cmd
}

// Run runs a program as an agent, to its end.
func (m *Way) Run(args ...string) Outcome {
	m.T.Helper()
	return Finish(m.T, m.Command(append([]string{"run"}, args...)...))
}

// Clean checks that nothing is left in TMPDIR.
func (m *Way) Clean() {
	m.T.Helper()
	var names []string
	for end := time.Now().Add(15 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if names, _ = filepath.Glob(m.Tmp + "/*"); len(names) == 0 || time.Now().After(end) {
			break
		}
	}
	assert.Empty(m.T, names, "left in TMPDIR")
}

// Privately runs a script as root in a mount namespace of its own, where it may
// change what /dev has; $D is a directory for it.
func Privately(t testing.TB, script string, argv ...string) *exec.Cmd {
	t.Helper()
	words := []string{"-m", "--propagation", "private", "sh", "-ec", `mount -t tmpfs -o mode=755 none "$D"; ` + script + ` exec "$@"`, "sh"}
	cmd := exec.Command("unshare", append(words, argv...)...)
	cmd.Env = append(os.Environ(), "D="+t.TempDir())
	return cmd
}

// ClosedFUSE makes /dev/fuse one that only root may open, for Privately.
const ClosedFUSE = `mknod -m 600 "$D/fuse" c 10 229; mount --bind "$D/fuse" /dev/fuse;`

// Setpriv returns the arguments that run a command as an ordinary user.
func Setpriv(uid int, argv ...string) []string {
	id := strconv.Itoa(uid)
	return append([]string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--"}, argv...)
}

// AsUser runs a command as an ordinary user of a host where /dev/fuse is open to all, as
// udev makes it. Where it is not, the command has a mount namespace with one that is: that takes five programs and 15 ms of a processor.
func AsUser(t testing.TB, uid int, argv ...string) *exec.Cmd {
	t.Helper()
	argv = Setpriv(uid, argv...)
	if info, err := os.Stat("/dev/fuse"); err == nil && info.Mode().Perm() == 0o666 {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = os.Environ() // callers append to it
		return cmd
	}
	return Privately(t, `mknod -m 666 "$D/fuse" c 10 229; mount --bind "$D/fuse" /dev/fuse;`, argv...)
}
