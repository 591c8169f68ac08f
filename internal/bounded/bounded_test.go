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

// TestWriter: it keeps the beginning, and takes the rest.
func TestWriter(t *testing.T) {
	w := Writer{Left: 5}
	for _, part := range []string{"abc", "defg", "h"} {
		n, err := w.Write([]byte(part))
		assert.NoError(t, err)
		assert.Len(t, part, n)
	}
	assert.Equal(t, "abcde", string(w.Text))
}
