package bounded

import (
	"errors"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
)

func TestRead(t *testing.T) {
	for text, long := range map[string]bool{"": false, "abcd": false, "abcde": true, strings.Repeat("x", 9): true} {
		got, err := Read(iotest.OneByteReader(strings.NewReader(text)), 4)
		assert.Equal(t, long, errors.Is(err, ErrTooLong), text)
		assert.Equal(t, text[:min(4, len(text))], string(got))
	}
	_, err := Read(iotest.ErrReader(errors.New("no")), 4)
	assert.EqualError(t, err, "no")
}
