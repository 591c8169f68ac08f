package fs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// TestEndedBeforeRelease: the kernel drops the RELEASE of a file that was closed right before the end of the mount. The history knows how
// that file was left, and not how one is that a process still has open for writing.
func TestEndedBeforeRelease(t *testing.T) {
	base := t.TempDir()
	for _, name := range []string{"tree", "kept"} {
		require.NoError(t, os.Mkdir(filepath.Join(base, name), 0o755))
	}
	open := func(name string) *beneath.Root {
		r, err := beneath.OpenDir(filepath.Join(base, name))
		require.NoError(t, err)
		t.Cleanup(func() { r.Close() })
		return r
	}
	tree, kept := open("tree"), open("kept")
	store := func() *history.Store {
		s, _, err := history.Open(tree, kept, history.Options{})
		require.NoError(t, err)
		return s
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	policy, err := scope.Compile(scope.PolicySpec{})
	require.NoError(t, err)
	s := store()
	v, err := New(tree, pair[0], Options{Policy: policy, Recorder: nothing{}, History: s})
	require.NoError(t, err)
	files := []string{"left", "secret", "mapped"}
	for i, name := range files {
		require.NoError(t, os.WriteFile(filepath.Join(base, "tree", name), []byte("before"), 0o644))
		var entry fuse.EntryOut
		require.Equal(t, fuse.OK, v.Lookup(nil, &fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID}, name, &entry))
		var out fuse.OpenOut
		in := fuse.OpenIn{InHeader: fuse.InHeader{NodeId: entry.NodeId}, Flags: unix.O_WRONLY}
		require.Equal(t, fuse.OK, v.Open(nil, &in, &out), name)
		require.Equal(t, fuse.OK, v.Open(nil, &in, &out), name) // by two processes
		write := fuse.WriteIn{InHeader: in.InHeader, Fh: out.Fh, Size: 5}
		_, status := v.Write(nil, &write, []byte("after"))
		require.Equal(t, fuse.OK, status)
		if i == 1 {
			require.NoError(t, os.Chmod(filepath.Join(base, "tree", name), 0o200))
		}
	}
	client, err := os.OpenFile(filepath.Join(base, "tree", "mapped"), os.O_WRONLY, 0) // as by passthrough
	require.NoError(t, err)
	defer client.Close()
	v.OnUnmount()
	s.Close()
	s = store()
	defer s.Close()
	r, err := s.Undo(t.Context(), history.Selection{}, history.Hooks{})
	require.NoError(t, err)
	require.Len(t, r.Conflicts, 1)
	assert.Equal(t, "mapped", r.Conflicts[0].Path)
	text, err := os.ReadFile(filepath.Join(base, "tree", "left"))
	require.NoError(t, err)
	assert.Equal(t, "before", string(text))
}
