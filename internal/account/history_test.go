package account

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/beneath/mounts"
)

func TestOpenHistory(t *testing.T) {
	need.Root(t, "gives directories to another user")
	const user = 65534
	place := func(t *testing.T) (dir string) {
		dir, err := os.MkdirTemp("", "scopefs-history-")
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
		dir, err = filepath.EvalSymlinks(dir)
		require.NoError(t, err)
		require.NoError(t, os.Chmod(dir, 0o755))
		return dir
	}
	cases := map[string]struct {
		before func(t *testing.T, base, other string)
		dir    string // history.dir, in other
		want   string // of the error; "": none
	}{
		"new": {},
		"again": {before: func(t *testing.T, base, _ string) {
			require.NoError(t, os.MkdirAll(base+"/history/a", 0o700))
			require.NoError(t, os.WriteFile(base+"/history/a/kept", nil, 0o600))
			require.NoError(t, os.Chown(base+"/history/a", user, user))
		}},
		"a daemon was killed": {before: func(t *testing.T, base, _ string) {
			require.NoError(t, os.MkdirAll(base+"/history/a", 0o700))
		}},
		"another user's": {before: func(t *testing.T, base, _ string) {
			require.NoError(t, os.MkdirAll(base+"/history/a", 0o700))
			require.NoError(t, os.Chown(base+"/history/a", 1000, 1000))
		}, want: "is of user 1000, and the agent runs as user 65534: move it away"},
		"root's, and not new": {before: func(t *testing.T, base, _ string) {
			require.NoError(t, os.MkdirAll(base+"/history/a/kept", 0o700))
		}, want: "is of user 0, and the agent runs as user 65534"},
		"open to others": {before: func(t *testing.T, base, _ string) {
			require.NoError(t, os.MkdirAll(base+"/history/a", 0o755))
			require.NoError(t, os.Chown(base+"/history/a", user, user))
		}, want: "is open to others than user 65534: chmod 700 it"},
		"a link": {before: func(t *testing.T, base, other string) {
			require.NoError(t, os.Mkdir(base+"/history", 0o711))
			require.NoError(t, os.Symlink(other, base+"/history/a"))
		}, want: "is no directory"},
		"histories are a link": {before: func(t *testing.T, base, other string) {
			require.NoError(t, os.Symlink(other, base+"/history"))
		}, want: "is no directory, or a symbolic link: replace it"},
		"a mount": {before: func(t *testing.T, base, _ string) {
			at := base + "/history/a"
			require.NoError(t, os.MkdirAll(at, 0o700))
			require.NoError(t, unix.Mount("none", at, "tmpfs", 0, ""))
			t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		}, want: "is a mount of its own: write a history: {dir: PATH}"},
		"another mount": {before: func(t *testing.T, base, _ string) {
			at := base + "/history" // of the same file system
			require.NoError(t, os.Mkdir(at, 0o711))
			require.NoError(t, unix.Mount(at, at, "", unix.MS_BIND, ""))
			t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		}, want: "is not on the mount of the agent's directory: write a history: {dir: PATH}"},
		"elsewhere": {dir: "h", before: func(t *testing.T, _, other string) {
			require.NoError(t, os.Mkdir(other+"/h", 0o711))
		}},
		"elsewhere, of a stranger": {dir: "h", before: func(t *testing.T, _, other string) {
			require.NoError(t, os.Mkdir(other+"/h", 0o711))
			require.NoError(t, os.Chown(other+"/h", 1000, 1000))
		}, want: "others than that user can replace it"},
		"elsewhere, missing": {dir: "h", want: "no such file or directory: make it"},
		"elsewhere, a link": {dir: "h", before: func(t *testing.T, _, other string) {
			require.NoError(t, os.Symlink("/usr", other+"/h"))
		}, want: "leads through a symbolic link"},
		"in another agent's files": {dir: "b/h", before: func(t *testing.T, _, other string) {
			require.NoError(t, os.MkdirAll(other+"/b/h", 0o711))
		}, want: "choose a history.dir apart from the files of agent b"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			base, other := place(t), place(t)
			require.NoError(t, os.MkdirAll(base+"/agents/a", 0o700))
			require.NoError(t, os.Chown(base+"/agents/a", user, user))
			if c.before != nil {
				c.before(t, base, other)
			}
			def := &agents.Definition{Name: "a", View: agents.ViewSpec{Changes: agents.ChangesKept}}
			if c.dir != "" {
				def.History.Dir = filepath.Join(other, c.dir)
			}
			h := &Host{
				Paths: config.Paths{Base: base, State: base + "/state", Run: base + "/run"}, Root: true, Logger: slog.New(slog.DiscardHandler),
				Definitions: func() map[scope.ID]*agents.Agent {
					return map[scope.ID]*agents.Agent{"a": {Definition: def}, "b": {Definition: &agents.Definition{Name: "b", Dir: other + "/b"}}}
				},
			}
			root, owner, err := h.OpenScope(def)
			require.NoError(t, err)
			defer root.Close()
			history, err := h.OpenHistory(def, root, owner)
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				assert.Regexp(t, `^history: `, err.Error())
				return
			}
			require.NoError(t, err)
			defer history.Close()
			st, err := history.Stat("")
			require.NoError(t, err)
			assert.Equal(t, [3]uint32{user, user, 0o40700}, [3]uint32{st.Uid, st.Gid, uint32(st.Mode)})
			pair, err := mounts.DetachWith(root, history)
			require.NoError(t, err)
			pair.Close()
			again, _, err := h.OpenScope(def)
			require.NoError(t, err, "a history of its own is no hindrance")
			again.Close()
		})
	}
}
