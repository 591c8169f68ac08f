package question

import (
	"bufio"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/tools/questions"
)

// TestAskLine: an answer is an option, its number, or the beginning of one option alone.
func TestAskLine(t *testing.T) {
	options := []string{"yes", "no", "none"}
	for typed, want := range map[string]questions.Answer{
		"y\n": {Text: "yes"}, "YES\n": {Text: "yes"}, "2\n": {Text: "no"}, "no\n": {Text: "no"}, "non\n": {Text: "none"},
		"\n": {Declined: true}, "": {Declined: true}, "n\n": {Declined: true}, "yess\n4\nyes": {Text: "yes"},
	} {
		assert.Equal(t, want, askLine(bufio.NewReader(strings.NewReader(typed)), io.Discard, questions.Question{Text: "?", Options: options}), "%q", typed)
	}
}
