package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPrintJSON: what an agent wrote controls no terminal, and turns no text round.
func TestPrintJSON(t *testing.T) {
	var out strings.Builder
	require.NoError(t, Line(&out, map[string]string{"a": "<\u009b2J\u202e>"}))
	assert.Equal(t, `{"a":"<\u009b2J\u202e>"}`+"\n", out.String())
	out.Reset()
	require.NoError(t, JSON(&out, map[string]string{"a": "\x1b\u009b"}))
	assert.Equal(t, "{\n  \"a\": \"\\u001b\\u009b\"\n}\n", out.String())
}
