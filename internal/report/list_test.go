package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDoctorPrints: root prints lines of a process of another user, who can write what that
// process prints. No field of them controls root's terminal.
func TestDoctorPrints(t *testing.T) {
	const hostile = "a\x1b[2J\n\u009bb\tc"
	var out strings.Builder
	require.NoError(t, Host{{User: hostile, Check: hostile, Status: hostile, Part: hostile, Detail: hostile, Remedy: hostile}}.Print(&out))
	assert.NotContains(t, out.String(), "\x1b")
	assert.NotContains(t, out.String(), "\u009b")
	assert.Equal(t, 1, strings.Count(out.String(), "\n"))
}
