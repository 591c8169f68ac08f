package fs

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

func benchView(b *testing.B) *View {
	base, err := os.MkdirTemp("/dev/shm", "scopefs-bench-")
	require.NoError(b, err)
	b.Cleanup(func() { os.RemoveAll(base) })
	dir := filepath.Join(base, "agents", "a", "d", "e")
	require.NoError(b, os.MkdirAll(dir, 0o755))
	require.NoError(b, os.WriteFile(filepath.Join(base, "agents", "a", "f"), make([]byte, 4096), 0o644))
	root, err := beneath.OpenRoot(base, "agents/a")
	require.NoError(b, err)
	p, err := scope.Compile(scope.PolicySpec{})
	require.NoError(b, err)
	v, err := New(root, -1, Options{Policy: p, Recorder: nothing{}, Logger: slog.Default()})
	require.NoError(b, err)
	return v
}

func BenchmarkLookup(b *testing.B) {
	v := benchView(b)
	head := &fuse.InHeader{NodeId: 1}
	b.ReportAllocs()
	for b.Loop() {
		var out fuse.EntryOut
		v.Lookup(nil, head, "f", &out)
	}
}

func BenchmarkGetAttr(b *testing.B) {
	v := benchView(b)
	var e fuse.EntryOut
	v.Lookup(nil, &fuse.InHeader{NodeId: 1}, "f", &e)
	in := &fuse.GetAttrIn{InHeader: fuse.InHeader{NodeId: e.NodeId}}
	b.ReportAllocs()
	for b.Loop() {
		var out fuse.AttrOut
		v.GetAttr(nil, in, &out)
	}
}

func BenchmarkOpen(b *testing.B) {
	v := benchView(b)
	var e fuse.EntryOut
	v.Lookup(nil, &fuse.InHeader{NodeId: 1}, "f", &e)
	in := &fuse.OpenIn{InHeader: fuse.InHeader{NodeId: e.NodeId}}
	b.ReportAllocs()
	for b.Loop() {
		var out fuse.OpenOut
		v.Open(nil, in, &out)
		v.Release(nil, &fuse.ReleaseIn{Fh: out.Fh})
	}
}

func BenchmarkCreateUnlink(b *testing.B) {
	v := benchView(b)
	in := &fuse.CreateIn{InHeader: fuse.InHeader{NodeId: 1}, Flags: 1, Mode: 0o644}
	b.ReportAllocs()
	for b.Loop() {
		var out fuse.CreateOut
		if s := v.Create(nil, in, "n", &out); s != 0 {
			b.Fatal(s)
		}
		v.Release(nil, &fuse.ReleaseIn{Fh: out.Fh})
		v.Unlink(nil, &in.InHeader, "n")
		v.Forget(out.NodeId, 1)
	}
}

func BenchmarkReadDirPlus(b *testing.B) {
	v := benchView(b)
	const n = 1000
	at := "/proc/self/fd/" + strconv.Itoa(v.root.FD()) + "/d/"
	for i := range n {
		require.NoError(b, os.WriteFile(fmt.Sprintf("%sfile-%04d", at, i), nil, 0o644))
	}
	var e fuse.EntryOut
	v.Lookup(nil, &fuse.InHeader{NodeId: 1}, "d", &e)
	buf := make([]byte, 1<<20)
	b.ReportAllocs()
	for b.Loop() {
		var out fuse.OpenOut
		head := fuse.InHeader{NodeId: e.NodeId}
		v.OpenDir(nil, &fuse.OpenIn{InHeader: head}, &out)
		list := fuse.NewDirEntryList(buf, 0)
		v.ReadDirPlus(nil, &fuse.ReadIn{InHeader: head, Fh: out.Fh, Size: 1 << 20}, list)
		v.ReleaseDir(&fuse.ReleaseIn{Fh: out.Fh})
		for id := range v.nodes.byID {
			if id != 1 && id != e.NodeId {
				v.Forget(id, 1)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*(n-1)), "ns/entry")
}
