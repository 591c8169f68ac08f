package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// BenchmarkQuota measures what limits.disk costs: operations in views of three agents take turns. It asserts nothing about
// time. The files are below TMPDIR.
func BenchmarkQuota(b *testing.B) {
	sides := []string{"plain", "again", "limited"} // again: how much two equal sides differ
	h := harness.NewHost(b, map[string]string{"plain": "", "again": "", "limited": "limits: {disk: 4GiB}"})
	h.Eventually("they are counted", func() bool { return !h.Agent("limited").Disk.Counting })
	block, big := make([]byte, 4<<10), make([]byte, 128<<10)
	const n = 2000
	each := func(dir string, do func(name string) error) {
		for i := range n {
			require.NoError(b, do(filepath.Join(dir, fmt.Sprint(i))))
		}
	}
	write := func(dir string, p []byte, count int) {
		f, err := os.OpenFile(filepath.Join(dir, "f"), os.O_WRONLY|os.O_CREATE, 0o600)
		require.NoError(b, err)
		defer f.Close()
		for range count {
			_, err = f.Write(p)
			require.NoError(b, err)
		}
	}
	ops := []struct {
		name string
		do   func(dir string)
	}{
		{"create 2,000 files", func(dir string) { each(dir, func(name string) error { return os.WriteFile(name, nil, 0o600) }) }},
		{"stat them", func(dir string) { each(dir, func(name string) error { _, err := os.Lstat(name); return err }) }},
		{"write 4 KiB over each", func(dir string) { each(dir, func(name string) error { return os.WriteFile(name, block, 0o600) }) }},
		{"read them", func(dir string) { each(dir, func(name string) error { _, err := os.ReadFile(name); return err }) }},
		{"remove them", func(dir string) { each(dir, os.Remove) }},
		{"write 64 MiB by 128 KiB", func(dir string) { write(dir, big, 512) }},
		{"write 64 MiB again", func(dir string) { write(dir, big, 512) }},
		{"write 16 MiB by 4 KiB", func(dir string) { write(dir, block, 4096) }},
		{"read 64 MiB", func(dir string) { _, err := os.ReadFile(filepath.Join(dir, "f")); require.NoError(b, err) }},
	}
	took := make([]map[string][]time.Duration, len(ops))
	for i := range took {
		took[i] = map[string][]time.Duration{}
	}
	const rounds = 11
	for range rounds {
		for i, op := range ops {
			for _, side := range sides {
				began := time.Now()
				op.do(h.View(side))
				took[i][side] = append(took[i][side], time.Since(began))
			}
		}
		for _, side := range sides {
			require.NoError(b, os.Remove(h.View(side, "f")))
		}
	}
	median := func(all []time.Duration) time.Duration {
		slices.Sort(all)
		return all[len(all)/2]
	}
	fmt.Println("| operation | without a limit, ms | limits.disk | without, again |\n|---|---|---|---|")
	for i, op := range ops {
		plain := median(took[i]["plain"])
		fmt.Printf("| %s | %.1f | %.2f× | %.2f× |\n", op.name, float64(plain.Microseconds())/1000,
			float64(median(took[i]["limited"]))/float64(plain), float64(median(took[i]["again"]))/float64(plain))
	}
}
