package agents

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// TestProtect: each list is read, has a description, and makes a policy. Their patterns
// match in every directory and so prevent no move of one that is not protected.
func TestProtect(t *testing.T) {
	for _, p := range protections() {
		assert.NotEmpty(t, p.description, p.name)
		def, err := ParseDefinition("a.md", []byte("---\nname: a\nprotect: ["+p.name+"]\n---\n"))
		require.NoError(t, err, p.name)
		policy, err := scope.Compile(def.View.PolicySpec())
		require.NoError(t, err, p.name)
		assert.False(t, policy.Uniform(), p.name)
		assert.True(t, policy.Move("a/b").Allow, p.name)
		for _, pattern := range p.paths {
			assert.Regexp(t, `^\*\*/[^/]+$`, pattern)
		}
	}
	def, err := ParseDefinition("a.md", []byte("---\nname: a\nprotect: ['*', editor]\n---\n"))
	require.NoError(t, err)
	assert.Len(t, def.View.Protect, 6)
	assert.True(t, def.View.Git.Hooks)
	assert.Contains(t, def.View.Git.Config, "core.bare")
}
