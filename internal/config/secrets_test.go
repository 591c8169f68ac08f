package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSecrets: a new project hides secrets by their names, in every directory, and nothing that only resembles them.
func TestSecrets(t *testing.T) {
	p := Project{Dir: t.TempDir()}
	plant := func(names ...string) {
		for _, name := range names {
			name = filepath.Join(p.Dir, name)
			require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
			require.NoError(t, os.WriteFile(name, nil, 0o600))
		}
	}
	plant("id_utils.go", "id_rsa.pub", "keys/id_ed25519.pub", "a/cacert.pem", "b/roots.pem", "env", ".environment", "x.pem.md",
		"pem", "id_rsa_test.go", "node_modules/x/key.pem", ".git/id_rsa", "c/node_modules/.env")
	hidden, dotenv := p.Secrets()
	assert.Empty(t, hidden)
	assert.False(t, dotenv)
	plant("web/.env.example")
	_, dotenv = p.Secrets()
	assert.True(t, dotenv)
	plant(".env.sample", ".env.template")
	all := []string{".env", ".env.dev", ".env.e2e", ".env.local", ".env.production", ".env.sandbox", ".env.secret", ".env.staging",
		".env.test", "a/.env.eu.prod", "a/c.pem", "a/cert.pem", "a/root.pem", "a/server-key.pem", "k/id_dsa", "k/id_ecdsa", "k/id_ecdsa_sk",
		"k/id_ed25519", "k/id_ed25519_sk", "k/id_rsa", "x.pem"}
	plant(all...)
	hidden, _ = p.Secrets()
	assert.Equal(t, all, hidden)
}
