package agents

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/scope/catalog"
)

// TestGrantsInCode: what is no pattern in a definition made in code allows nothing,
// in whatever list it is.
func TestGrantsInCode(t *testing.T) {
	for name, r := range map[string]Reach{
		"tools":            {Tools: []string{"mcp:a"}},
		"allowed":          {Rules: Rules{Allowed: []string{"a:b"}}},
		"exclude":          {Rules: Rules{Exclude: []string{"mcp:a"}}},
		"ask":              {Rules: Rules{Ask: []string{""}}},
		"nothing computed": {Skills: []string{"x"}},
	} {
		def := Definition{Name: "a", Reach: r}
		assert.False(t, def.Grants(Host{Tools: catalog.Tools{{Name: "bash"}}}).Tool("bash").Allow, name)
	}
	free := Definition{Name: "a", Reach: Reach{Servers: Servers{"s": {Command: "x"}}}}
	grants := free.Grants(Host{Tools: catalog.Tools{{Name: "bash"}}})
	assert.True(t, grants.Tool("bash").Allow)
	assert.True(t, grants.Tool("mcp:s:q").Allow)
	assert.False(t, grants.Tool("mcp:other:q").Allow)
}
