package linecheck

import (
	"bytes"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestNext: the answer does not depend on how the bytes are cut.
func TestNext(t *testing.T) {
	for text, want := range map[string]bool{
		"":                           true,
		"0\r\n0\n":                   true,
		"3\nx\ny0\n":                 true, // bytes that follow may have line breaks
		"2\nxyz\n":                   false,
		"no\n":                       false,
		"-1\n":                       false,
		"00000000\n":                 true,
		"000000000\n":                false,
		"000000000":                  false, // before its end is there
		"0000000\r\n00000000\r\n":    false, // the carriage return counts
		"5\n\n\n\n\n\n0\n5\nabcdefg": true,
	} {
		for size := 1; size <= len(text)+1; size++ {
			c := Checker{Max: 8, Line: func(line []byte) (int, bool) {
				n, err := strconv.Atoi(string(line))
				return n, err == nil && n >= 0
			}}
			got := true
			for b := []byte(text); len(b) > 0 && got; {
				k := min(size, len(b))
				got = c.Next(bytes.Clone(b[:k]))
				b = b[k:]
			}
			assert.Equal(t, want, got, "%q in parts of %d", text, size)
		}
	}
}
