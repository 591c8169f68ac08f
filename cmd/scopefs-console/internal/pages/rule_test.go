package pages

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestChangeBy: a link makes the change of the command beside it, or there is none.
func TestChangeBy(t *testing.T) {
	for command, want := range map[string]*change{
		"scopefs allow example.com --agent a":                           {Name: "example.com"},
		"scopefs allow --tool bash --remove-deny --base /srv --agent a": {Kind: "tool", Name: "bash", Remove: true},
		"scopefs allow src/x --access read --agent a":                   {Kind: "path", Name: "src/x", Access: "read"},
		"scopefs allow 'a b' --agent a":                                 nil,
		"scopefs allow a b":                                             nil,
		"scopefs allow a --yes":                                         nil,
		"scopefs allow --agent a":                                       nil,
		"rm -rf x":                                                      nil,
		"":                                                              nil,
	} {
		assert.Equal(t, want, changeBy(command), command)
	}
}
