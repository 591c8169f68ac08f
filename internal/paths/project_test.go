package paths

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/scope"
)

// TestNamed: a project has its id, and the directory's name in it.
func TestNamed(t *testing.T) {
	for id, short := range map[scope.ID]string{"hello-f1b3b52c3a0cd451": "hello", "my-app-f1b3b52c3a0cd451": "my-app", "f1b3b52c3a0cd451": ""} {
		p := Project{ID: id}
		assert.Equal(t, short, p.Short())
		assert.True(t, p.Named(string(id)))
		assert.Equal(t, short != "", p.Named(short))
		assert.False(t, p.Named("other"))
	}
}
