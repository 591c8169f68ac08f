package main

import (
	"github.com/scopefs/scopefs/internal/need"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && parts[os.Args[1]].run != nil { // TestEgressSmoke and TestFleetSmoke start this program
		main()
		return
	}
	harness.Main(m)
}

// TestStoresSmoke: the bench of the stores runs, with too few calls to measure anything.
func TestStoresSmoke(t *testing.T) {
	need.All(t, "the benchmarks, shortly")
	harness.NeedFUSE(t)
	require.NoError(t, storesCompare(arguments{"4", "1", t.TempDir(), harness.Program}))
}

// TestContextSmoke: likewise the bench of contexts.
func TestContextSmoke(t *testing.T) {
	need.All(t, "the benchmarks, shortly")
	harness.NeedFUSE(t)
	require.NoError(t, contextCompare(arguments{"4", "1", t.TempDir(), harness.Program, ""}))
}

// TestEgressSmoke: likewise the bench of the network, without other programs' proxies.
func TestEgressSmoke(t *testing.T) {
	need.All(t, "the benchmarks, shortly")
	harness.NeedFUSE(t)
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, egressCompare(arguments{"4", "1", "1", "4", t.TempDir(), harness.Program, self, "", ""}))
}

// TestRestartSmoke: likewise the bench of restarts, which fails if a program in a view has an error, or an operation is not in
// the log once.
func TestRestartSmoke(t *testing.T) {
	need.All(t, "the benchmarks, shortly")
	harness.NeedFUSE(t)
	dir, err := os.MkdirTemp("/dev/shm", "scopefs-bench-") // views have spools on tmpfs
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, restartCompare(arguments{"1", "3", "2", dir, harness.Program, self}))
}
