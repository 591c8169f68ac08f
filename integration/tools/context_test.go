package tools

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestContextShown has commands with and without a context.
func TestContextShown(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "tools: [bash]\nscopes: {enum: [state, input]}"})
	u := h.Connect("a")
	assert.Equal(t, "[]\nstate.json\n", u.Text("bash", args{"command": "cat /context/state.json; echo; ls /context", "_scopes": []string{"state"}}))
	assert.Equal(t, "(no output)", u.Text("bash", args{"command": "ls -A /context"}))
}
