package tools

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
)

// TestMoveBlamesRefusedName: the error of a move that the policy refuses has the name
// that is refused, though rename(2) has one errno for both.
func TestMoveBlamesRefusedName(t *testing.T) {
	const paths = "view: {paths: {\"ro/**\": read}"
	h := harness.NewHost(t, map[string]string{"a": paths + "}", "b": paths + ", allow_other: true}"})
	for _, agent := range []string{"a", "b"} {
		harness.Plant(t, h.Scope(agent), "ro/f", "ro/d/f", "f", "d/f")
		u := h.Connect(agent)
		for _, c := range []struct{ from, to, blamed string }{
			{"ro/f", "x", "ro/f"}, {"f", "ro/x", "ro/x"}, {"ro/f", "ro/x", "ro/f"}, {"ro/d", "x", "ro/d"}, {"d", "ro/x", "ro/x"},
			{"/workspace/ro/f", "d/x", "ro/f"}, {"f", "ro/d/x", "ro/d/x"},
		} {
			e := u.Fails("move", args{"from": c.from, "to": c.to})
			assert.Equal(t, tools.Denied, e.Code, "%s: %+v", agent, c)
			assert.Equal(t, c.blamed, e.Path, "%s: %+v", agent, c)
		}
	}
}
