package branch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope/beneath"
)

const agentUser = 65534

// theirs makes a branch's directory that the agent's user owns, with d/f of that user.
func theirs(t *testing.T) (string, *beneath.Root) {
	need.Root(t, "it gives files away")
	top := t.TempDir() + "/state"
	require.NoError(t, os.MkdirAll(top+"/upper/d", 0o700))
	require.NoError(t, os.WriteFile(top+"/upper/d/f", nil, 0o600))
	require.NoError(t, filepath.WalkDir(top, func(path string, _ os.DirEntry, _ error) error {
		return os.Lchown(path, agentUser, agentUser)
	}))
	state, err := beneath.OpenDir(top)
	require.NoError(t, err)
	t.Cleanup(func() { state.Close() })
	return top, state
}

// TestRemoveForeign: the agent's user moves a shared directory, which has root's, into the branch. Root removes of it what that
// user could remove.
func TestRemoveForeign(t *testing.T) {
	top, state := theirs(t)
	shared := filepath.Dir(top) + "/shared"
	require.NoError(t, os.MkdirAll(shared+"/of root/kept", 0o700))
	require.NoError(t, os.WriteFile(shared+"/of root/kept/f", []byte("1"), 0o600))
	require.NoError(t, os.Lchown(shared, agentUser, agentUser))
	require.NoError(t, os.Rename(shared, top+"/upper/d/shared"))
	require.ErrorIs(t, Remove(state), ErrForeign)
	found, err := filepath.Glob(top + "/removed-*/of root/kept/f")
	require.NoError(t, err)
	require.Len(t, found, 1, tree(t, top))
	names, err := os.ReadDir(top)
	require.NoError(t, err)
	assert.Len(t, names, 1, "the rest is removed")

	require.NoError(t, os.RemoveAll(filepath.Dir(filepath.Dir(found[0]))))
	require.NoError(t, Remove(state))
	assert.Empty(t, tree(t, top))
}

// TestRemoveShared: a directory of another user that the agent's user may write to, as a member of its group.
func TestRemoveShared(t *testing.T) {
	top, state := theirs(t)
	for _, at := range []string{"/upper/team", "/upper"} {
		require.NoError(t, os.MkdirAll(top+at+"/work", 0o770))
		require.NoError(t, os.WriteFile(top+at+"/work/f", []byte("1"), 0o600))
		require.NoError(t, os.Chmod(top+at, 0o770))
		require.NoError(t, os.Lchown(top+at, 0, agentUser))
	}
	require.ErrorIs(t, Remove(state, "upper"), ErrForeign)
	assert.FileExists(t, top+"/upper/team/work/f")
	assert.FileExists(t, top+"/upper/work/f")
}

// TestRemoveLinks: links and mounts are not entered.
func TestRemoveLinks(t *testing.T) {
	top, state := theirs(t)
	outside := filepath.Dir(top) + "/outside"
	require.NoError(t, os.Mkdir(outside, 0o700))
	require.NoError(t, os.WriteFile(outside+"/f", nil, 0o600))
	require.NoError(t, os.Lchown(outside, agentUser, agentUser))
	require.NoError(t, os.Symlink(outside, top+"/upper/link"))
	require.NoError(t, os.Mkdir(top+"/upper/mount", 0o700))
	require.NoError(t, unix.Mount(outside, top+"/upper/mount", "", unix.MS_BIND, ""))
	defer func() {
		found, err := filepath.Glob(top + "/removed-*/mount")
		require.NoError(t, err)
		require.Len(t, found, 1)
		require.NoError(t, unix.Unmount(found[0], 0))
		require.NoError(t, Remove(state))
		assert.Empty(t, tree(t, top))
	}()
	require.Error(t, Remove(state))
	assert.FileExists(t, outside+"/f")
}

// TestRemoveRace: the agent's user exchanges a directory of the branch and a link while root removes the branch.
func TestRemoveRace(t *testing.T) {
	top, state := theirs(t)
	outside := filepath.Dir(top) + "/outside"
	require.NoError(t, os.Mkdir(outside, 0o700))
	require.NoError(t, os.WriteFile(outside+"/f", nil, 0o600))
	require.NoError(t, os.Symlink(outside, top+"/link"))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, top+"/link", unix.AT_FDCWD, top+"/upper", unix.RENAME_EXCHANGE)
			}
		}
	}()
	for range 300 {
		_ = os.MkdirAll(top+"/upper/d", 0o700)
		_ = os.WriteFile(top+"/upper/d/f", nil, 0o600)
		_ = os.Symlink(outside, top+"/link")
		_ = Remove(state, "upper")
	}
	close(stop)
	<-stopped
	assert.FileExists(t, outside+"/f")
}

// TestRemoveDeep: a path of any length is removed, and directories without permissions.
func TestRemoveDeep(t *testing.T) {
	top, state := theirs(t)
	at, err := unix.Open(top+"/upper/d", unix.O_PATH|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	name := strings.Repeat("n", 200)
	for range 2000 {
		require.NoError(t, unix.Mkdirat(at, name, 0o500))
		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Fchownat(at, name, agentUser, agentUser, 0))
		unix.Close(at)
		at = next
	}
	unix.Close(at)
	require.NoError(t, Remove(state))
	assert.Empty(t, tree(t, top))
}
