package fs

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// usedDir looks up a directory and a name in it, so that the view watches it.
func usedDir(v *View, name string) fuse.InHeader {
	var out fuse.EntryOut
	v.Lookup(nil, &fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID}, name, &out)
	head := fuse.InHeader{NodeId: out.NodeId}
	v.Lookup(nil, &head, "absent", &fuse.EntryOut{})
	return head
}

// TestReplacedWhileForgotten: a directory is moved over another while the kernel forgets a
// third. The rename and the FORGET take the same two locks.
func TestReplacedWhileForgotten(t *testing.T) {
	base := t.TempDir()
	v, _ := watchedView(t, base)
	require.NoError(t, os.Mkdir(filepath.Join(base, "third"), 0o755))
	end := time.Now().Add(time.Second)
	ended := make(chan int, 2)
	loop := func(do func()) {
		n := 0
		for ; time.Now().Before(end); n++ {
			do()
		}
		ended <- n
	}
	go loop(func() { v.Forget(usedDir(v, "third").NodeId, 1) })
	go loop(func() {
		for _, name := range []string{"a", "b"} {
			_ = os.Mkdir(filepath.Join(base, name), 0o755)
		}
		b := usedDir(v, "b")
		in := fuse.RenameIn{InHeader: fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID}, Newdir: fuse.FUSE_ROOT_ID}
		assert.Equal(t, fuse.OK, v.Rename(nil, &in, "a", "b"))
		v.Forget(b.NodeId, 1)
	})
	for range 2 {
		select {
		case n := <-ended:
			assert.Positive(t, n)
		case <-time.After(20 * time.Second):
			require.Fail(t, "the rename and the FORGET wait for each other")
		}
	}
}

// TestRemovedOpen: a client has a removed directory open. GETATTR returns the last attributes
// that the view has read, and a change fails.
func TestRemovedOpen(t *testing.T) {
	base := t.TempDir()
	v, _ := watchedView(t, base)
	require.NoError(t, os.Mkdir(filepath.Join(base, "d"), 0o755))
	head := usedDir(v, "d")
	require.Equal(t, fuse.OK, v.Rmdir(nil, &fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID}, "d"))
	var out fuse.AttrOut
	change := fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{InHeader: head, Valid: fuse.FATTR_MODE, Mode: 0o700}}
	assert.NotEqual(t, fuse.OK, v.SetAttr(nil, &change, &out))
	require.Equal(t, fuse.OK, v.GetAttr(nil, &fuse.GetAttrIn{InHeader: head}, &out))
	assert.EqualValues(t, unix.S_IFDIR|0o755, out.Mode)
	assert.Zero(t, out.Nlink)
}

// TestMovedBack: the host moves a directory out of the scope and later to a place in it that
// the view has not seen. Requests act in it again after a lookup there, and nowhere before.
func TestMovedBack(t *testing.T) {
	base, away := t.TempDir(), filepath.Join(t.TempDir(), "d")
	v, _ := watchedView(t, base)
	require.NoError(t, os.Mkdir(filepath.Join(base, "d"), 0o755))
	back := filepath.Join(base, "unseen/deep/d")
	require.NoError(t, os.MkdirAll(filepath.Dir(back), 0o755))
	head := usedDir(v, "d")
	do := func() [2]fuse.Status {
		return [2]fuse.Status{
			v.GetAttr(nil, &fuse.GetAttrIn{InHeader: head}, &fuse.AttrOut{}),
			v.Mkdir(nil, &fuse.MkdirIn{InHeader: head, Mode: 0o755}, "m", &fuse.EntryOut{}),
		}
	}
	stale := fuse.Status(unix.ESTALE)
	require.NoError(t, os.Rename(filepath.Join(base, "d"), away))
	for range 3 {
		assert.Equal(t, [2]fuse.Status{stale, stale}, do())
	}
	assert.NoDirExists(t, filepath.Join(away, "m"))
	require.NoError(t, os.Rename(away, back))
	assert.Equal(t, [2]fuse.Status{stale, stale}, do())
	at := uint64(fuse.FUSE_ROOT_ID)
	for _, name := range []string{"unseen", "deep", "d"} {
		var out fuse.EntryOut
		require.Equal(t, fuse.OK, v.Lookup(nil, &fuse.InHeader{NodeId: at}, name, &out))
		at = out.NodeId
	}
	assert.Equal(t, head.NodeId, at)
	assert.Equal(t, [2]fuse.Status{fuse.OK, fuse.OK}, do())
	assert.DirExists(t, filepath.Join(back, "m"))
}
