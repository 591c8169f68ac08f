package printable

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOfBytes(t *testing.T) {
	for in, want := range map[string]struct {
		text     string
		replaced int
	}{
		"":                     {"", 0},
		"plain\n":              {"plain\n", 0},
		"é€𝄞":                  {"é€𝄞", 0},
		"\x1b[1mbold":          {"\x1b[1mbold", 0},
		"a\xffb":               {"a\uFFFDb", 1},
		"\xff\xfe\x00\x00":     {"\uFFFD", 4},
		"\x00":                 {"\uFFFD", 1},
		"\xff\x00x\xe2\x82y":   {"\uFFFDx\uFFFDy", 4},
		"a \uFFFD of its own":  {"a \uFFFD of its own", 0},
		"\uFFFD\xff\uFFFD\xff": {"\uFFFD\uFFFD\uFFFD\uFFFD", 2},
	} {
		text, replaced := OfBytes([]byte(in))
		assert.Equal(t, want.text, text)
		assert.Equal(t, want.replaced, replaced, "%q", in)
		assert.Equal(t, replaced > 0, Replaced(replaced) != "")
	}
}
