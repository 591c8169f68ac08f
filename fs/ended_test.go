package fs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

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
	v, s, store := keptView(t, base, nothing{})
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

// keptView returns a view of base/tree, its history and what opens that. The caller closes the history.
func keptView(t *testing.T, base string, recorder Recorder) (v *View, s *history.Store, store func() *history.Store) {
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
	store = func() *history.Store {
		s, _, err := history.Open(tree, kept, history.Options{})
		require.NoError(t, err)
		return s
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() {
		unix.Close(pair[0])
		unix.Close(pair[1])
	})
	policy, err := scope.Compile(scope.PolicySpec{})
	require.NoError(t, err)
	s = store()
	v, err = New(tree, pair[0], Options{Policy: policy, Recorder: recorder, Record: scope.RecordWrites, History: s})
	require.NoError(t, err)
	return v, s, store
}

// TestOpenedTooLate: a file that a client moves or removes while another one is about to open it for writing was not opened: the history
// knows how it was left.
func TestOpenedTooLate(t *testing.T) {
	head := fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID}
	for name, change := range map[string]func(v *View) fuse.Status{
		"moved": func(v *View) fuse.Status {
			return v.Rename(nil, &fuse.RenameIn{InHeader: head, Newdir: head.NodeId}, "f", "g")
		},
		"removed": func(v *View) fuse.Status { return v.Unlink(nil, &head, "f") },
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			var do func()
			v, s, _ := keptView(t, base, meanwhile{name: "f", do: &do})
			defer s.Close()
			f := filepath.Join(base, "tree/f")
			require.NoError(t, os.WriteFile(f, []byte("before"), 0o644))
			in := fuse.OpenIn{InHeader: lookedUp(t, v, "f"), Flags: unix.O_WRONLY}
			empty := fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{InHeader: in.InHeader, Valid: fuse.FATTR_SIZE}}
			require.Equal(t, fuse.OK, v.SetAttr(nil, &empty, &fuse.AttrOut{}))
			do = func() { require.Equal(t, fuse.OK, change(v)) }
			require.Equal(t, fuse.Status(unix.ESTALE), v.Open(nil, &in, &fuse.OpenOut{}))
			require.Nil(t, do)
			r, err := s.Undo(t.Context(), history.Selection{}, history.Hooks{})
			require.NoError(t, err)
			assert.Empty(t, r.Conflicts)
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			assert.Equal(t, "before", string(text))
		})
	}
}

// TestClosedWhileKept: a client closes a file, and moves it, while another request keeps it. The history knows how the file was left.
func TestClosedWhileKept(t *testing.T) {
	head := fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID}
	checkpoint := func(s *history.Store, hooks history.Hooks) {
		_, err := s.Checkpoint("p", "", hooks)
		assert.NoError(t, err)
	}
	for name, test := range map[string]struct {
		keep, closed func(v *View, s *history.Store)
	}{
		"by a checkpoint": {func(v *View, s *history.Store) { checkpoint(s, v.Hooks()) }, func(v *View, _ *history.Store) {
			require.Equal(t, fuse.OK, v.Rename(nil, &fuse.RenameIn{InHeader: head, Newdir: head.NodeId}, "f", "g"))
		}},
		"by a removal": {func(v *View, s *history.Store) {
			checkpoint(s, history.Hooks{})
			assert.Equal(t, fuse.OK, v.Unlink(nil, &head, "f"))
		}, func(*View, *history.Store) {}},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			v, s, _ := keptView(t, base, nothing{})
			defer s.Close()
			f := filepath.Join(base, "tree/f")
			text := bytes.Repeat([]byte("before"), history.MaxCopy/6) // the copy takes a while
			require.NoError(t, os.WriteFile(f, text, 0o644))
			in := fuse.OpenIn{InHeader: lookedUp(t, v, "f"), Flags: unix.O_WRONLY}
			var out fuse.OpenOut
			require.Equal(t, fuse.OK, v.Open(nil, &in, &out))
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				test.keep(v, s)
			}()
			require.Eventually(t, func() bool {
				copies, err := filepath.Glob(filepath.Join(base, "kept/*/1")) // the first is of Open
				return err == nil && len(copies) == 2
			}, time.Minute, time.Millisecond)
			h, _ := v.files.remove(out.Fh)
			h.keep.Left(h.node.ident(), h.file.Stat) // as close does after the reply
			h.file.Close()
			test.closed(v, s)
			<-ended
			r, err := s.Undo(t.Context(), history.Selection{Checkpoint: "p"}, history.Hooks{})
			require.NoError(t, err)
			assert.Empty(t, r.Conflicts)
			now, err := os.ReadFile(f)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(text, now))
		})
	}
}
