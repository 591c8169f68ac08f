package view

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/fs/hold"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope/beneath"
)

var nobody = account.User{UID: 65534, GID: 65534}

// heldIn makes a scope, and a directory of held changes that is nobody's.
func heldIn(t *testing.T) (root, dir *beneath.Root, history string) {
	need.Root(t, "it gives files away")
	top := t.TempDir()
	open := func(name string) *beneath.Root {
		require.NoError(t, os.Mkdir(filepath.Join(top, name), 0o700))
		r, err := beneath.OpenDir(filepath.Join(top, name))
		require.NoError(t, err)
		t.Cleanup(func() { r.Close() })
		return r
	}
	root, dir, history = open("scope"), open("history"), top+"/history"
	require.NoError(t, os.Chown(history, 65534, 65534))
	return root, dir, history
}

// TestUnfinished: a commit that was killed has files of the directory in the stage. They stay there until the commit is finished.
func TestUnfinished(t *testing.T) {
	root, dir, history := heldIn(t)
	require.NoError(t, makeLayers(root, dir, nobody))
	require.NoError(t, os.WriteFile(history+"/stage/p0", nil, 0o600))
	require.NoError(t, os.WriteFile(history+"/intent", []byte("{}"), 0o600))
	require.NoError(t, makeLayers(root, dir, nobody))
	require.NoError(t, os.Rename(history+"/upper", history+"/away"))
	require.ErrorIs(t, makeLayers(root, dir, nobody), errUnfinished)
	require.FileExists(t, history+"/stage/p0")
}

// TestFormer: what an earlier release holds in an overlay is refused, and what it has left without changes is removed.
func TestFormer(t *testing.T) {
	root, dir, history := heldIn(t)
	for _, name := range []string{"upper", "work", "work/work", "merged", "stage"} {
		require.NoError(t, os.Mkdir(history+"/"+name, 0o700))
	}
	require.NoError(t, os.WriteFile(history+"/stamp", nil, 0o600))
	require.NoError(t, os.WriteFile(history+"/upper/f", nil, 0o600))
	require.ErrorIs(t, makeLayers(root, dir, nobody), errFormer)
	require.FileExists(t, history+"/upper/f")
	require.NoError(t, os.Remove(history+"/upper/f"))
	require.NoError(t, makeLayers(root, dir, nobody))
	assert.NoDirExists(t, history+"/work")
	_, err := hold.Open(root, dir, true)
	require.NoError(t, err)
}

// TestForged: the agent's user exchanges what is in the directory of held changes while root makes it. Nothing of root's becomes the
// user's, and the daemon goes on.
func TestForged(t *testing.T) {
	root, dir, history := heldIn(t)
	secret := history + "/secret"
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	for _, name := range []string{"stamp", "stage", hold.UpperName} {
		require.NoError(t, os.Link(secret, history+"/"+name))
		require.Error(t, give(dir, name, nobody, 0o700, false), name)
		require.NoError(t, os.Remove(history+"/"+name))
	}
	shared := history + "/stage"
	require.NoError(t, os.Mkdir(shared, 0o700))
	require.NoError(t, os.Chmod(shared, 0o770)) // the user could move it here
	require.Error(t, give(dir, "stage", nobody, 0o700, false))
	require.NoError(t, os.Remove(shared))

	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Rename(history+"/upper", history+"/away")
				_ = os.Rename(history+"/away", history+"/upper")
			}
		}
	}()
	for range 20 {
		_ = makeLayers(root, dir, nobody)
		_ = os.RemoveAll(history + "/upper")
	}
	close(stop)
	<-stopped
	info, err := os.Stat(secret)
	require.NoError(t, err)
	assert.Zero(t, info.Mode().Perm()&0o077)
	text, err := os.ReadFile(secret)
	require.NoError(t, err)
	assert.Equal(t, "secret", string(text))
}
