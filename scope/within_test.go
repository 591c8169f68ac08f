package scope

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWithinVersion: an approval for one caller's task is none for another's,
// though both have the same rules.
func TestWithinVersion(t *testing.T) {
	all, errs := Load(testBase{agents: map[string]string{"x": "members: [m]", "y": "members: [m]", "m": ""}}.make(t), Host{})
	require.Empty(t, errs)
	x, y, m := all.Agents["x"].Grants, all.Agents["y"].Grants, all.Agents["m"].Grants
	require.Equal(t, x.Version(), y.Version())
	assert.Equal(t, m.Within(x).Version(), m.Within(x).Version())
	assert.NotEqual(t, m.Within(x).Version(), m.Within(y).Version())
	assert.NotEqual(t, m.Within(x.Within(y)).Version(), m.Within(y.Within(x)).Version())
	assert.False(t, m.Within(x).Equal(m.Within(y)))
}
