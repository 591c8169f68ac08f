package outlive

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestShortened: a long command line ends after a word, so that no half of a secret is left that the log would not know.
func TestShortened(t *testing.T) {
	for name, test := range map[string]struct{ command, want string }{
		"short":      {"a b", "a b"},
		"as long":    {strings.Repeat("x", maxCommand), strings.Repeat("x", maxCommand)},
		"two words":  {"first " + strings.Repeat("x", maxCommand), "first …"},
		"one word":   {strings.Repeat("x", maxCommand+1), " …"},
		"the border": {strings.Repeat("x", maxCommand-3) + " secret", strings.Repeat("x", maxCommand-3) + " …"},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, test.want, shortened(test.command)) })
	}
}
