package fleet

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestWitnesses: each of 100 nodes is a witness of about as many others as it has witnesses. A node that leaves changes no other
// choice.
func TestWitnesses(t *testing.T) {
	const asks = 3
	var all []string
	for i := range 100 {
		all = append(all, fmt.Sprintf("node-%d", i))
	}
	without := func(names ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(names, name) })
	}
	load, chosen := map[string]int{}, map[string][]string{}
	for _, name := range all {
		chosen[name] = witnesses(name, without(name), asks)
		assert.Len(t, chosen[name], asks)
		assert.NotContains(t, chosen[name], name)
		for _, w := range chosen[name] {
			load[w]++
		}
	}
	for name, n := range load {
		assert.LessOrEqual(t, n, 5*asks, name)
	}
	for _, name := range all[1:] {
		left := witnesses(name, without(name, all[0]), asks)
		for _, w := range chosen[name] {
			assert.True(t, w == all[0] || slices.Contains(left, w), "%s of %s", w, name)
		}
	}
	assert.Equal(t, []string{"b"}, witnesses("a", []string{"b"}, asks))
	assert.Empty(t, witnesses("a", nil, asks))
}

func TestHeadSize(t *testing.T) {
	assert.EqualValues(t, 15, headSize("scopefs.log/1\n15\nabc\n"))
	assert.Zero(t, headSize("x"))
	assert.Zero(t, headSize(""))
}
