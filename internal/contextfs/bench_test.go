package contextfs_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/internal/contextfs"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// BenchmarkStart measures the start of a process until it serves, and its processor time. CONTEXTFS_TEST_PROGRAM names the
// program.
func BenchmarkStart(b *testing.B) {
	need.Root(b, "it mounts")
	control := fusemount.OpenControl()
	defer control.Close()
	used := func() time.Duration {
		var r unix.Rusage
		require.NoError(b, unix.Getrusage(unix.RUSAGE_CHILDREN, &r))
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	before := used()
	for b.Loop() {
		ready := make(chan int, 1)
		m, err := contextfs.Open(contextfs.Options{
			UID: agentUID, GID: agentUID, Root: true, Program: program, Control: control, Logger: slog.New(slog.DiscardHandler),
			Ready: func(pid int) { ready <- pid }, Died: func(_ *sandbox.Session, why error) { b.Error(why) },
		})
		require.NoError(b, err)
		<-ready
		m.Close()
	}
	b.ReportMetric(float64((used()-before).Microseconds())/float64(b.N), "cpu-µs/op")
}
