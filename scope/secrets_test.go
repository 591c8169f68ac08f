package scope

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSecretRules: the rules of a named set decide as their patterns, and texts for people have the name.
func TestSecretRules(t *testing.T) {
	policy, err := Compile(PolicySpec{Access: Write, Paths: append(SecretRules(Seal), PathRule{Pattern: "ro", Access: Read})})
	require.NoError(t, err)
	for rel, allow := range map[string]bool{
		".env": false, "a/.env.local": false, ".env.example": true, "k/dev.pem": false, "cacert.pem": true, ".ssh/id_rsa": false, "id_rsa.pub": true, "main.go": true,
	} {
		assert.Equal(t, allow, policy.File(OpOpen, rel).Allow, rel)
	}
	assert.Equal(t, "secrets: seal", policy.File(OpOpen, "a/.env").Rule)
	assert.Equal(t, "remove secrets from view", policy.Remedy(OpOpen, "a/.env"))
}
