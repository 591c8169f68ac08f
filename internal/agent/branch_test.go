package agent

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestTaskOf: only the names that daemons make are those of tasks.
func TestTaskOf(t *testing.T) {
	for name, want := range map[string]bool{
		"task-abcdefghijklmnopqrstuvwxyz": true, "task-234567abcdefghijklmnopqrst": true, "task-": false, "task-a": false, "a": false,
		"task-abcdefghijklmnopqrstuvwxy-": false, "task-0bcdefghijklmnopqrstuvwxyz": false, "task-abcdefghijklmnopqrstuvwxyzz": false,
	} {
		_, ok := taskOf(name)
		assert.Equal(t, want, ok, name)
	}
}
