package exit

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
)

// TestArgs: the error of arguments says what is wrong with them and how they are.
func TestArgs(t *testing.T) {
	root := &cobra.Command{Use: "scopefs"}
	c := &cobra.Command{Use: "show FILE [WHEN]", Run: func(*cobra.Command, []string) {}}
	root.AddCommand(c)
	for _, test := range []struct {
		check cobra.PositionalArgs
		words []string
		want  string
	}{
		{cobra.ExactArgs(1), []string{"f"}, ""},
		{cobra.ExactArgs(1), nil, "show: an argument is missing"},
		{cobra.ExactArgs(2), []string{"f"}, "show: an argument is missing"},
		{cobra.RangeArgs(1, 2), []string{"f", "g", "h"}, `show: "h" is an argument too many`},
		{cobra.NoArgs, []string{"f"}, `show: "f" is an argument too many`},
	} {
		err := Args(test.check)(c, test.words)
		if test.want == "" {
			assert.NoError(t, err)
			continue
		}
		assert.EqualError(t, err, test.want+" (usage: scopefs show FILE [WHEN])")
		assert.Equal(t, Usage, err.(*Error).Status)
	}
}
