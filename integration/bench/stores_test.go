package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// TestStoresSmoke: the bench of the stores runs, with too few calls to measure anything.
func TestStoresSmoke(t *testing.T) {
	harness.NeedFUSE(t)
	require.NoError(t, storesCompare(arguments{"4", "1", t.TempDir(), harness.Program}))
}

// TestContextSmoke: likewise the bench of contexts.
func TestContextSmoke(t *testing.T) {
	harness.NeedFUSE(t)
	require.NoError(t, contextCompare(arguments{"4", "1", t.TempDir(), harness.Program, ""}))
}
