package fs

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// usedDir looks up a directory and a name in it: the view watches it and keeps it open.
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
