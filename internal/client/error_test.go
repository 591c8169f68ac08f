package client

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestUnknown: the error of an unknown agent is one line with one remedy, which names an agent of a similar name too.
func TestUnknown(t *testing.T) {
	for name, c := range map[string]struct {
		names []string
		want  string
	}{
		"alone":     {nil, `unknown agent "triag": define it in agents.d/triag.md`},
		"alike":     {[]string{"writer", "triage"}, `unknown agent "triag": define it in agents.d/triag.md, or did you mean triage`},
		"like none": {[]string{"writer"}, `unknown agent "triag": define it in agents.d/triag.md`},
		"the same":  {[]string{"triag"}, `unknown agent "triag": define it in agents.d/triag.md`},
	} {
		err := Unknown("triag", c.names, "agents.d/triag.md")
		assert.EqualError(t, err, c.want, name)
		assert.ErrorIs(t, err, ErrUnknown, name)
	}
}
