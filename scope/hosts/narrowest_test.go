package hosts

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestNarrowest: the preset with the fewest rules that allows a host, and none with a credential.
func TestNarrowest(t *testing.T) {
	for host, want := range map[string]string{
		"registry.npmjs.org": "npm", "files.pythonhosted.org": "pypi", "npm.corp.example": "", "api.anthropic.com": "", "proxy.golang.org": "go",
	} {
		assert.Equal(t, want, Narrowest(BuiltinPresets(), host, 443), host)
	}
	assert.Empty(t, Narrowest(BuiltinPresets(), "registry.npmjs.org", 8443))
}
