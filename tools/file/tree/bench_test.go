package tree

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools/file/message"
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

// BenchmarkHandler is what the file work itself costs.
func BenchmarkHandler(b *testing.B) {
	t := newTree(b, map[string]string{"f": strings.Repeat("0123456789abcde\n", 256)})
	spread(b, func() {
		_, err := t.read(context.Background(), message.ReadArgs{Path: "f"})
		require.NoError(b, err)
	})
}
