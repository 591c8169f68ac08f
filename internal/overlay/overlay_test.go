package overlay

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/branch"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope/beneath"
)

// TestUnfinished: a commit that was killed has files of the directory in the stage. They stay there until the commit is
// finished, also if the agent takes all that it changed back meanwhile.
func TestUnfinished(t *testing.T) {
	need.Root(t, "it gives files away")
	top := t.TempDir()
	var roots [2]*beneath.Root
	for i, name := range []string{"scope", "history"} {
		require.NoError(t, os.Mkdir(filepath.Join(top, name), 0o700))
		root, err := beneath.OpenDir(filepath.Join(top, name))
		require.NoError(t, err)
		defer root.Close()
		roots[i] = root
	}
	owner := account.User{UID: 65534, GID: 65534}
	require.NoError(t, os.Chown(top+"/history", 65534, 65534))
	require.NoError(t, MakeBranch(roots[0], roots[1], owner))
	history := top + "/history"
	require.NoError(t, os.Mkdir(history+"/stage/p0", 0o700))
	require.NoError(t, os.WriteFile(history+"/stage/p0/f", nil, 0o600))
	require.NoError(t, os.Chown(history+"/stage/p0", 65534, 65534))
	require.NoError(t, os.WriteFile(history+"/intent", []byte("{}"), 0o600))
	require.NoError(t, MakeBranch(roots[0], roots[1], owner))
	require.FileExists(t, history+"/stage/p0/f")
	require.NoError(t, os.Remove(history+"/intent"))
	require.NoError(t, MakeBranch(roots[0], roots[1], owner))
	require.NoFileExists(t, history+"/stage/p0/f", "a branch without changes begins again")
}

// TestForgedBranch: the agent's user exchanges what is in the branch's directory while root mounts it. Nothing of root's becomes
// the user's, and the daemon goes on.
func TestForgedBranch(t *testing.T) {
	need.Root(t, "it mounts an overlay")
	top := t.TempDir()
	for _, name := range []string{"/scope", "/history"} {
		require.NoError(t, os.Mkdir(top+name, 0o700))
	}
	root, err := beneath.OpenDir(top + "/scope")
	require.NoError(t, err)
	defer root.Close()
	dir, err := beneath.OpenDir(top + "/history")
	require.NoError(t, err)
	defer dir.Close()
	owner := account.User{UID: 65534, GID: 65534}
	secret := top + "/history/secret"
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	for _, name := range []string{"stamp", "stage", branch.MergedName, branch.UpperName} {
		require.NoError(t, os.Link(secret, top+"/history/"+name))
		require.Error(t, Give(dir, name, owner, 0o700, false), name)
		require.NoError(t, os.Remove(top+"/history/"+name))
	}

	shared := top + "/history/stage"
	require.NoError(t, os.Mkdir(shared, 0o700))
	require.NoError(t, os.Chmod(shared, 0o770)) // the user could move it here
	require.Error(t, Give(dir, "stage", owner, 0o700, false))
	require.NoError(t, os.Remove(shared))

	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Rename(top+"/history/upper", top+"/history/away")
				_ = os.Rename(top+"/history/away", top+"/history/upper")
			}
		}
	}()
	var s Set
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	for range rounds {
		if o, err := s.Mount(&account.Host{Root: true, Paths: config.Paths{Base: top}}, "a", root, dir, owner, nil); err == nil {
			o.Leave()
		}
	}
	close(stop)
	<-stopped
}

// TestUnmountLeft: what goes is of the base, also what an earlier release has mounted below its directory of histories, and nothing of
// another base. A base that is gone has none.
func TestUnmountLeft(t *testing.T) {
	need.Root(t, "it mounts overlays")
	top := t.TempDir()
	require.NoError(t, os.Symlink("one", top+"/link"))
	mounted := map[string]*beneath.Root{}
	for _, base := range []string{"one", "two"} {
		require.NoError(t, os.MkdirAll(filepath.Join(top, base, "history"), 0o700))
		now, err := sourceOf(filepath.Join(top, base))
		require.NoError(t, err)
		for at, source := range map[string]string{"history/now": now, "history/before": sourcePrefix, "history/other": "other", "elsewhere": sourcePrefix} {
			roots := map[string]*beneath.Root{}
			for _, name := range []string{"lower", branch.UpperName, workName, branch.MergedName} {
				dir := filepath.Join(top, base, at, name)
				require.NoError(t, os.MkdirAll(dir, 0o700))
				roots[name], err = beneath.OpenDir(dir)
				require.NoError(t, err)
				defer roots[name].Close()
			}
			o := beneath.Overlay{Lower: roots["lower"], Upper: roots[branch.UpperName], Work: roots[workName], Source: source}
			root, err := o.Mount(roots[branch.MergedName])
			require.NoError(t, err)
			defer func() { _ = unix.Unmount(filepath.Join(top, base, at, branch.MergedName), unix.MNT_DETACH) }()
			mounted[filepath.Join(base, at)] = root
			defer root.Close()
		}
	}
	require.NoError(t, UnmountLeft(top+"/link", top+"/link/history"))
	require.NoError(t, UnmountLeft(top+"/gone", top+"/gone/history"))
	var gone []string
	for at, root := range mounted {
		var now, was unix.Stat_t
		require.NoError(t, unix.Fstat(root.FD(), &was))
		if require.NoError(t, unix.Stat(filepath.Join(top, at, branch.MergedName), &now)); now.Dev != was.Dev {
			gone = append(gone, at)
		}
	}
	assert.ElementsMatch(t, []string{"one/history/now", "one/history/before"}, gone)
}
