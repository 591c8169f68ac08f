package toolbox

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
		got, err := Arguments(nil, text, []string{"x=y"})
		if want == "" {
			require.NoError(t, err)
			assert.Equal(t, `{"a":"é","b":1.50,"x":"y"}`, string(got))
			continue
		}
		require.ErrorContains(t, err, want, text)
		assert.NotContains(t, err.Error(), "\n")
	}
}
