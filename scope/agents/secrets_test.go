package agents

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// TestSecretsKey: view: {secrets} stands for the rules of files that hold secrets; only seal and hide keep them.
func TestSecretsKey(t *testing.T) {
	def, err := ParseDefinition("agents.d/a.md", []byte("---\nname: a\nview: {secrets: hide, paths: {ro: read}}\n---\n"))
	require.NoError(t, err)
	assert.Equal(t, append(scope.SecretRules(scope.Hide), scope.PathRule{Pattern: "ro", Access: scope.Read}), def.View.Paths)
	assert.Equal(t, []scope.PathRule{{Pattern: scope.Secrets, Access: scope.Hide, Name: scope.Secrets}, {Pattern: "ro", Access: scope.Read}}, Distinct(def.View.Paths))
	_, err = ParseDefinition("agents.d/a.md", []byte("---\nname: a\nview: {secrets: read}\n---\n"))
	assert.ErrorContains(t, err, "read would keep no secret: want seal or hide")
}
