package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestPeersSmoke: run.sh and work.sh measure the peers by default, name the fastest layer of each row, and end with how
// often that is scopefs. A passthrough_hp in PATH is a peer. One that cannot do the work has no time and ends nothing.
func TestPeersSmoke(t *testing.T) {
	need.All(t, "the benchmarks, shortly")
	harness.NeedFUSE(t)
	need.Program(t, "bindfs")
	bin := t.TempDir()
	harness.Executable(t, bin+"/passthrough_hp", []byte("#!/bin/sh\nmount -t tmpfs -o nr_inodes=100 tmpfs \"$2\"\n"))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for name, test := range map[string]struct {
		script, row string
		fails       bool
	}{
		"all work":  {"./run.sh", "rename", false},
		"one fails": {"./work.sh", "find -type f, 400 files", true},
	} {
		t.Run(name, func(t *testing.T) {
			lines := strings.Split(strings.TrimSpace(output(t, test.script, "-smoke", "-only", test.row)), "\n")
			require.Len(t, lines, 5, "a head of two lines, a row, an empty line and the summary: %q", lines)
			head, cells := columns(lines[0]), columns(lines[2])
			require.Equal(t, []string{"bindfs", "loopback", "passthrough_hp", "scopefs", "fastest"}, head[2:])
			require.Len(t, cells, len(head))
			times := map[string]float64{}
			for i, layer := range head[2:6] {
				if test.fails && layer == "passthrough_hp" {
					require.Equal(t, "failed", cells[i+2])
					continue
				}
				var err error
				times[layer], err = strconv.ParseFloat(strings.TrimSuffix(cells[i+2], "×"), 64)
				require.NoError(t, err)
			}
			fastest := cells[6]
			require.Contains(t, times, fastest)
			for layer, time := range times {
				assert.GreaterOrEqual(t, time, times[fastest], layer)
			}
			want := "scopefs is the fastest layer in 0 of 1 rows; others: " + test.row + " (" + fastest + ")"
			if fastest == "scopefs" {
				want = "scopefs is the fastest layer in 1 of 1 rows"
			}
			assert.Equal(t, want, lines[4])
		})
	}
}

// TestNoPeersSmoke: work.sh -nopeers measures scopefs alone, and names no fastest layer.
func TestNoPeersSmoke(t *testing.T) {
	need.All(t, "the benchmarks, shortly")
	harness.NeedFUSE(t)
	lines := strings.Split(strings.TrimSpace(output(t, "./work.sh", "-smoke", "-nopeers", "-only", "find")), "\n")
	require.Len(t, lines, 3)
	assert.Equal(t, []string{"workload", "native", "scopefs"}, columns(lines[0]))
}

// TestSummary: the summary names each row that another layer wins.
func TestSummary(t *testing.T) {
	need.All(t, "the benchmarks, shortly")
	need.Root(t, "the scripts do")
	const table = `| operation | native µs | bindfs | scopefs | fastest |
|---|---|---|---|---|
| create + write | 9.79 | 9.8× | 10.5× | bindfs |
| tar x, 400 files | 1.72 | failed | 1.2× | scopefs |
| rm -rf | 2.53 | 1.1× | 1.2× | bindfs |`
	assert.Equal(t, "\nscopefs is the fastest layer in 1 of 3 rows; others: create + write (bindfs); rm -rf (bindfs)\n",
		output(t, "bash", "-euc", `cd ../..; . integration/bench/sides.sh; summary <<<"$0"`, table))
}

// output returns what a command prints.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	require.NoError(t, err, said.String())
	return string(out)
}

// columns are the cells of a line of a Markdown table.
func columns(line string) []string {
	return strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), " |"), " | ")
}
