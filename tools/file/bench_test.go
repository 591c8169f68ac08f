package file

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools/file/worker"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// spread reports the median and the 99th percentile of f, in µs.
func spread(b *testing.B, f func()) {
	for range 100 {
		f()
	}
	var took []time.Duration
	for b.Loop() {
		begin := time.Now()
		f()
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "µs-p50")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "µs-p99")
}

// BenchmarkSandbox is a call over the pipes of a real sandbox; its view is a
// directory without FUSE.
func BenchmarkSandbox(b *testing.B) {
	t := newTree(b, map[string]string{"f": strings.Repeat("0123456789abcde\n", 256)})
	w, _ := newSandboxWorker(b, t.root)
	spread(b, func() {
		_, err := do[ReadArgs, ReadResult](context.Background(), w, "call-1", operation{"read_file", true}, ReadArgs{Path: "f"})
		require.NoError(b, err)
	})
}

// newSandboxWorker starts a sandbox whose view is a directory, and a worker in it.
func newSandboxWorker(t testing.TB, dir string) (*Files, *sandbox.Session) {
	t.Helper()
	if err := sandbox.Check(context.Background(), sandbox.Config{}); err != nil {
		need.Skip(t, "no sandbox here: ", err)
	}
	h, err := sandbox.Open(sandbox.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	for p := dir; p != "/tmp" && len(p) > 1; p = p[:strings.LastIndexByte(p, '/')] {
		require.NoError(t, os.Chmod(p, 0o755))
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	view := os.NewFile(uintptr(fd), dir)
	t.Cleanup(func() { view.Close() })
	var st unix.Stat_t
	require.NoError(t, unix.Stat(dir, &st))
	s, err := h.Start(context.Background(), sandbox.Spec{Agent: "tester", UID: st.Uid, GID: st.Gid, View: view})
	require.NoError(t, err)
	w := New(worker.New(worker.In(s, Own)))
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	require.NoError(t, w.Start(context.Background()))
	return w, s
}
