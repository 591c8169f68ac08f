package audit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
