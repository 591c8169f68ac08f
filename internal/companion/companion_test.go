package companion

import (
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPrograms: each directory of cmd is a program that is installed.
func TestPrograms(t *testing.T) {
	dirs, err := os.ReadDir("../../cmd")
	require.NoError(t, err)
	var names []string
	for _, dir := range dirs {
		if dir.Name() != "scopefs" {
			names = append(names, dir.Name())
		}
	}
	assert.Equal(t, names, slices.Sorted(maps.Keys(Programs())))
}
