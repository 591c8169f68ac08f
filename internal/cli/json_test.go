package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPrintJSON: what an agent wrote controls no terminal, and turns no text round.
func TestPrintJSON(t *testing.T) {
	var out strings.Builder
	a := &app{streams: streams{out: &out}}
	require.NoError(t, a.printLine(map[string]string{"a": "<\u009b2J\u202e>"}))
	assert.Equal(t, `{"a":"<\u009b2J\u202e>"}`+"\n", out.String())
	out.Reset()
	require.NoError(t, a.printJSON(map[string]string{"a": "\x1b\u009b"}))
	assert.Equal(t, "{\n  \"a\": \"\\u001b\\u009b\"\n}\n", out.String())
}

// TestArguments: no argument is given twice, neither in --args nor beside it.
func TestArguments(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":1,"a":2}`:         "--args: ",
		`{"a":{"b":1,"b":2}}`:   "--args: ",
		`{"a":1,"\u0061":2}`:    "--args: ",
		`{"x":1}`:               "x is given twice",
		`[1]`:                   "want a JSON object",
		`{"a":1} {"a":2}`:       "--args: ",
		`{"b": 1.50, "a": "é"}`: "",
	} {
		got, err := (&app{}).arguments(text, []string{"x=y"})
		if want == "" {
			require.NoError(t, err)
			assert.Equal(t, `{"a":"é","b":1.50,"x":"y"}`, string(got))
			continue
		}
		require.ErrorContains(t, err, want, text)
		assert.NotContains(t, err.Error(), "\n")
	}
}
