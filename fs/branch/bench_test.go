package branch

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

// BenchmarkCommit commits one changed file, durably.
func BenchmarkCommit(b *testing.B) {
	f := newFork(b, "file=1", "other/file=1")
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		f.make(f.merged, fmt.Sprintf("file=%d", i+2))
		b.StartTimer()
		r, err := f.Commit(context.Background(), Options{})
		if err != nil || len(r.Taken) != 1 {
			b.Fatal(err, r)
		}
	}
}

// BenchmarkMoved compares a branch that has moved a directory of many files.
func BenchmarkMoved(b *testing.B) {
	f := newFork(b, "dir/")
	for i := range 20_000 {
		if err := os.WriteFile(fmt.Sprintf("%s/dir/%d", f.base, i), nil, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	f.rename(f.merged, "dir", "to")
	for b.Loop() {
		if s, err := f.Diff(context.Background(), nil, false); err != nil || len(s.Entries) != 1 {
			b.Fatal(err, s)
		}
	}
}

// BenchmarkKeep keeps what a branch shows.
func BenchmarkKeep(b *testing.B) {
	f := newFork(b, "old="+strings.Repeat(text, 1000))
	st, err := f.Base.Stat("old")
	require.NoError(b, err)
	bases := f.newBases()
	for b.Loop() {
		bases.records = 0
		bases.Read("old", "old", &st, false)("old", &st)
	}
}
