package daemon

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/internal/api"
)

// TestProcessesBelow: an agent hides no process below a long line of parents, and a loop
// of reused numbers ends.
func TestProcessesBelow(t *testing.T) {
	all := processTable{}
	for pid := 1; pid <= 1000; pid++ {
		all[pid] = &process{Use: api.Use{CPU: 1, Processes: 1}, name: "p", children: []int{pid + 1}}
	}
	all[1001] = &process{Use: api.Use{CPU: 7, Processes: 1}, name: "miner"}
	sum := all.below(1, true)
	assert.Equal(t, 1001, sum.Processes)
	assert.Equal(t, "miner", sum.Busiest)
	all[1001].children = []int{5}
	assert.Equal(t, 1001, all.below(1, true).Processes)
	assert.Zero(t, all.below(0, true).Processes)
	assert.Zero(t, all.below(2000, true).Processes)
}
