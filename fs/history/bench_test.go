package history

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func BenchmarkCheckpoint(b *testing.B) {
	c := newClient(b)
	c.create("f", "one")
	for b.Loop() {
		_, err := c.store.Checkpoint("p", "", Hooks{})
		require.NoError(b, err)
	}
}

// BenchmarkUndo takes back a call that has written 500 files and removed 500 others.
func BenchmarkUndo(b *testing.B) {
	c := newClient(b)
	c.mkdir("d")
	for i := range 1000 {
		c.create(fmt.Sprintf("d/%d", i), "one")
	}
	for n := 0; b.Loop(); n++ {
		b.StopTimer()
		c.label = Label{Call: fmt.Sprint(n)}
		for i := range 500 {
			c.write(fmt.Sprintf("d/%d", i), "two")
			c.unlink(fmt.Sprintf("d/%d", i+500))
		}
		b.StartTimer()
		r, err := c.store.Undo(b.Context(), Selection{Calls: []string{fmt.Sprint(n)}}, Hooks{})
		require.NoError(b, err)
		require.Empty(b, r.Conflicts)
	}
	_, err := os.Stat(filepath.Join(c.dir, "d/999"))
	require.NoError(b, err)
}

// BenchmarkEffects: the effects of a call that has written one file: openat2, statx, pread, fcntl and two closes, by strace -c.
func BenchmarkEffects(b *testing.B) {
	c := newClient(b)
	began := time.Now()
	c.label = Label{Session: "s", Call: "x"}
	c.create("f", "text")
	for b.Loop() {
		c.effects(Work{Call: "x", Began: began})
	}
}
