package audit

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit/proof"
)

func BenchmarkAppend(b *testing.B) {
	l := open(b, b.TempDir(), Options{})
	e := Event{
		Event: KindFile, Agent: "research-01", Session: "01J9Z", Op: "open", Path: "reference/notes/today.md",
		Target: "../other/notes.md", Verdict: Deny, Rule: "view.paths", Errno: "EACCES", PID: 4242, UID: new(uint32(1000)),
	}
	b.Run("alone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := l.Append(noCtx, e); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("64 at once", func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(64)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := l.Append(noCtx, e); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("encode only", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			appendBody(make([]byte, 0, 256), clean(e))
		}
	})
	b.Run("write only", func(b *testing.B) {
		f, err := os.Create(filepath.Join(b.TempDir(), "f"))
		require.NoError(b, err)
		defer f.Close()
		text := line(e)
		for b.Loop() {
			if _, err := f.Write(text); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkSustained appends as the daemon does with record: all, to a log that signs and compresses meanwhile, and closes it.
func BenchmarkSustained(b *testing.B) {
	l, err := Open(b.TempDir(), Options{})
	require.NoError(b, err)
	events := make([]Event, 100)
	for i := range events {
		events[i] = Event{Event: KindFile, Agent: "research-01", Session: "01J9Z", Op: "open", Path: fmt.Sprint("reference/notes/today", i, ".md"), Verdict: Allow}
	}
	for b.Loop() {
		require.NoError(b, l.AppendAll(events))
	}
	require.NoError(b, l.Close())
	b.ReportMetric(float64(len(events)*b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkVerify verifies a log of 400,000 lines, most of them packed.
func BenchmarkVerify(b *testing.B) {
	dir := b.TempDir()
	l := open(b, dir, Options{Sync: 50 * time.Millisecond})
	events := make([]Event, 1000)
	for i := range events {
		events[i] = Event{
			Event: KindFile, Agent: "research-01", Session: "01J9Z", Op: "open", Path: fmt.Sprint("reference/notes/today", i, ".md"),
			Verdict: Allow, PID: 4242 + i, UID: new(uint32(1000)),
		}
	}
	const groups = 400
	for range groups {
		require.NoError(b, l.AppendAll(events))
	}
	require.Eventually(b, func() bool { return packed(dir) }, time.Minute, 10*time.Millisecond)
	require.NoError(b, l.Close())
	for b.Loop() {
		v, err := proof.Verify(noCtx, dir, proof.VerifyOptions{})
		require.NoError(b, err)
		require.Equal(b, int64(groups*len(events)), v.Head.Size)
	}
	b.ReportMetric(float64(groups*len(events)*b.N)/b.Elapsed().Seconds(), "lines/s")
}
