package agents

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/scope"
)

// TestTaskHolds: what the operator takes over by himself, no member and no commit of its task changes.
func TestTaskHolds(t *testing.T) {
	held := ViewSpec{Paths: []scope.PathRule{{Pattern: "**/.dot", Access: scope.Hold}}, Protect: []scope.Protect{{Name: "l", Paths: []string{"x"}, Hold: true}}}
	holds, plain := &Definition{Name: "a", View: held}, &Definition{Name: "m"}
	for _, def := range []*Definition{Task("t", holds, plain), Task("t", plain, holds), TaskOf("t", holds)} {
		p, err := scope.Compile(def.View.PolicySpec())
		assert.NoError(t, err)
		for _, rel := range []string{".dot", "d/.dot/f", "x"} {
			assert.False(t, p.File(scope.OpOpenWrite, rel).Allow, rel)
			assert.True(t, p.File(scope.OpOpen, rel).Allow, rel)
		}
	}
}
