package hosts

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/scope/hosts/keys"
)

// TestBuiltinKeys: the command that parses no preset knows the variables of the built-in ones.
func TestBuiltinKeys(t *testing.T) {
	var names []string
	for _, preset := range BuiltinPresets() {
		for _, c := range preset.Credentials {
			if c.From.Env != "" {
				names = append(names, c.From.Env)
			}
		}
	}
	slices.Sort(names)
	assert.Equal(t, names, keys.Builtin())
}
