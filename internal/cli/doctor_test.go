package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/doctor"
)

// TestDoctorPrints: root prints lines of a process of another user, who can write what that
// process prints. No field of them controls root's terminal.
func TestDoctorPrints(t *testing.T) {
	const hostile = "a\x1b[2J\n\u009bb\tc"
	var out strings.Builder
	a := &app{streams: streams{out: &out}}
	require.NoError(t, a.printDoctor([]doctor.Line{{User: hostile, Check: hostile, Status: hostile, Part: hostile, Detail: hostile, Remedy: hostile}}))
	assert.NotContains(t, out.String(), "\x1b")
	assert.NotContains(t, out.String(), "\u009b")
	assert.Equal(t, 1, strings.Count(out.String(), "\n"))
}
