package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/need"
)

// TestFleetSmoke: the bench of a fleet runs, with too few nodes to measure anything. It fails unless the server and the reader have
// each event of each log, and each approval is answered.
func TestFleetSmoke(t *testing.T) {
	need.All(t, "the benchmarks, shortly")
	harness.NeedFUSE(t) // root: the nodes' programs confine themselves
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	bench := filepath.Join(dir, "bench") // beside the program of the nodes
	require.NoError(t, os.Link(self, bench))
	require.NoError(t, os.Link(filepath.Join(filepath.Dir(harness.Program), driver.Export), filepath.Join(dir, driver.Export)))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bench, "fleet", "3", "4", "600", "4", "2", "10", dir, harness.Program)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), errs.String())
	assert.Regexp(t, `half of the nodes showed it after [\d.]+ s, all after`, out.String())
	assert.Contains(t, out.String(), "400 events a node, 1200 in all")
	assert.Regexp(t, `until the node's answer \| \d+ ms \| \d+ ms \| \d+ ms \| 2 \|`, out.String())
}
